"""What the page shows is what happened: compared with the figures of a replay, and with what was done to a trace."""

from __future__ import annotations

import json
import math
import os
import random
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gruppetto.chaos import draw_plan, live
from gruppetto.dashboard.alarms import alarms_of
from gruppetto.dashboard.book import Book
from gruppetto.dashboard.export import COLUMNS, as_csv
from gruppetto.dashboard.headline import headline_of, state_of
from gruppetto.dashboard.picture import Picture
from gruppetto.dashboard.seen import MAX_LANES
from gruppetto.dashboard.window import head, lane_in_window, window
from gruppetto.protocol.messages import FAILED
from gruppetto.runtime.clock import ManualClock
from gruppetto.trace.log import TraceWriter
from gruppetto.trace.metrics import measure
from gruppetto.trace.schema import encode_line

STATES = {"joining": "recovering", "away": "offline", "left": "left"}


def lived(path: Path, seed: int) -> Path:
    """The trace of one world of the fuzzer, with its crashes, partitions and restarts."""
    with TraceWriter(path, {"notes-on": "fuzz"}) as trace:
        assert live(draw_plan(seed), trace=trace).broken == ""
    return path


def taken(path: Path) -> Picture:
    picture = Picture()
    for line in path.read_bytes().splitlines():
        picture.take(line)
    return picture


@pytest.mark.parametrize("seed", [1, 2, 3, 5, 8, 13])
def test_the_picture_is_what_a_replay_measures(tmp_path: Path, seed: int) -> None:
    path = lived(tmp_path / "trace.jsonl", seed)
    picture, found = taken(path), measure(path)
    assert picture.damaged_lines == 0
    assert picture.published == max(found.rounds, default=0)
    assert picture.now == found.wall_s
    # What a syncer had counted since its last commit dies with it; the trace remembers.
    assert all(picture.rejected[reason] >= count for reason, count in found.rejected.items())
    if picture.lives == 1:
        assert dict(picture.rejected) == {reason: count for reason, count in found.rejected.items() if count}
    assert picture.finished == (found.ended_at is not None)
    for name, lane in picture.lanes.items():
        assert lane.state == found.learners[name].states[-1][1]
        assert lane.steps >= found.learners[name].steps
        if lane.state in STATES:
            assert state_of(lane, picture.now) == STATES[lane.state]
    done = [r for r in found.rounds.values() if r.done_at is not None]
    phases = ("quorum_s", "grace_spent_s", "merge_s", "persist_s", "publish_s")
    for phase in phases:
        seen = picture.series[phase].window(0.0, picture.now + 1, most=7)
        assert seen.count.sum() >= len(done)
        assert seen.total.sum() >= sum(getattr(r, phase) for r in done) - 1e-6


def test_a_run_without_restarts_is_counted_to_the_last_token(tmp_path: Path) -> None:
    seed = next(
        s
        for s in range(100)
        if not draw_plan(s).faults or all("crash" not in f.kind.value for f in draw_plan(s).faults)
    )
    path = lived(tmp_path / "trace.jsonl", seed)
    picture, found = taken(path), measure(path)
    assert sum(lane.tokens for lane in picture.lanes.values()) == found.tokens["consumed"]
    assert sum(lane.merged_rounds for lane in picture.lanes.values()) == sum(
        learner.merged_rounds for learner in found.learners.values()
    )
    merged = picture.series["merged"].window(0.0, 1e9, most=1).total.sum()
    fragment_tokens = found.tokens["merged"] * picture.setting["num_fragments"]
    assert merged * picture.setting["num_fragments"] == pytest.approx(
        fragment_tokens, abs=picture.setting["num_fragments"]
    )


