"""The figures of hand-made runs, by value."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gruppetto.errors import DataError
from gruppetto.protocol import ProtocolSetting
from gruppetto.protocol.actions import MemberChanged, QuorumMet, RoundClosed, Send
from gruppetto.protocol.events import LinkDown, LinkLost
from gruppetto.protocol.messages import Begin
from gruppetto.protocol.units import Epoch, LearnerId, Round
from gruppetto.trace.log import TraceWriter
from gruppetto.trace.measures import Measures, RoundMeasures
from gruppetto.trace.metrics import measure
from gruppetto.trace.schema import core_header

PATH = "trace.jsonl"


def test_a_whole_run(make_world: Callable[..., Any], tmp_path: Path) -> None:
    setting = ProtocolSetting(num_learners=2, min_quorum=2, num_fragments=3, sync_period=3, rounds=20)
    world = make_world("a", "b", setting=setting)
    world.run(25)
    rounds = world.core.round
    world.end()
    found = measure(tmp_path / PATH)
    assert found.replay is not None
    assert found.replay.identical
    assert rounds == 20
    assert sorted(found.rounds) == list(range(1, 21))
    # Both train in lockstep: a round closes at every boundary, with both, at once.
    assert found.participation == 1.0
    assert found.uptime == pytest.approx(1.0)
    assert found.goodput == pytest.approx(1.0)
    assert found.begun_at == 0.0
    assert found.ended_at == pytest.approx(10.0)
    for name in ("a", "b"):
        assert found.learners[name].steps == 25
        assert found.learners[name].step_s == pytest.approx(0.5)
        assert found.learners[name].merged_rounds == 20
        assert found.learners[name].lives == 1
    assert found.tokens["consumed"] == 2 * 25 * 100
    assert found.tokens["open"] == 0
    assert found.tokens["consumed"] == sum(found.tokens[fate] for fate in ("merged", "discarded", "lost"))
    assert found.recorded_tokens == found.tokens
    assert found.balanced
    assert found.rounds[20].consumed_tokens == pytest.approx(2 * 20 * 100, abs=100)
    assert found.rejected == {}


def test_a_learner_that_dies_is_missed_and_comes_back(make_world: Callable[..., Any], tmp_path: Path) -> None:
    world = make_world("a", "b", setting=ProtocolSetting(num_learners=2, num_fragments=3, sync_period=3, rounds=40))
    world.run(10)
    world.kill("b")
    world.run(10)
    world.join("b", session="second life")
    world.run(25)
    world.end()
    found = measure(tmp_path / PATH)
    # From 0 to 20 s; b was away from 5 s to 10 s.
    assert found.ended_at == pytest.approx(20.0)
    assert found.uptime == pytest.approx(1.0)
    assert found.goodput == pytest.approx(35 / 40)
    (recovery,) = found.recoveries
    assert (recovery.learner, recovery.cause, recovery.source) == ("b", "killed", "syncer")
    assert recovery.seconds == pytest.approx(5.5), "until its first step is merged"
    assert found.learners["b"].lives == 2
    assert found.learners["b"].steps == 10 + 25
    assert found.tokens["lost"] > 0
    assert found.tokens["consumed"] == sum(found.tokens[fate] for fate in ("merged", "discarded", "lost"))


def test_everybody_gone_is_downtime(make_world: Callable[..., Any], tmp_path: Path) -> None:
    world = make_world("a", setting=ProtocolSetting(num_fragments=2, sync_period=2, overlap_steps=1, rounds=20))
    world.run(10)
    world.kill("a")
    world.now += 5.0
    world.join("a", session="second life")
    world.run(12)
    world.end()
    found = measure(tmp_path / PATH)
    assert found.ended_at == pytest.approx(15.0)
    assert found.uptime == pytest.approx(10 / 15)
    assert found.goodput == pytest.approx(10 / 15)


def test_a_learner_that_leaves_on_purpose_is_not_allocated_any_more(
    make_world: Callable[..., Any], tmp_path: Path
) -> None:
    world = make_world("a", "b")
    world.run(10)
    world.leave("b")
    world.run(12)
    world.end()
    found = measure(tmp_path / PATH)
    assert found.goodput == pytest.approx(1.0)
    assert found.learners["b"].gone_at == pytest.approx(5.0)
    assert found.recoveries == []


def test_a_restart_of_the_syncer_goes_on_with_the_time_and_the_books(
    make_world: Callable[..., Any], tmp_path: Path
) -> None:
    first = make_world("a", "b")
    first.run(8)
    first.trace.close()
    second = make_world("a", "b", epoch=2, state=first.last_persisted)
    second.run(20)
    second.end()
    found = measure(tmp_path / PATH)
    assert sorted(found.rounds) == list(range(1, 21))
    assert found.wall_s == pytest.approx(4.0 + 10.0)
    assert found.header["epoch"] == 1
    assert found.tokens == dict(second.core.ledger.in_tokens())
    assert {r.cause for r in found.recoveries} == {"killed"}


def test_a_newcomer_and_what_it_says_of_its_state(make_world: Callable[..., Any], tmp_path: Path) -> None:
    """Nobody who is there from the beginning has to recover; whoever joins later counts from its Hello."""
    world = make_world("a", "b")
    world.run(6)
    world.join("c")
    account = {"source": "peer", "donor": "a", "seconds": 0.2, "payload_bytes": 640, "text": ""}
    world.trace.note(world.now, "c", "recovery", **account)
    world.trace.note(world.now, "syncer", "recovery", found=[], unseen=1, damaged=[])  # another thing by that name
    world.run(2)
    world.tell("syncer", LinkLost(learner=LearnerId("c"), incarnation=world.learners["c"].incarnation))
    world.learn("c", LinkDown())
    world.run(2)
    world.tell("syncer", world.learners["c"].hello())
    world.run(12)
    world.end()
    joined, returned = measure(tmp_path / PATH).recoveries
    assert (joined.learner, joined.cause, joined.source) == ("c", "joined", "peer a")
    assert (joined.search_s, joined.payload_bytes) == (0.2, 640)
    assert joined.seconds == pytest.approx(0.5)
    assert (returned.cause, returned.source, returned.search_s) == ("link lost", "own memory", None)
    assert returned.seconds == pytest.approx(1.5)


def test_the_time_between_two_lives_counts(tmp_path: Path) -> None:
    core = core_header(ProtocolSetting(), run_id="r", layout_hash="l", epoch=Epoch(1))
    for started_at in (1000.0, 1060.0):
        with TraceWriter(tmp_path / PATH, {"started_at": started_at, "name": "tour"}) as trace:
            trace.header({**core, "numel": 30})
            trace.note(5.0, "syncer", "weather")
            trace.actions(7.0, "syncer", [MemberChanged(learner=LearnerId("a"), state="live", why="synchronised")])
            trace.actions(9.0, "syncer", [MemberChanged(learner=LearnerId("a"), state="away", why="link lost")])
    found = measure(tmp_path / PATH)
    # Records from 7 s to 9 s; the second process began 60 s after the first.
    assert [round(t, 6) for t, _ in found.learners["a"].states] == [0.0, 2.0, 60.0, 62.0]
    assert (found.header["name"], found.header["numel"]) == ("tour", 30)


def test_deaths_have_their_place_in_the_time_of_the_run(tmp_path: Path) -> None:
    core = core_header(ProtocolSetting(), run_id="r", layout_hash="l", epoch=Epoch(1))
    with TraceWriter(tmp_path / PATH, {"started_at": 1000.0}) as trace:
        trace.header(core)
        trace.actions(7.0, "syncer", [MemberChanged(learner=LearnerId("a"), state="live", why="synchronised")])
    with TraceWriter(tmp_path / "deaths.jsonl", {}) as notes:
        notes.note(31.0, "launcher", "died", learner="a", cause="SIGKILL", wall_s=1030.0)
    found = measure(tmp_path / PATH, [tmp_path / "deaths.jsonl"])
    (death,) = found.deaths
    assert (death.process, death.cause, found.since_it_began(death)) == ("a", "SIGKILL", 23.0)


def test_training_losses_are_kept_with_their_round(make_world: Callable[..., Any], tmp_path: Path) -> None:
    world = make_world("a")
    world.run(3)
    world.trace.note(world.now, "a", "metrics", steps=3, loss=2.5)
    world.trace.note(world.now, "a", "metrics", steps=3, loss=None)
    world.trace.close()
    assert measure(tmp_path / PATH).train_losses == [(3, "a", 2.5)]


def test_an_unfinished_run_has_open_tokens_and_no_end(make_world: Callable[..., Any], tmp_path: Path) -> None:
    world = make_world("a", "b")
    world.run(5)
    world.trace.close()
    found = measure(tmp_path / PATH)
    assert found.ended_at is None
    assert found.window == (0.0, pytest.approx(2.5))
    assert found.tokens["open"] > 0
    assert found.tokens["consumed"] == sum(n for fate, n in found.tokens.items() if fate != "consumed")
    assert found.recorded_tokens is None
    assert found.up_bytes is None


def test_books_that_do_not_agree_are_seen(make_world: Callable[..., Any], tmp_path: Path) -> None:
    world = make_world("a", "b")
    world.run(25)
    world.trace.note(world.now, "syncer", "ledger", consumed=1, merged=1, discarded=0, lost=0, open=0)
    world.trace.close()
    found = measure(tmp_path / PATH)
    assert found.recorded_tokens == dict.fromkeys(("discarded", "lost", "promised", "open"), 0) | {
        "consumed": 1,
        "merged": 1,
    }
    assert found.tokens["merged"] > 1 and found.balanced


def test_the_phases_of_a_round_by_value(tmp_path: Path) -> None:
    header = core_header(ProtocolSetting(), run_id="r", layout_hash="l", epoch=Epoch(1))
    a = LearnerId("a")
    with TraceWriter(tmp_path / PATH, {**header, "started_at": 1000.0}) as trace:
        trace.actions(2.0, "syncer", [MemberChanged(learner=a, state="live", why="synchronised")])
        trace.actions(3.0, "syncer", [Send(to=a, session="s", message=Begin(epoch=Epoch(1), round=Round(0)))])
        met = QuorumMet(round=Round(1), quorum_s=0.25, at_clock=3, live=4, grace_s=0.75)
        trace.actions(4.0, "syncer", [met])
        closed = RoundClosed(round=Round(1), why="so", participants=(a,), live=4, grace_spent_s=0.5)
        trace.actions(4.5, "syncer", [closed])
        for t, name in ((5.0, "OuterStepped"), (5.75, "Persisted"), (7.0, "Published")):
            trace._write(t, {"t": t, "who": "syncer", "in": name, "data": {"round": 1}})
    found = measure(tmp_path / PATH)
    (r,) = found.rounds.values()
    assert (r.quorum_s, r.grace_s, r.grace_spent_s) == (0.25, 0.75, 0.5)
    assert (r.merge_s, r.persist_s, r.publish_s) == (0.5, 0.75, 1.25)
    assert (r.asked_at, r.closed_at, r.done_at) == (2.0, 2.5, 5.0)
    assert (r.at_clock, r.live, r.participants, r.due) == (3, 4, ("a",), 1)
    assert found.participation == 0.25
    assert found.begun_at == 1.0
    # What was recorded is not what a core would have decided, and that is said.
    assert found.replay is not None
    assert not found.replay.identical


def test_evaluations_and_traffic_come_from_notes_also_of_other_files(
    make_world: Callable[..., Any], tmp_path: Path
) -> None:
    world = make_world("a", "b")
    world.run(3)
    for total in (100, 300):
        world.trace.note(world.now, "syncer", "traffic", up=total, down=2 * total)
    world.trace.note(world.now, "stranger", "weather", sun=True)
    world.trace.close()
    with TraceWriter(tmp_path / "evaluation.jsonl", {}) as notes:
        for round, loss in ((5, 2.5), (0, 5.0)):
            notes.note(0.0, "judge", "evaluation", round=round, loss=loss, perplexity=9.0)
    found = measure(tmp_path / PATH, [tmp_path / "evaluation.jsonl"])
    assert [(e.round, e.loss) for e in found.evaluations] == [(0, 5.0), (5, 2.5)]
    assert (found.up_bytes, found.down_bytes) == (300, 600)
    # A second life counts its traffic from zero.
    with TraceWriter(tmp_path / PATH, {"started_at": 5.0}) as again:
        again.note(0.0, "syncer", "traffic", up=50, down=5)
    found = measure(tmp_path / PATH)
    assert (found.up_bytes, found.down_bytes) == (350, 605)


def test_a_note_that_is_none_is_refused(tmp_path: Path) -> None:
    with TraceWriter(tmp_path / PATH, {}) as trace:
        trace.note(0.0, "judge", "evaluation", round=1)
    with pytest.raises(DataError, match="is no note of evaluation"):
        measure(tmp_path / PATH)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"live":2', '"live":"many"'),
        ('"grace_spent_s":', '"grace_spent_s":"soon","x":'),
        ('"participants":["a","b"]', '"participants":7'),
        ('"quorum_s":', '"quorum_s":[],"x":'),
        ('"state":"joining"', '"state":7'),
    ],
)
def test_a_decision_that_is_none_is_refused(make_world: Callable[..., Any], tmp_path: Path, old: str, new: str) -> None:
    world = make_world("a", "b", setting=ProtocolSetting(num_learners=2, min_quorum=2, num_fragments=3, sync_period=3))
    world.run(5)
    world.end()
    text = (tmp_path / PATH).read_text(encoding="utf-8")
    assert old in text
    (tmp_path / PATH).write_text(text.replace(old, new), encoding="utf-8")
    with pytest.raises(DataError, match=r"trace.jsonl:\d+"):
        measure(tmp_path / PATH)


@pytest.mark.parametrize("header", [{"started_at": "noon"}, {"numel": "many"}])
def test_a_header_without_figures_is_refused(tmp_path: Path, header: dict[str, object]) -> None:
    TraceWriter(tmp_path / PATH, header).close()
    with pytest.raises(DataError, match="the header's figures are no numbers"):
        measure(tmp_path / PATH)


def test_a_core_that_cannot_be_is_refused(tmp_path: Path) -> None:
    header = core_header(ProtocolSetting(), run_id="r", layout_hash="l", epoch=Epoch(1))
    TraceWriter(tmp_path / PATH, header).close()
    text = (tmp_path / PATH).read_text(encoding="utf-8")
    for huge in (2**62, 2**70):
        (tmp_path / PATH).write_text(text.replace('"num_fragments":24', f'"num_fragments":{huge}'), encoding="utf-8")
        with pytest.raises(DataError):
            measure(tmp_path / PATH)


def test_an_evaluation_said_twice_counts_once(tmp_path: Path) -> None:
    with TraceWriter(tmp_path / PATH, {}) as trace:
        for t in (0.0, 5.0):
            trace.note(t, "judge", "evaluation", round=0, loss=4.0, perplexity=54.6)
    assert len(measure(tmp_path / PATH).evaluations) == 1


def test_a_round_without_anybody_is_a_share_of_nothing() -> None:
    empty = RoundMeasures(round=1, asked_at=0.0, quorum_s=0.0, grace_s=0.0, due=1, at_clock=0)
    assert Measures(rounds={1: empty}).participation == 0.0
