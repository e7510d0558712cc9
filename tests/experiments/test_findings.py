"""Means, intervals and verdicts, against what can be worked out otherwise."""

from __future__ import annotations

import errno
import json
import math
import os
from pathlib import Path
from typing import Any

import pytest

from gruppetto.experiments.catalogue import EXPERIMENTS
from gruppetto.experiments.experiment import BESIDE, Arm, Experiment, Ordering, Scale, figure
from gruppetto.experiments.findings import Findings
from gruppetto.experiments.ride import Ride
from gruppetto.experiments.store import Store
from gruppetto.experiments.telling import table, write
from gruppetto.sim.tally import half_width


def quantile(freedom: int) -> float:
    """Of Student's t, two-sided 95 %: by Simpson's rule and bisection."""
    scale = math.gamma((freedom + 1) / 2) / math.gamma(freedom / 2) / math.sqrt(freedom * math.pi)

    def inside(q: float) -> float:
        steps = 2000
        density = [scale * (1 + (q * i / steps) ** 2 / freedom) ** (-(freedom + 1) / 2) for i in range(steps + 1)]
        return 2 * q / steps / 3 * (density[0] + density[-1] + 4 * sum(density[1:-1:2]) + 2 * sum(density[2:-1:2]))

    low, high = 1.0, 20.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if inside(middle) < 0.95 else (low, middle)
    return low


@pytest.mark.parametrize("n", [2, 3, 4, 5, 7, 10, 13, 20])
def test_intervals_are_students(n: int) -> None:
    values = [math.sin(3.7 * i) for i in range(n)]
    mean = sum(values) / n
    deviation = math.sqrt(sum((v - mean) ** 2 for v in values) / (n - 1))
    exact = quantile(n - 1) * deviation / math.sqrt(n)
    found = half_width(values)
    assert found is not None
    # Where the table has a gap the interval is a little too wide, never too narrow.
    assert 0.998 * exact < found < (1.01 if n <= 10 or n in (15, 20) else 1.1) * exact


def experiment(**more: object) -> Experiment:
    arms = [
        Arm(name="good", ride=Ride(learners=2), beside="bad"),
        Arm(name="bad", ride=Ride(learners=3), beside="bad"),
    ]
    ordering = Ordering(less="good", more="bad", says="good ends below bad")
    given = {"arms": lambda scale: arms, "orderings": lambda scale: [ordering], "seeds": (3, 5)} | more
    return Experiment(name="x", question="?", paper="", **given)  # type: ignore[arg-type]


def findings(tmp_path: Path, good: list[float | None], bad: list[float | None], **more: object) -> Findings:
    store = Store(tmp_path / "x.jsonl")
    for seed, losses in enumerate(zip(good, bad, strict=True)):
        for learners, loss in zip((2, 3), losses, strict=True):
            store.add(Ride(seed=seed, learners=learners), {"loss": loss}, took_s=0)
    return Findings(experiment(**more), Scale(), store)


@pytest.mark.parametrize(
    ("good", "bad", "word"),
    [
        # Seeds differ far more than arms do: compared seed by seed, it shows.
        ([1.00, 2.00, 3.01], [1.01, 2.02, 3.04], "HOLDS"),
        ([1.01, 2.02, 3.04], [1.00, 2.00, 3.01], "DOES NOT HOLD"),
        ([1.00, 2.02, 3.00], [1.01, 2.00, 3.01], "undecided"),
        ([1.00], [2.00], "undecided"),  # a single seed says nothing of the next
        ([1.00, None, 3.0], [1.01, 2.0, 3.1], "DOES NOT HOLD"),  # it has come to no number
        ([None], [2.00], "undecided"),  # and so may any single seed
        ([1.00, 2.0, 3.0], [None, None, None], "HOLDS"),
        ([1.00, 2.0, 3.0], [0.99, None, 2.9], "undecided"),  # below by far once, a little above else
        ([None, 2.0, 3.0], [1.01, None, 3.1], "undecided"),
        ([None, None, None], [None, None, None], "undecided"),
        ([1.00, 2.0, 3.0], [1.00, 2.0, 3.0], "undecided"),
        ([1.00, 2.0, 3.0], [0.0, 0.0, 0.0], "undecided"),  # a share of nothing
    ],
)
def test_verdicts(tmp_path: Path, good: list[float | None], bad: list[float | None], word: str) -> None:
    judged = findings(tmp_path, good, bad).judged()
    assert [j.verdict.word for j in judged] == [word]


def test_what_is_just_within_is_undecided_whatever_rounding_makes_of_it(tmp_path: Path) -> None:
    close = Ordering(less="good", more="bad", says="", within=0.02)
    found = findings(tmp_path, [1.02, 2.04, 4.08], [1.0, 2.0, 4.0], orderings=lambda scale: [close])
    assert found.judged()[0].verdict.word == "undecided"


def test_a_figure_that_only_one_of_two_has_leaves_it_undecided(tmp_path: Path) -> None:
    """Who knows why: what is compared under the other seeds is then a choice of seeds."""
    tuned = Ordering(less="good", more="bad", says="", value=figure("tuned"))
    found = findings(tmp_path, [1.0, 2.0, 3.0], [1.1, 2.2, 3.3], orderings=lambda scale: [tuned])
    for seed in range(3):
        for learners in (2, 3):
            has = None if (seed, learners) == (1, 2) else learners + 0.01 * seed
            found._store.add(Ride(seed=seed, learners=learners), {"loss": 1.0, "tuned": has}, took_s=0)
    assert found.judged()[0].verdict.word == "undecided"