def test_reading_in_pieces_is_reading_at_once(tmp_path: Path) -> None:
    """Also when lines are torn in the middle, and notes come beside the trace."""
    whole = lived(tmp_path / "whole.jsonl", 3).read_bytes()
    path, clock, rng = tmp_path / "trace.jsonl", ManualClock(), random.Random(1)
    book = Book(path, clock)
    at = 0
    while at < len(whole):
        more = rng.randrange(1, 60_000)
        with path.open("ab") as file:
            file.write(whole[at : at + more])
        at += more
        while book.read(rng.randrange(1, 5000)):
            pass
    at_once = taken(tmp_path / "whole.jsonl")
    shown, wanted = (window(p, 0.0, p.now, slots=100) for p in (book.picture, at_once))
    assert json.dumps(shown) == json.dumps(wanted)
    (tmp_path / "evaluation.jsonl").write_text(
        '{"trace":1,"notes":"evaluation"}\n{"t":9.0,"who":"judge","note":"evaluation","data":{"round":1,"loss":1.5,"perplexity":4.5}}\n'
    )
    book.read_all()
    assert [(round, loss) for _, round, loss in book.picture.evaluations] == [(1, 1.5)]


def test_a_trace_that_is_replaced_is_begun_again(tmp_path: Path) -> None:
    path = lived(tmp_path / "trace.jsonl", 1)
    book = Book(path, ManualClock())
    book.read_all()
    first = book.picture
    path.unlink()
    lived(path, 2)
    book.read_all()
    assert book.picture is not first
    assert book.picture.published == taken(path).published


def test_what_lies_there_and_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "trace.jsonl")
    book = Book(tmp_path / "trace.jsonl", ManualClock())
    book.read_all()
    assert book.picture.lines == 0


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 40))
def test_damaged_lines_are_counted_and_do_no_harm(seed: int, hits: int) -> None:
    rng = random.Random(seed)
    lines = LINES.copy()
    for _ in range(hits):
        k = rng.randrange(len(lines))
        line = bytearray(lines[k])
        if line:
            line[rng.randrange(len(line))] = rng.randrange(256)
        lines[k] = bytes(line)
    picture = Picture()
    for line in lines:
        picture.take(line)
    assert picture.lines == len(lines) and picture.damaged_lines <= hits
    json.dumps(head(picture, picture.now, live=True))
    json.dumps(window(picture, 0.0, picture.now, slots=50))
    before = picture.damaged_lines
    picture.take(LINES[2][:-1])
    assert picture.damaged_lines == before + 1


def say(t: float, way: str, what: str, /, **data: object) -> bytes:
    return encode_line({"t": t, "who": "syncer", way: what, "data": data}).removesuffix(b"\n")


def member(t: float, name: str, state: str, why: str) -> bytes:
    return say(t, "out", "MemberChanged", learner=name, state=state, why=why)


LINES = [
    b'{"trace":1,"started_at":100.0}',
    b'{"trace":1,"setting":{"rounds":9,"num_fragments":2,"min_quorum":1,"start_learners":1},"run_id":"r","numel":10}',
    member(0.0, "anna", "joining", "new"),
    member(1.0, "anna", "live", "synchronised"),
    say(2.0, "in", "Progress", learner="anna", incarnation=1, clock=1, step_s=1.0, steps=1, tokens=8),
    say(2.0, "out", "QuorumMet", round=1, quorum_s=0.5, at_clock=1, live=1, grace_s=0.25),
    say(2.1, "in", "Answer", learner="anna", fragment=0, round=1, steps=1, tokens=8, norms=[3.0, 4.0]),
    say(2.1, "out", "Fold", learner="anna", fragment=0, round=1, weight=64.0),
    say(2.1, "in", "Folded", learner="anna", fragment=0, round=1, cosine=0.5),
    say(2.2, "out", "RoundClosed", round=1, why="all", participants=["anna"], live=1, grace_spent_s=0.2),
    say(2.3, "in", "OuterStepped", round=1),
    say(2.5, "in", "Persisted", round=1),
    say(2.75, "in", "Published", round=1),
]


NOTES = [
    encode_line({"t": 3.0, "who": "anna", "note": kind, "data": data}).removesuffix(b"\n")
    for kind, data in {
        "metrics": {"loss": 2.0},
        "traffic": {"up": 1, "down": 2},
        "evaluation": {"round": 1, "loss": 2.0},
        "ledger": {"consumed": 8, "merged": 4},
        "recovery": {"source": "peer", "donor": "ben", "seconds": 1.0},
        "died": {"learner": "anna", "wall_s": 104.0, "cause": "SIGKILL"},
    }.items()
]
NUMBERS = ("1e308", "-1e308", str(1 << 70), "1e30", "9007199254740992", "-1", '"nan"', '"-inf"')
ODD = (*NUMBERS, "null", "true", '"x"', '"\\ud800"', "[]", "{}")


