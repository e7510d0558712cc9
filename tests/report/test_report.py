"""From what a run recorded to what people read."""

from __future__ import annotations

import builtins
import json
import math
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from gruppetto.errors import DataError
from gruppetto.protocol import ProtocolSetting
from gruppetto.protocol.units import Epoch
from gruppetto.report import write_report
from gruppetto.report.curves import curve_of_rival, curve_of_run, read_train_log
from gruppetto.report.story import story
from gruppetto.report.summary import data_parallel_bytes, summary_of_run
from gruppetto.trace.log import TraceWriter
from gruppetto.trace.measures import Alarmed, Evaluated, LearnerMeasures, Measures, Recovery, RoundMeasures
from gruppetto.trace.replay import ReplayResult
from gruppetto.trace.schema import core_header

KEYS = {
    "rounds",
    "wall_s",
    "goodput",
    "uptime",
    "participation",
    "tokens",
    "bytes",
    "eval",
    "rejected",
    "recoveries",
    "grace",
    "quorum",
    "learners",
}


def measures() -> Measures:
    """Two rounds of two learners, ten seconds in all."""

    def round(number: int, participants: tuple[str, ...], spent_s: float) -> RoundMeasures:
        return RoundMeasures(
            round=number,
            asked_at=4.0 * number,
            quorum_s=1.0,
            grace_s=0.5,
            grace_spent_s=spent_s,
            merge_s=0.25,
            persist_s=0.5,
            publish_s=0.125,
            at_clock=1,
            due=1,
            live=2,
            participants=participants,
            closed_at=4.0 * number + spent_s,
            consumed_tokens=100 * number,
        )

    learner = {"steps": 5, "spent_s": 10.0, "useful_s": 10.0, "lives": 1, "first_live": 0.0}
    return Measures(
        header={"numel": 1000},
        rounds={1: round(1, ("a",), 0.25), 2: round(2, ("a", "b"), 0.75)},
        learners={
            "a": LearnerMeasures(**learner, merged_rounds=2, states=[(0.0, "live")], busy=[(0.0, 10.0)]),
            "b": LearnerMeasures(
                **{**learner, "spent_s": 5.0, "useful_s": 5.0},
                merged_rounds=1,
                states=[(0.0, "live"), (5.0, "away")],
                busy=[(0.0, 5.0)],
            ),
        },
        evaluations=[
            Evaluated(round=0, loss=4.0, perplexity=54.6),
            Evaluated(round=2, loss=3.0, perplexity=20.1),
        ],
        recoveries=[
            Recovery(learner="b", cause="killed", source="peer a", seconds=1.5, search_s=0.5, payload_bytes=640)
        ],
        alarms=[Alarmed(t=3.0, kind="quorum-short", text="round 1 waits <here>", over_t=7.0)],
        rejected={"late": 3},
        clipped={"norm": 7},
        tokens={"consumed": 200, "merged": 150, "discarded": 40, "lost": 10, "open": 0},
        consumed_by={"a": 120, "b": 80},
        recorded_tokens={"consumed": 200, "merged": 150, "discarded": 40, "lost": 10, "open": 0},
        up_bytes=1000,
        down_bytes=3000,
        begun_at=0.0,
        ended_at=10.0,
        wall_s=12.0,
        replay=ReplayResult(events=1, decisions=1, lives=1, first_difference=None),
    )