def test_a_mean_of_fewer_seeds_than_there_are_says_so(tmp_path: Path) -> None:
    found = findings(tmp_path, [1.0, None, 3.0], [1.0, 2.0, 3.0])
    assert found.cell(found.arms[0], BESIDE) == "+0.00 % ± 0.00 % (2 of 3 seeds)"
    assert found.as_json()["arms"][0]["figures"]["beside"]["by_seed"] == [0.0, None, 0.0]


SPOILT: dict[str, dict[str, Any]] = {
    "no number": {"loss": None, "curve": [[10.0, 100, None], [20.0, 200, None]], "ended_s": 20.0},
    "never gets there": {"loss": 9.0, "curve": [[10.0, 100, 0.5], [20.0, 200, 9.0]], "ended_s": 20.0},
    "looked at once": {"loss": 2.0, "curve": [[10.0, 100, 2.0]], "ended_s": 10.0},
    "nothing else": {"loss": 2.0},
    "nothing but nothing": {"loss": 0.0, "curve": [], "ended_s": 0.0, "round_s": 0.0, "up_bytes": 0},
    "huge": {"loss": 1e308, "curve": [[1e308, 1, 1e308]] * 2, "ended_s": 1e308, "round_s": 1e-308},
    "no figures": {"loss": "low", "curve": "flat", "rejected": 3, "ended_s": [], "tokens": "many"},
}


@pytest.mark.parametrize("spoilt", SPOILT)
@pytest.mark.parametrize("which", ["all", "every second"])
def test_a_table_is_made_of_whatever_runs_come_to(spoilt: str, which: str, tmp_path: Path) -> None:
    for name, asked in EXPERIMENTS.items():
        scale, store = Scale(quick=True, seeds=2, cache=tmp_path), Store(tmp_path / f"{name}.jsonl")
        for place, arm in enumerate(asked.arms(scale)):
            fine = {"loss": 2.0 + 0.01 * place, "curve": [[10.0, 100, 3.0], [20.0, 200, 2.0]], "ended_s": 20.0}
            for seed in range(2):
                result = fine if which == "every second" and place % 2 else SPOILT[spoilt]
                store._results[arm.under(seed).hash] = result
        found = Findings(asked, scale, store)
        told = json.dumps(found.as_json(), allow_nan=False) + table(found)
        assert " nan" not in told and " inf" not in told
        if which == "all":
            assert {judged.verdict.share for judged in found.judged()} <= {0.0, None}


def test_a_ratio_without_end_is_no_share_on_either_side(tmp_path: Path) -> None:
    for low in (1e99, -1e99):
        found = findings(tmp_path / str(low), [low, low], [1e-300, 1e-300])
        assert json.dumps(found.as_json(), allow_nan=False)


def test_within_is_a_share_of_what_it_is_compared_with(tmp_path: Path) -> None:
    close = Ordering(less="good", more="bad", says="", within=0.02)
    found = findings(tmp_path, [1.011, 2.021, 3.03], [1.0, 2.0, 3.0], orderings=lambda scale: [close])
    assert found.judged()[0].verdict.word == "HOLDS"
    assert found.judged()[0].verdict.share == pytest.approx((0.011 + 0.0105 + 0.01) / 3)


def test_what_is_written_says_the_same_everywhere(tmp_path: Path) -> None:
    found = findings(tmp_path, [1.0, 2.0, 3.0], [1.1, 2.2, 3.3])
    page = table(found)
    assert "| good | -9.09 % ± 0.00 % | 2.000 ± 2.483 | 3 |" in page
    assert "| good ends below bad | HOLDS | -9.09 % ± 0.00 % |" in page and "Virtual time" in page
    written = write(found, tmp_path / "out")
    assert [path.name for path in written] == ["x.md", "x.json", "x.png"]
    said = json.loads(written[1].read_text())
    assert said["arms"][0]["figures"]["held-out nats"]["by_seed"] == [1.0, 2.0, 3.0]
    assert written[2].stat().st_size > 1000


def test_a_loss_that_is_no_number_is_said_and_not_left_out_of_a_mean(tmp_path: Path) -> None:
    assert "no number in 1 of 3 seeds" in table(findings(tmp_path, [1.0, None, 3.0], [1.0, 2.0, 3.0]))


def test_what_cannot_be_written_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found, out = findings(tmp_path, [1.0, 2.0], [1.1, 2.2]), tmp_path / "out"
    before = {path: path.read_bytes() for path in write(found, out)}

    def half(self: Path, text: str, encoding: str) -> int:
        self.write_bytes(text.encode()[:20])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_text", half)
    with pytest.raises(OSError, match=r"No space left on device: '.*x\.md'"):
        write(found, out)
    assert {path: path.read_bytes() for path in out.iterdir()} == before


def test_what_is_missing_to_compare_with_is_said(tmp_path: Path) -> None:
    store, asked = Store(tmp_path / "x.jsonl"), Scale(only="good")
    store.add(Ride(learners=2), {"loss": 2.0}, took_s=0)
    alone = Findings(experiment(columns=(BESIDE,)), asked, store)
    assert "nothing to stand beside without: bad (add it to --only)" in table(alone)
    store.add(Ride(learners=3), {"loss": 4.0}, took_s=0)  # though it is not asked for
    both = Findings(experiment(columns=(BESIDE,)), asked, store)
    assert both.lacking() == [] and "-50.00 %" in table(both) and "without" not in table(both)