def places(value: object, *path: object) -> Iterator[tuple[object, ...]]:
    """The path of everything in a decoded line."""
    if path:
        yield path
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in inside:
        yield from places(each, *path, key)


@pytest.mark.parametrize("odd", ODD)
def test_no_value_anywhere_in_a_trace_makes_a_page_that_cannot_be_shown(odd: str) -> None:
    lines = LINES + NOTES
    for k, line in enumerate(lines):
        for *path, last in places(json.loads(line)):
            record = place = json.loads(line)
            for key in path:
                place = place[key]
            place[last] = "@"
            changed = json.dumps(record, separators=(",", ":")).replace('"@"', odd).encode()
            picture = Picture()
            for each in (*lines[:k], changed, changed, *lines[k:]):
                picture.take(each)
            for goes_on in (True, False):
                msgspec.json.encode(head(picture, picture.now, live=goes_on))
            msgspec.json.encode(window(picture, 0.0, picture.now, slots=8))
            msgspec.json.encode([lane_in_window(picture, name, 0.0, 9.0, slots=8) for name in picture.lanes])
            as_csv(picture, 0.0, picture.now).encode()


def test_a_loss_or_norm_that_is_not_finite_damages_nothing() -> None:
    diverged = encode_line({"t": 3.0, "who": "j", "note": "evaluation", "data": {"round": 1, "loss": math.nan}})[:-1]
    norms = [math.inf, 1.0]
    answer = say(3.0, "in", "Answer", learner="anna", fragment=1, round=2, steps=1, tokens=8, norms=norms)
    picture = pictured(diverged, answer, say(3.0, "out", "Fold", learner="anna", fragment=1, round=2, weight=64.0))
    assert picture.damaged_lines == 0 and picture.evaluations == []
    assert picture.series["merged"].window(0.0, 9.0, most=1).total.tolist() == [8.0]


def pictured(*more: bytes) -> Picture:
    picture = Picture()
    for line in (*LINES, *more):
        picture.take(line)
    return picture


def test_a_round_is_taken_apart() -> None:
    last = pictured().latest[-1]
    phases = (last.quorum_s, last.grace_s, last.grace_spent_s, last.merge_s, last.persist_s, last.publish_s)
    assert phases == pytest.approx((0.5, 0.25, 0.2, 0.1, 0.2, 0.25))
    lane = pictured().lanes["anna"]
    assert {key: lane.measured[key].last for key in ("norm", "cosine", "share", "step_s", "behind")} == {
        "norm": 5.0, "cosine": 0.5, "share": 1.0, "step_s": 1.0, "behind": 0.0,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("more", "now", "live", "state", "words"),
    [
        ((), 3.0, True, "training", "Round 1 of 9"),
        ((), 60.0, True, "stalled", "No round for 57.2 s"),
        ((member(3.0, "anna", "away", "link lost"),), 60.0, True, "stalled", "0 of the 1 learners it needs are live"),
        ((say(3.0, "in", "PersistFailed", round=2, why="disk full"),), 60.0, True, "stalled", "(disk full)"),
        ((), 3.0, False, "stopped", "ends at round 1 of 9"),
        ((say(4.0, "in", "Published", round=9),), 5.0, True, "finished", "last round, 9"),
    ],
)
def test_the_headline_says_how_it_stands(
    more: tuple[bytes, ...], now: float, live: bool, state: str, words: str
) -> None:
    headline = headline_of(pictured(*more), now, live=live)
    assert headline.state == state
    assert words in headline.text


def test_the_headline_says_who_why_and_what_to_do() -> None:
    died = b'{"t":1.0,"who":"launcher","note":"died","data":{"learner":"ben","cause":"SIGKILL","wall_s":104.0}}'
    picture = pictured(
        member(2.8, "ben", "joining", "new"),
        member(3.0, "ben", "away", "link lost"),
        died,
        member(3.1, "clara", "joining", "reborn"),
    )
    troubles = {t.who: t for t in headline_of(picture, 4.0, live=True).troubles}
    assert troubles["ben"].state == "offline" and "SIGKILL" in troubles["ben"].why and "start it" in troubles["ben"].do
    assert troubles["clara"].state == "recovering"
    assert "anna" not in troubles
    gone = pictured(member(2.8, "anna", "left", "goodbye"), member(2.9, "ben", "left", f"{FAILED}ValueError: mine"))
    told = headline_of(gone, 4.0, live=True)
    assert "0 of 1 learners are training" in told.text, "who has left on purpose is not missed, who has failed is"
    assert [(t.who, t.why) for t in told.troubles] == [("ben", "its training failed: ValueError: mine, 1.1 s ago")]
    assert headline_of(picture, 30.0, live=True).troubles[0].why == "alive, but no step for 28.0 s"


