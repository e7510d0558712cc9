"""Several rounds in flight: who is asked when, in which order rounds close, and what the books hold meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gruppetto.errors import SettingError
from gruppetto.protocol.actions import Checkpoint, CheckpointClosed, Persist, Publish, QuorumMet, RoundClosed, Send
from gruppetto.protocol.events import (
    CheckpointRecorded,
    OuterStepped,
    Persisted,
    Published,
    Stop,
    TakeCheckpoint,
)
from gruppetto.protocol.invariants import Observer
from gruppetto.protocol.messages import Ask, Deferred, Marked, Rejection
from gruppetto.protocol.round import Phase
from gruppetto.protocol.settings import ProtocolSetting
from gruppetto.protocol.state import SyncerState
from gruppetto.protocol.syncer import SyncerCore
from gruppetto.protocol.units import LearnerId, Round
from gruppetto.sim import LearnerSpec, Link, Pace, SyncerCosts, World

Make = Callable[..., Any]
FOUR = {"num_fragments": 4, "sync_period": 4, "overlap_steps": 3}


@pytest.fixture
def flying(scripted: Make) -> Make:
    """Two learners at D = 2, fragment t mod 4 due at round t, begun; a window is open from the first round on."""

    def make(*, in_flight: int = 2, state: SyncerState | None = None, epoch: int = 1, **setting: Any) -> Any:
        dials = {**FOUR, "num_learners": 2, "start_learners": 2, "rounds_in_flight": in_flight, **setting}
        s = scripted(state=state, epoch=epoch, **dials)
        if state is None:
            s.begin("a", "b")
            s.core.measured.quorum_s = s.core.measured.sync_s = 0.0  # so that there is a window
        return s

    return make


def rounds_asked(s: Any, of: str = "a") -> list[int]:
    return [ask.round for ask in s.sent(Ask, of)]


def closed(s: Any) -> list[tuple[int, tuple[str, ...]]]:
    return [(c.round, c.participants) for c in s.said(RoundClosed)]


def step(s: Any, clock: int, *names: str) -> None:
    """Everybody makes a step of a second."""
    s.now += 1.0
    for name in names or ("a", "b"):
        s.progress(name, clock, tokens=10 * clock)


def test_the_next_round_asks_while_the_first_waits(flying: Make) -> None:
    s = flying()
    step(s, 1)
    step(s, 2)
    assert rounds_asked(s) == [1, 2] and not closed(s)
    assert [opened.round for opened in s.core.open_rounds] == [1, 2]
    s.answer("b", 2, 2)
    s.answer("a", 2, 2)
    assert not closed(s), "the second has all its answers, and waits for the first"
    s.answer("a", 1, 1)
    s.answer("b", 1, 1)
    assert closed(s) == [(1, ("a", "b")), (2, ("a", "b"))]
    assert [p.message.round for p in s.said(Publish)] == [0, 1, 2]


def test_with_one_in_flight_it_does_not(flying: Make) -> None:
    s = flying(in_flight=1)
    step(s, 1)
    step(s, 2)
    assert rounds_asked(s) == [1]


@pytest.mark.parametrize("in_flight", [1, 2, 3])
def test_the_fleet_has_moved_on_when_it_is_so_many_steps_further(flying: Make, in_flight: int) -> None:
    s = flying(in_flight=in_flight)
    for clock in range(1, in_flight + 1):
        step(s, clock, "b")
        s.answer("b", clock, clock)
        assert not closed(s), clock
    assert rounds_asked(s) == list(range(1, in_flight + 1))
    s.now += 0.5
    s.progress("b", in_flight + 1)
    assert closed(s) == [(1, ("b",))] and s.said(RoundClosed)[0].why.startswith("the fleet moved on")


def test_the_window_is_as_long_as_the_slack_and_at_most_so_many_steps(flying: Make) -> None:
    for in_flight, window_s in ((1, 1.0), (2, 2.0), (3, 2.4)):
        s = flying(in_flight=in_flight)
        s.core.measured.factor = 1e-9
        step(s, 1)
        assert s.said(QuorumMet)[-1].grace_s == pytest.approx(window_s)


def test_what_a_round_waits_for_the_one_before_it_is_nobodys_time(flying: Make) -> None:
    s = flying()
    s.core.measured.factor = 1.0
    step(s, 1)
    assert s.said(QuorumMet)[-1].quorum_s == 1.0
    step(s, 2)
    assert s.said(QuorumMet)[-1].quorum_s == 0.0, "the first was in flight"
    for name, round in (("a", 2), ("b", 2), ("a", 1), ("b", 1)):
        s.now += 0.1
        s.answer(name, round, round)
    assert closed(s) == [(1, ("a", "b")), (2, ("a", "b"))]
    assert s.core.measured.sync_s == 0.0, "from its own verdict to its own publication"
    step(s, 3)
    assert s.said(QuorumMet)[-1].quorum_s == 1.0, "nothing was"


def test_late_for_one_round_and_in_time_for_the_next(flying: Make) -> None:
    s = flying(grace=False)
    step(s, 1)
    s.instant = False
    s.answer("a", 1, 1)
    s.now += 0.1
    step(s, 2)
    assert rounds_asked(s, "b") == [1, 2]
    s.instant = True
    s.finish_folds()
    assert closed(s) == [(1, ("a",))]
    s.answer("b", 1, 1)
    assert s.sent(Rejection, "b")[-1].reason == "late"
    s.answer("b", 2, 2)
    assert closed(s)[-1] == (2, ("b",))


def test_a_deferral_is_of_its_own_round(flying: Make) -> None:
    s = flying()
    step(s, 1)
    step(s, 2)
    late = Deferred(
        learner=LearnerId("b"), incarnation=s.incarnation("b"), epoch=s.core.epoch, round=Round(2), expected_s=60.0
    )
    s.feed(late)
    first, second = s.core.open_rounds
    assert not first.expected_at and second.expected_at == {"b": s.now + 60.0}


def test_a_newcomer_is_asked_for_all_that_is_open(flying: Make) -> None:
    s = flying(in_flight=3)
    step(s, 1)
    step(s, 2)
    s.hello("c")
    s.synchronise("c")
    assert rounds_asked(s, "c") == [1, 2]
    s.hello("a", versions=s.core.published)  # its link broke
    s.synchronise("a", clock=2)
    assert rounds_asked(s, "a") == [1, 2, 1, 2]


def test_nothing_opens_behind_the_last_round(flying: Make) -> None:
    s = flying(in_flight=3, rounds=2)
    for clock in range(1, 6):
        step(s, clock)
    assert rounds_asked(s) == [1, 2]
    for round in (1, 2):
        s.answer("a", round, round)
        s.answer("b", round, round)
    assert s.core.phase is Phase.FINISHED and not s.core.open_rounds
    assert s.core.ledger.promised_total() == 0


def test_a_commit_holds_nothing_of_what_is_in_flight(flying: Make) -> None:
    """And the next life asks for it again: its tokens are open once more."""
    s = flying()
    step(s, 1)
    step(s, 2)
    s.answer("a", 2, 2, total_tokens=20)
    s.answer("a", 1, 1, total_tokens=10)
    s.instant = False
    s.answer("b", 1, 1, total_tokens=10)
    s.instant = True
    s.finish_folds()
    state = s.durable
    assert state is not None and state.round == 1
    assert state.ledger.totals.merged == 20 and state.ledger.promised_total() == 10
    again = flying(state=state, epoch=2)
    assert again.core.ledger.promised_total() == 0 and not again.core.open_rounds
    for name in ("a", "b"):
        again.hello(name, versions=again.core.published, incarnation=1, run_id="run")
        again.synchronise(name, clock=2, at_tokens=10)
    step(again, 2)
    step(again, 3)
    assert rounds_asked(again) == [2, 3]
    again.answer("a", 2, 2, total_tokens=20)
    assert closed(again) == [(2, ("a",))] and again.core.ledger.merged_by["a"] == 20


def test_a_stop_gives_up_all_that_is_in_flight(flying: Make) -> None:
    s = flying()
    step(s, 1)
    step(s, 2)
    s.answer("a", 1, 1, total_tokens=10)
    s.answer("b", 2, 2, total_tokens=20)
    s.feed(Stop())
    assert s.core.stopped and not s.core.open_rounds
    assert s.durable is not None and s.durable.round == 0 and s.durable.ledger.totals.merged == 0
    assert s.durable.ledger.promised_total() == 20


def test_a_checkpoint_does_not_wait_for_a_pause_that_never_comes(flying: Make) -> None:
    s = flying()
    step(s, 1)
    step(s, 2)
    s.answer("a", 2, 2, total_tokens=20)
    s.feed(TakeCheckpoint(mark="m"))
    (cut,) = s.said(Checkpoint)
    assert cut.round == 0 and cut.state.ledger.totals.merged == 0
    s.feed(CheckpointRecorded(mark="m"))
    for name in ("a", "b"):
        life = {"learner": LearnerId(name), "incarnation": s.incarnation(name)}
        s.feed(Marked(**life, epoch=s.core.epoch, mark="m", ok=True, text="here"))
    assert [c.round for c in s.said(CheckpointClosed)] == [0]


def test_the_next_ones_ask_while_the_first_is_merged_and_written(flying: Make) -> None:
    s = flying(grace=False)
    s.instant = False
    step(s, 1)
    s.answer("a", 1, 1)
    s.finish_folds()
    assert s.core.phase is Phase.MERGING
    step(s, 2)
    assert rounds_asked(s) == [1, 2]
    s.feed(OuterStepped(round=Round(1)))
    step(s, 3)
    assert s.core.phase is Phase.PERSISTING and rounds_asked(s) == [1, 2], "two are open"
    s.feed(Persisted(round=Round(1)))
    s.feed(Published(round=Round(1)))
    assert rounds_asked(s) == [1, 2, 3] and s.core.phase is Phase.GRACE
    order = [type(a).__name__ for a in s.log if isinstance(a, Persist | Publish | RoundClosed)]
    assert order[-3:] == ["RoundClosed", "Persist", "Publish"]
    assert not any(isinstance(a, Send) and isinstance(a.message, Rejection) for a in s.log)


def test_more_than_a_period_is_refused() -> None:
    """A fragment would be due again while its last round is open."""
    with pytest.raises(SettingError, match="rounds_in_flight is 5 but sync_period is 4; use sync_period or less"):
        ProtocolSetting(**{**FOUR, "rounds_in_flight": 5})
    assert ProtocolSetting(**{**FOUR, "rounds_in_flight": 4}).rounds_in_flight == 4


class Watched(SyncerCore):
    """The shipping core under the eyes of the invariants."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.observer, self.most_open = Observer(), 0

    def step(self, now: float, event: Any) -> Any:
        actions = super().step(now, event)
        self.observer.saw(self, event, actions)
        self.most_open = max(self.most_open, len(self.open_rounds))
        return actions


