"""A new life that does not know, or has not, everything the last one published."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gruppetto.protocol import ProtocolSetting, SyncerCore
from gruppetto.protocol.actions import Alarm, AlarmKind, Persist, Publish, Send
from gruppetto.protocol.events import Persisted, Published, Tick
from gruppetto.protocol.ledger import Ledger
from gruppetto.protocol.messages import Applied, Hello, Welcome
from gruppetto.protocol.recovery import republished, unseen_rounds
from gruppetto.protocol.schedule import Schedule
from gruppetto.protocol.state import MemberState, OlderValue, SyncerState
from gruppetto.protocol.units import NEVER, Epoch, Fragment, LearnerId, Round, Version

A = LearnerId("a")
SETTING = ProtocolSetting(num_learners=1, num_fragments=4, sync_period=4, overlap_steps=1)


def state(round: int = 8, *, merged: int = 40, **more: object) -> SyncerState:
    """Round 8 is closed, and 10 tokens are merged in each fragment; learner a has 5 open tokens."""
    ledger = Ledger(num_fragments=4)
    ledger.open_account(A)
    ledger.trained(A, 15)
    for p in range(4):
        ledger.merged(A, Fragment(p), 10, 10)
    assert ledger.totals.merged == merged
    fields: dict[str, object] = {
        "run_id": "r",
        "layout_hash": "x",
        "epoch": Epoch(3),
        "round": Round(round),
        "versions": tuple(map(Version, (8, 5, 6, 7))),
        "members": (MemberState(learner=A, session="s", incarnation=1, slot=0, gone=False),),
        "cursors": ((0, 1),),
        "ledger": ledger,
    }
    return SyncerState(**{**fields, **more})  # type: ignore[arg-type]


def core(setting: ProtocolSetting = SETTING, state: SyncerState = state(), **more: object) -> SyncerCore:  # noqa: B008
    return SyncerCore(setting, run_id="r", layout_hash="x", epoch=Epoch(4), state=state, **more)  # type: ignore[arg-type]


def only(actions: list[object], kind: type) -> object:
    (found,) = (action for action in actions if isinstance(action, kind))
    return found


def test_when_all_is_known_and_good_nothing_is_republished() -> None:
    syncer = core()
    assert syncer.published == (8, 5, 6, 7) and syncer.step(0.0, Tick()) == []


def test_unseen_rounds_are_left_out_and_what_was_due_in_them_gets_a_new_name() -> None:
    syncer = core(unseen=2)
    actions = syncer.step(0.0, Tick())
    persist = only(actions, Persist)
    assert isinstance(persist, Persist)
    assert (persist.round, persist.fragments) == (11, (1, 2)) and persist.state.versions == (8, 11, 11, 7)
    alarm = only(actions, Alarm)
    assert isinstance(alarm, Alarm) and alarm.kind is AlarmKind.WENT_BACK
    assert "rounds 9 to 10 may be lost; fragments [1, 2] go on" in alarm.text
    # A newcomer is told nothing that may be called otherwise in a moment.
    hello = Hello(learner=LearnerId("b"), session="t", layout_hash="x")
    welcome = only(syncer.step(0.1, hello), Send).message  # type: ignore[attr-defined]
    assert isinstance(welcome, Welcome) and welcome.versions == (8, NEVER, NEVER, 7) and welcome.round == 8
    publish = only(syncer.step(0.2, Persisted(round=Round(11))), Publish)
    assert isinstance(publish, Publish) and publish.message.versions == ((1, 11), (2, 11))
    syncer.step(0.3, Published(round=Round(11)))
    assert syncer.published == (8, 11, 11, 7) and not syncer.republishing


def test_a_damaged_fragment_takes_its_tokens_with_it() -> None:
    syncer = core(damaged=(OlderValue(fragment=Fragment(3), version=Version(3), merged=4),))
    persist = only(syncer.step(0.0, Tick()), Persist)
    assert isinstance(persist, Persist) and (persist.round, persist.fragments) == (9, (3,))
    books = persist.state.ledger
    assert books.merged_in == [10, 10, 10, 4]
    assert (books.totals.merged, books.totals.lost) == (34, 6) and books.balances()


@pytest.mark.parametrize(("round", "unseen"), [(20, 0), (19, 1), (18, 5)])
def test_behind_the_last_round_the_run_is_finished(round: int, unseen: int) -> None:
    damaged = (OlderValue(fragment=Fragment(0), version=Version(4), merged=0),)
    setting = replace(SETTING, rounds=20)
    syncer = core(setting, state(round), unseen=unseen, damaged=damaged)
    syncer.step(0.0, Tick())
    publish = only(syncer.step(0.1, Persisted(round=Round(round + unseen + 1))), Publish)
    assert isinstance(publish, Publish) and publish.message.finished
    syncer.step(0.2, Published(round=Round(round + unseen + 1)))
    assert syncer.waiting_for == "nothing: the run is finished"


def test_a_disk_that_refuses_delays_the_republication_and_nothing_else() -> None:
    from gruppetto.protocol.events import PersistFailed

    syncer = core(unseen=1)
    syncer.step(0.0, Tick())
    assert not any(isinstance(a, Publish) for a in syncer.step(0.1, PersistFailed(round=Round(10), why="full")))
    assert syncer.wake_at is not None
    assert isinstance(only(syncer.step(syncer.wake_at, Tick()), Persist), Persist)


@given(
    num_fragments=st.integers(1, 9),
    sync_period=st.integers(1, 9),
    round=st.integers(0, 40),
    unseen=st.integers(0, 20),
    damaged=st.sets(st.integers(0, 8)),
)
def test_no_version_of_an_unseen_round_stays_the_newest(
    num_fragments: int, sync_period: int, round: int, unseen: int, damaged: set[int]
) -> None:
    schedule = Schedule(num_fragments=num_fragments, sync_period=sync_period)
    older = [OlderValue(fragment=Fragment(p), version=Version(0), merged=0) for p in damaged if p < num_fragments]
    new, again = republished(schedule, Round(round), unseen=unseen, damaged=older)
    published = {p for t in range(round + 1, round + unseen + 1) for p in schedule.due(Round(t))}
    assert set(again) == published | {value.fragment for value in older}
    assert new == (round + unseen + 1 if unseen or older else round)


@given(st.integers(0, 9), st.lists(st.integers(0, 20), max_size=4), st.none() | st.integers(0, 9))
def test_the_next_number_is_beyond_every_commit_known_and_the_one_in_flight(
    round: int, until: list[int], in_flight: int | None
) -> None:
    first_free = round + unseen_rounds(Round(round), until=map(Round, until), in_flight=in_flight) + 1
    assert first_free > max([round, *until])
    if in_flight is not None:
        # The commit in flight is of the next round at most, and allows so many more.
        assert first_free > max([round, *until]) + 1 + in_flight


# ── the books ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_what_was_open_when_rounds_were_lost_is_lost_if_it_is_not_merged() -> None:
    ledger = state().ledger.copy()
    ledger.came_into_doubt(Fragment(1), Version(11))
    ledger.applied(A, Applied(fragment=Fragment(1), version=Version(9), at_tokens=18))  # of an unseen round
    ledger.applied(A, Applied(fragment=Fragment(1), version=Version(11), at_tokens=20))
    assert (ledger.totals.lost, ledger.totals.discarded) == (10, 0) and ledger.balances()
    ledger.applied(A, Applied(fragment=Fragment(1), version=Version(15), at_tokens=22))
    assert (ledger.totals.lost, ledger.totals.discarded) == (10, 2) and ledger.balances()


# ── now and then ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_reserve_is_one_less_than_the_interval() -> None:
    assert SETTING.reserve == 0
    assert replace(SETTING, durability="interval", durability_rounds=8).reserve == 7
    assert replace(SETTING, durability="interval", durability_rounds=1).reserve == 0