def test_whose_work_is_no_longer_merged_is_named_until_it_is_again() -> None:
    def drop(t: float, reason: str) -> bytes:
        return say(t, "out", "Drop", learner="anna", fragment=0, round=2, reason=reason)

    def named(*more: bytes) -> list[str]:
        return [t.why for t in headline_of(pictured(*more), 3.5, live=True).troubles]

    late, nan = [drop(3.0, "late")] * 9, [drop(3.1, "not-finite")] * 3
    again = say(3.2, "out", "RoundClosed", round=1, why="all", participants=["anna"], live=1, grace_spent_s=0.2)
    assert named(*late, *nan[:2]) == [], "one or two may happen, and being late happens to the healthy"
    assert named(*late, *nan) == ["nothing of it was merged since round 1: not-finite"]
    opened = say(3.15, "out", "QuorumMet", round=2, quorum_s=0.5, at_clock=1, live=1, grace_s=0.25)
    assert named(*nan, opened, again.replace(b'"round":1', b'"round":2')) == []


def test_an_alarm_is_shown_with_its_end_where_the_trace_says_it() -> None:
    said = [
        say(3.0, "out", "Alarm", kind="zero-update", text="Nothing moves."),
        say(4.0, "out", "Alarm", kind="direction", text="Against the others."),
        say(9.0, "out", "AlarmOver", kind="direction"),
        say(9.5, "out", "Alarm", kind="went-back", text="Round 3 may be lost."),
        say(9.6, "out", "Alarm", kind="of-another-version", text="Who knows?"),
    ]
    assert alarms_of(pictured(*said)) == [
        {"t": 9.6, "kind": "of-another-version", "text": "Who knows?", "over_t": None, "lasts": True, "count": 1},
        {"t": 9.5, "kind": "went-back", "text": "Round 3 may be lost.", "over_t": 9.5, "lasts": False, "count": 1},
        {"t": 4.0, "kind": "direction", "text": "Against the others.", "over_t": 9.0, "lasts": True, "count": 1},
        {"t": 3.0, "kind": "zero-update", "text": "Nothing moves.", "over_t": None, "lasts": True, "count": 1},
    ]


def test_an_alarm_that_comes_and_goes_is_one_line() -> None:
    def flaps(t: float) -> tuple[bytes, bytes]:
        on = say(t, "out", "Alarm", kind="slow-syncer", text=f"Slow at {t:g}.")
        return on, say(t + 0.5, "out", "AlarmOver", kind="slow-syncer")

    said = [line for k in range(150) for line in flaps(3.0 + k)]
    said.insert(2, say(3.7, "out", "Alarm", kind="direction", text="Against."))
    told = [(each["kind"], each["t"], each["over_t"], each["count"]) for each in alarms_of(pictured(*said))]
    assert told == [("slow-syncer", 152.0, 152.5, 150)], "what was crowded out is gone, what is one line is counted"
    told = [(each["kind"], each["over_t"], each["count"]) for each in alarms_of(pictured(*said[:8], said[0]))]
    assert told == [("slow-syncer", None, 5), ("direction", None, 1)]