def test_the_report_by_value() -> None:
    report = summary_of_run(measures())
    assert report.keys() >= KEYS
    assert (report["rounds"], report["wall_s"], report["training_s"], report["finished"]) == (2, 12.0, 10.0, True)
    assert (report["goodput"], report["uptime"], report["participation"]) == (0.75, 1.0, 0.75)
    assert report["tokens"] == {"consumed": 200, "merged": 150, "discarded": 40, "lost": 10}
    # A ring of two: each step sends 2 · 1 · 4 · 1000 bytes for both, and there were ten learner steps, five of each.
    assert report["bytes"] == {"up": 1000, "down": 3000, "data_parallel_equivalent": 5 * 2 * 4 * 1000}
    assert report["eval"]["initial_loss"] == 4.0
    assert (report["eval"]["loss"], report["eval"]["perplexity"]) == (3.0, 20.1)
    assert report["grace"] == {"mean_s": 0.5, "max_s": 0.75}
    assert (report["rejected"], report["clipped"]) == ({"late": 3}, {"norm": 7})
    assert report["quorum"] == {"mean": 1.5, "min": 1}
    assert report["anatomy"]["persist_s"] == 0.5
    assert report["recoveries"] == [
        {
            "learner": "b",
            "cause": "killed",
            "source": "peer a",
            "seconds": 1.5,
            "search_s": 0.5,
            "payload_bytes": 640,
        }
    ]
    assert report["learners"]["b"] == {
        "steps": 5,
        "tokens": 80,
        "merged_rounds": 1,
        "step_s": 1.0,
        "lives": 1,
        "state": "away",
    }
    assert set(report["checks"].values()) == {"ok"}


def test_what_is_not_known_is_null_and_the_report_is_json() -> None:
    report = summary_of_run(Measures())
    assert report.keys() >= KEYS
    assert report["goodput"] is None
    assert report["bytes"] == {"up": None, "down": None, "data_parallel_equivalent": None}
    assert report["eval"]["loss"] is None
    assert json.loads(json.dumps(report, allow_nan=False)) == report
    diverged = measures()
    diverged.evaluations.append(Evaluated(round=3, loss=float("nan"), perplexity=float("inf")))
    assert summary_of_run(diverged)["eval"]["loss"] is None


def test_an_initial_loss_is_one_of_round_zero() -> None:
    late = measures()
    del late.evaluations[0]
    assert summary_of_run(late)["eval"]["initial_loss"] is None


def test_failed_checks_are_said() -> None:
    wrong = measures()
    wrong.balanced = False
    wrong.recorded_tokens = {"consumed": 1}
    report = summary_of_run(wrong)
    assert "ok" not in (report["checks"]["ledger_balances"], report["checks"]["ledger_agrees"])
    said = story(report, Path("run"))
    assert "CHECK FAILED, ledger_agrees" in said


def test_data_parallel_of_one_sends_nothing() -> None:
    assert data_parallel_bytes(1000, [10]) == 0
    assert data_parallel_bytes(None, [10]) is None
    assert data_parallel_bytes(1000, []) is None


def test_the_shares_of_the_story_add_up() -> None:
    """A run that ends with a learner away knows nothing yet of what that one trained on."""
    found = replace(measures(), tokens={"consumed": 200, "merged": 144, "discarded": 44, "lost": 0, "open": 12})
    said = story(summary_of_run(found), Path("runs/x"))
    assert "72% were merged, 22% discarded and 0% lost; 6% were still under way at the end." in said


def test_the_story_of_a_run() -> None:
    said = story(summary_of_run(measures()), Path("runs/x"))
    for part in (
        "2 learners rode 2 rounds in 10.0 s.",
        "fell by 25%, from 4.000 to 3.000",
        "A step of a took 2.0 times as long as one of b. Nobody waited for it; its work was merged in 2 rounds.",
        "75% of the live learners",
        "Of 200 tokens 75% were merged, 20% discarded and 5% lost.",
        "4.00 kB travelled; data parallel would have needed 40.00 kB for the same steps (10 times as much).",
        "b went away and did not come back",
        "b was gone (killed) and was merged after 1.5 s, with its state from: peer a.",
        "3 late",
        "runs/x/report.html",
    ):
        assert part in said, part
    worse = measures()
    worse.evaluations[1] = Evaluated(round=2, loss=5.0, perplexity=148.4)
    assert "ROSE by 25%" in story(summary_of_run(worse), Path("x"))
    worse.ended_at = None
    assert "did not reach its end: it stands at round 2" in story(summary_of_run(worse), Path("x"))


def test_a_curve_knows_its_tokens() -> None:
    curve = curve_of_run(measures(), "mine")
    assert (curve.rounds, curve.tokens, curve.losses) == ((0, 2), (0, 200), (4.0, 3.0))


