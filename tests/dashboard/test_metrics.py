"""/metrics is what it says it is, and whoever reads it finds what the documents promise."""

from __future__ import annotations

import json
import re
from pathlib import Path

from gruppetto.dashboard.metrics import METRICS, exposition
from gruppetto.protocol import ProtocolSetting
from gruppetto.runtime.health import Observer, status_before_the_first_learner

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = re.compile(r'([a-z_]+)(?:\{((?:[a-z_]+="(?:[^"\\\n]|\\\\|\\"|\\n)*",?)*)\})? (-?[0-9.e+-]+|NaN|[+-]Inf)')
HOSTILE = 'a"\\\n{}'


def status() -> dict[str, object]:
    found = status_before_the_first_learner(ProtocolSetting(rounds=9), Observer(), run_id="run-1", epoch=2, now=3.5)
    learner = {
        "state": "live", "clock": 3, "step_s": 0.25, "steps": 7, "tokens": 70, "merged_fragment_tokens": 3,
        "last_merged_round": 1, "merged_rounds": 2, "slot": 0, "incarnation": 1, "norm": 1.5, "cosine": float("nan"),
        "metrics": {"loss": None},
    }  # fmt: skip
    return {
        **found,
        "learners": {HOSTILE: learner},
        "rejected": {"late": 2},
        "clipped": {"norm": 1},
        "alarms": [{"t": 0.0, "kind": "damaged", "text": ""}],
    }


def test_every_line_is_of_the_format_and_every_metric_is_said_once() -> None:
    kinds: dict[str, str] = {}
    for line in exposition(status()).splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name not in kinds
            kinds[name] = kind
        elif not line.startswith("# HELP "):
            found = SAMPLE.fullmatch(line)
            assert found is not None, line
            assert found.group(1) in kinds
    assert kinds == {metric.name: metric.kind for metric in METRICS if metric.name in kinds}
    said_nothing = {metric.name for metric in METRICS} - kinds.keys()
    assert said_nothing == {
        "gruppetto_quorum_wait_seconds", "gruppetto_grace_window_seconds", "gruppetto_grace_spent_seconds",
        "gruppetto_sync_seconds",
    }  # fmt: skip


def test_values_and_hostile_names() -> None:
    lines = exposition(status()).splitlines()
    assert 'gruppetto_learner_step_seconds{learner="a\\"\\\\\\n{}"} 0.25' in lines
    assert 'gruppetto_learner_cosine{learner="a\\"\\\\\\n{}"} NaN' in lines
    assert 'gruppetto_learner_loss{learner="a\\"\\\\\\n{}"} NaN' in lines, "it reports one, which is not finite"
    assert 'gruppetto_rejected_total{reason="late"} 2' in lines
    assert "gruppetto_epoch 2" in lines and "gruppetto_uptime_seconds 3.5" in lines


def test_names_carry_their_units() -> None:
    for metric in METRICS:
        assert metric.unit not in ("seconds", "bytes") or metric.unit in metric.name
        assert (metric.kind == "counter") == metric.name.endswith("_total")
        assert metric.help.endswith(".")


def test_the_grafana_dashboard_asks_for_what_there_is() -> None:
    board = json.loads((ROOT / "deploy" / "grafana" / "gruppetto.json").read_text())
    asked = " ".join(target["expr"] for panel in board["panels"] for target in panel.get("targets", []))
    names = set(re.findall(r"gruppetto_[a-z_]+", asked))
    assert len(names) > 12
    assert names <= {metric.name for metric in METRICS}