def test_a_loss_that_is_not_finite_is_said_until_it_is_again() -> None:
    def loss(t: float, value: float) -> bytes:
        return encode_line({"t": t, "who": "anna", "note": "metrics", "data": {"loss": value}})[:-1]

    def told(picture: Picture) -> tuple[object, ...]:
        (lane,) = window(picture, 0.0, picture.now, slots=10)["lanes"]
        return lane["loss"], lane["spoilt"], head(picture, 3.0, live=True)["spoilt"]

    sound, lost, mended = loss(2.8, 1.25), [loss(2.9, math.nan), loss(2.95, math.inf)], loss(3.0, 1.5)
    assert told(pictured(sound)) == (1.25, False, [])
    picture = pictured(sound, *lost)
    assert picture.damaged_lines == 0
    assert told(picture) == (None, True, ["anna"])
    assert [t.why for t in headline_of(picture, 3.0, live=True).troubles] == ["the loss that it reports is not finite"]
    assert sum(window(picture, 0.0, 3.0, slots=10)["series"]["spoilt"]["sum"]) == 2
    assert told(pictured(sound, *lost, mended)) == (1.5, False, [])
    reborn = say(3.0, "in", "Progress", learner="anna", incarnation=2, clock=2, step_s=1.0, steps=1, tokens=8)
    assert told(pictured(sound, *lost, reborn))[1:] == (False, [])


def test_shares_are_of_the_newest_round_and_add_up_to_one() -> None:
    def merged(round: int, *names: str) -> list[bytes]:
        folds = [say(3.0, "out", "Fold", learner=name, fragment=0, round=round, weight=8.0) for name in names]
        opened = say(3.0, "out", "QuorumMet", round=round, quorum_s=0.5, at_clock=1, live=1, grace_s=0.25)
        closed = {"why": "all", "participants": names, "live": len(names), "grace_spent_s": 0.0}
        return [opened, *folds, say(3.0, "out", "RoundClosed", round=round, **closed)]

    both = [member(2.9, "ben", "joining", "new"), *merged(2, "anna", "ben")]
    for lines, shares in (
        (both, [0.5, 0.5]),
        ([*both, *merged(3, "ben")], [None, 1.0]),
        ([*both, *merged(3, "ben"), *merged(4)], [None, 1.0]),  # nothing was due
    ):
        shown = window(pictured(*lines), 0.0, 9.0, slots=10)["lanes"]
        assert [lane["share"] for lane in shown] == shares


def test_what_was_merged_for_less_is_counted_by_cause() -> None:
    clipping = {"epoch": 1, "round": 1, "fragment": 0, "cause": "weight", "factor": 3.0}
    told = say(3.0, "out", "Send", to="anna", session="", Clipping=clipping)
    shown = window(pictured(told, told), 0.0, 3.0, slots=10)["clippings"]
    assert [(each["reason"], each["count"]) for each in shown] == [("weight", 2)]
    assert "tokens_per_step" in shown[0]["advice"]


def test_more_learners_than_lanes_are_counted_and_memory_stays_bounded() -> None:
    crowd = (member(3.0, f"n{i}", "joining", "new") for i in range(MAX_LANES + 50))
    picture = pictured(*crowd)
    assert len(picture.lanes) == MAX_LANES
    assert head(picture, 3.0, live=True)["crowd"] == 51
    step = {"clock": 2, "step_s": 1.0, "steps": 1, "tokens": 8}
    for incarnation in (1, 1, 2):  # what was said twice counts once, what a new process says counts anew
        picture.take(say(4.0, "in", "Progress", learner="n540", incarnation=incarnation, **step))
    assert head(picture, 4.0, live=True)["tokens"]["consumed"] == 8 + 2 * 8
    assert picture.series["consumed"].window(0.0, 9.0, most=1).total.tolist() == [24.0]


def test_a_learner_and_the_table_of_everything() -> None:
    picture = pictured()
    found = lane_in_window(picture, "anna", 0.0, 3.0, slots=10)
    assert found is not None and found["series"]["norm"]["high"] == [5.0]
    assert lane_in_window(picture, "nobody", 0.0, 3.0, slots=10) is None
    step = {"incarnation": 1, "clock": 1, "step_s": 1.0, "steps": 1, "tokens": 8}
    hostile = pictured(member(3.0, "=cmd()", "joining", "new"), say(3.0, "in", "Progress", learner="=cmd()", **step))
    rows = as_csv(hostile, 0.0, 4.0).splitlines()
    assert rows[0] == ",".join(COLUMNS)
    assert any(row.startswith("anna/norm,") and row.split(",")[3:6] == ["1", "5", "5"] for row in rows)
    assert not any(row.startswith("=") for row in rows) and any(row.startswith("'=cmd()/step_s") for row in rows)