class Page(HTMLParser):
    """Collects what a browser would fetch, and the tags it sees."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.tags: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag in ("script", "img", "link", "iframe"):
            self.fetched.append(tag)
        self.fetched += [value for name, value in attrs if name in ("src", "data") and value]
        self.fetched += [v for n, v in attrs if n in ("href", "xlink:href") and v and not v.startswith("#")]


def run_directory(place: Path) -> Path:
    header = core_header(ProtocolSetting(), run_id="r", layout_hash="l", epoch=Epoch(1))
    with TraceWriter(place / "trace.jsonl", {**header, "numel": 100}) as trace:
        for round, loss in ((0, 4.0), (5, 3.0)):
            trace.note(float(round), "judge", "evaluation", round=round, loss=loss, perplexity=9.0)
        trace.note(6.0, "a", "metrics", steps=1, loss=3.5)
    (place / "run.toml").write_text("[run]\n# <tag>", encoding="utf-8")
    (place / "sample.txt").write_text("<script>alert(1)</script>", encoding="utf-8")
    return place


def test_a_report_opens_offline_and_shows_no_foreign_markup(tmp_path: Path) -> None:
    report = write_report(run_directory(tmp_path))
    assert json.loads((tmp_path / "report.json").read_text(encoding="utf-8")) == report.figures
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    seen = Page(text)
    assert seen.fetched == []
    assert seen.tags.count("svg") == 2
    assert "prefers-color-scheme: dark" in text
    assert "currentColor" in text
    assert "&lt;script&gt;alert(1)" in text
    assert "report.html" not in text, "whoever looks at it need not be told to"
    for name in ("loss-by-round", "loss-by-tokens"):
        assert (tmp_path / "figures" / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_every_figure_is_drawn_when_there_is_something_to_draw() -> None:
    figures = pytest.importorskip("gruppetto.report.figures")
    found = measures()
    drawn = figures.draw_run(found, summary_of_run(found), [curve_of_run(found, "a"), curve_of_run(found, "b")])
    assert set(drawn) == {"loss-by-round", "loss-by-tokens", "participation", "round-anatomy", "bytes"}
    for name, figure in drawn.items():
        assert figures.as_svg(figure, name).startswith("<svg")
    # One round only, and a run in which nothing has happened yet.
    del found.rounds[2]
    assert "round-anatomy" in figures.draw_run(found, summary_of_run(found), [])
    empty = Measures()
    assert set(figures.draw_run(empty, summary_of_run(empty), [])) == set()
    # Nothing was evaluated: the learners' own losses, if they reported any, and no empty axes beside them.
    unjudged = replace(found, evaluations=[], train_losses=[(1, "anna", 2.5)])
    names = figures.draw_run(unjudged, summary_of_run(unjudged), [curve_of_run(unjudged, "a")])
    assert "loss-by-round" in names and "loss-by-tokens" not in names


def test_a_figure_keeps_to_scale_what_is_usual_and_says_what_is_not() -> None:
    """One long first round flattens nothing, a loss that is no number has a mark, and no label lies on its bar."""
    figures = pytest.importorskip("gruppetto.report.figures")
    found, usual = measures(), measures().rounds[1]
    found.rounds = {n: replace(usual, round=n, quorum_s=180.0 if n == 1 else 1.0) for n in range(1, 31)}
    losses = [(1, "anna", 2.5), (2, "anna", math.nan), (3, "anna", math.inf), (4, "anna", 2.0)]
    found = replace(found, train_losses=losses, evaluations=[])
    report = summary_of_run(found)
    drawn = figures.draw_run(found, report, [])
    (anatomy,), (loss,), (moved,) = (drawn[name].axes for name in ("round-anatomy", "loss-by-round", "bytes"))
    assert 2000 < anatomy.get_ylim()[1] < 4000, "milliseconds"
    assert [text.get_text() for text in anatomy.texts] == ["↑ 3 min 1 s"]
    (crosses,) = (line for line in loss.lines if line.get_label() == "not finite")
    assert list(crosses.get_xdata()) == [2, 3]
    assert max(bar.get_width() for bar in moved.patches) < 0.85 * moved.get_xlim()[1]
    assert all(text.xyann == (6, 0) for text in moved.texts)


def test_without_matplotlib_there_is_a_report_that_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any, **more: Any) -> Any:
        if name.partition(".")[0] == "matplotlib":
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    report = write_report(run_directory(tmp_path))
    assert "matplotlib is missing" in report.text
    assert not (tmp_path / "figures").exists()
    assert Page((tmp_path / "report.html").read_text(encoding="utf-8")).tags.count("svg") == 0


def rival_directory(place: Path) -> Path:
    place.mkdir()
    plan = {"mode": "data-parallel", "num_learners": 2, "setting": {"batch_size": 4, "model": {"context": 8}}}
    (place / "plan.json").write_text(json.dumps(plan), encoding="utf-8")
    lines = [
        {"kind": "eval", "round": 0, "tokens": 0, "loss": 4.0, "perplexity": 54.6, "t": 1.0, "who": "learner-0"},
        {"kind": "train", "round": 10, "tokens": 320, "loss": 3.5, "t": 2.0, "who": "learner-0"},
        {"kind": "train", "round": 10, "tokens": 320, "loss": 3.6, "t": 2.0, "who": "learner-1"},
        {"kind": "end", "round": 10, "tokens": 320, "loss": 3.0, "perplexity": 20.1, "t": 3.0, "who": "learner-0"},
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (place / "train.jsonl").write_text(text + '{"kind":"tra', encoding="utf-8")
    return place


def test_a_rival_is_reported_under_the_same_names(tmp_path: Path) -> None:
    report = write_report(rival_directory(tmp_path / "rival")).figures
    assert report.keys() >= KEYS
    assert (report["mode"], report["rounds"], report["finished"]) == ("data-parallel", 10, True)
    assert report["tokens"] == {"consumed": 640, "merged": 640, "discarded": 0, "lost": 0}
    assert (report["eval"]["initial_loss"], report["eval"]["loss"]) == (4.0, 3.0)
    assert (tmp_path / "rival" / "figures" / "loss-by-tokens.png").exists()
    curve = curve_of_rival(read_train_log(tmp_path / "rival" / "train.jsonl"), "rival", 2)
    assert (curve.rounds, curve.tokens) == ((0, 10), (0, 640))


def test_runs_are_compared_in_one_figure(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    write_report(run_directory(tmp_path / "mine"), [rival_directory(tmp_path / "rival")])
    text = (tmp_path / "mine" / "report.html").read_text(encoding="utf-8")
    assert "data-parallel (rival)" in text
    assert "decoupled (mine)" in text


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="has neither"):
        write_report(tmp_path)
    (tmp_path / "train.jsonl").write_text("{}\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"train.jsonl:1: is no record"):
        write_report(tmp_path)
    (tmp_path / "train.jsonl").write_text("", encoding="utf-8")
    with pytest.raises(DataError, match=r"plan.json: cannot be read"):
        write_report(tmp_path)


def test_a_directory_whose_name_is_no_text_is_reported(tmp_path: Path) -> None:
    place = tmp_path / "n\udcffx"
    place.mkdir()
    write_report(run_directory(place))
    assert "n?x" in (place / "report.html").read_text(encoding="utf-8")


def test_a_verdict_and_its_picture_are_on_the_page(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    run = run_directory(tmp_path / "run")
    check = {"name": "never-stands-still", "state": "fail", "text": "uptime <90 %>", "figures": {}}
    (run / "verdict.json").write_text(json.dumps({"passed": False, "checks": [check]}), encoding="utf-8")
    (run / "figures").mkdir()
    (run / "figures" / "chaos.svg").write_text("<svg><text>lanes</text></svg>", encoding="utf-8")
    report = write_report(run)
    assert report.figures["verdict"]["checks"] == [check]
    page = (run / "report.html").read_text(encoding="utf-8")
    assert "<svg><text>lanes</text></svg><figcaption>What went wrong" in page
    assert "<td>never-stands-still</td><td>fail</td><td>uptime &lt;90 %&gt;</td>" in page
    (run / "verdict.json").write_text("{}", encoding="utf-8")
    with pytest.raises(DataError, match="is no verdict"):
        write_report(run)