latencies = st.sampled_from([0.02, 0.3, 0.7, 1.3, 2.9])


@settings(max_examples=25)
@given(
    in_flight=st.integers(1, 4),
    latency_s=st.lists(latencies, min_size=1, max_size=4),
    costs=st.sampled_from([SyncerCosts(), SyncerCosts(merge_s=0.3, persist_s=0.4), SyncerCosts(merge_s=1.5)]),
    quorum=st.integers(1, 4),
    period=st.sampled_from([(4, 4), (4, 8), (9, 4)]),
)
def test_rounds_close_in_order_whatever_is_how_far(
    in_flight: int, latency_s: list[float], costs: SyncerCosts, quorum: int, period: tuple[int, int]
) -> None:
    """Few are open at once, nobody's fragment is in two of them, and those who are near enough are merged."""
    fragments, sync_period = period
    setting = ProtocolSetting(
        num_learners=len(latency_s),
        min_quorum=min(quorum, len(latency_s)),
        num_fragments=fragments,
        sync_period=sync_period,
        overlap_steps=3,
        rounds_in_flight=in_flight,
    )
    specs = [
        LearnerSpec(name=f"l{i}", pace=Pace(step_s=1.0, jitter=0.1), link=Link(latency_s=latency))
        for i, latency in enumerate(latency_s)
    ]
    world = World(setting, specs, seed=0, costs=costs, make_syncer=Watched)
    world.run(until=60.0)
    rounds = [each.round for _, each in world.closed]
    assert rounds == list(range(1, len(rounds) + 1)) and rounds
    assert isinstance(world.syncer, Watched) and world.syncer.most_open <= in_flight
