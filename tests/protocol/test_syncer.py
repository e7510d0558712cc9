"""The syncer's core, one rule a test."""

from __future__ import annotations

from typing import Any

import pytest

from gruppetto.protocol.actions import (
    Alarm,
    AlarmKind,
    AlarmOver,
    Drop,
    Fold,
    Persist,
    Publish,
    QuorumMet,
    RoundClosed,
    Send,
)
from gruppetto.protocol.events import (
    Folded,
    LinkLost,
    OuterStepped,
    Persisted,
    PersistFailed,
    Published,
    Settle,
    Tick,
)
from gruppetto.protocol.messages import (
    Announcement,
    Applied,
    Ask,
    Begin,
    Deferred,
    Goodbye,
    Refusal,
    RefusalReason,
    Rejection,
    RejectionReason,
    Welcome,
)
from gruppetto.protocol.round import Phase
from gruppetto.protocol.units import UNBORN, Epoch, Fragment, Incarnation, LearnerId, Round, Version

# ── from nothing to the first round ─────────────────────────────────────────────────────────────────────────────


def test_the_first_learner_seeds_and_all_pull_before_anything_begins(scripted: Any) -> None:
    s = scripted(num_learners=2, start_learners=2)
    s.hello("a")
    s.hello("b")
    assert s.welcome("a").seed
    assert not s.welcome("b").seed
    assert s.welcome("b").versions == ()
    s.seed("a")
    assert [a.message.versions for a in s.said(Publish)] == [((0, 0),)]
    assert s.said(Publish)[0].to == ("a", "b")
    s.synchronise("a")
    assert not s.sent(Begin)
    assert s.core.waiting_for == "learners to begin: 1/2 are ready"
    s.synchronise("b")
    assert len(s.sent(Begin)) == 2
    assert s.core.phase is Phase.QUORUM


def test_another_learner_seeds_when_the_first_is_lost(scripted: Any) -> None:
    s = scripted()
    s.hello("a")
    s.hello("b")
    s.feed(LinkLost(learner=LearnerId("a"), incarnation=Incarnation(1)))
    assert [w.seed for w in s.sent(Welcome, "b")] == [False, True]
    s.seed("b")
    assert s.core.published == (0,)


def test_who_has_no_weights_cannot_seed(scripted: Any) -> None:
    s = scripted()
    s.hello("a", can_seed=False)
    assert [r.reason for r in s.sent(Refusal)] == [RefusalReason.CANNOT_SEED]


def test_a_start_waits_for_the_others_only_so_long(scripted: Any) -> None:
    s = scripted(num_learners=4, start_learners=4, start_timeout_s=5.0)
    s.begin("a")
    assert s.core.wake_at == 5.0
    s.wait(5.0)
    assert len(s.sent(Begin)) == 1


def warmed(scripted: Any) -> Any:
    """Two learners, three rounds made with both, so that all durations are measured; round 4 of fragment 0 has asked.

    The window is 0.8 · (2·1 s − (1 s + 0 s)) = 0.8 s.
    """
    s = scripted(overlap_steps=2, num_fragments=4, sync_period=4)
    s.begin("a", "b")
    for round in (1, 2, 3, 4):
        s.now += 1.0
        s.progress("a", round, tokens=10 * round)
        s.progress("b", 0, tokens=10 * round)
        if round < 4:
            fragment = s.core.open_round.due[0]
            s.answer("a", round, fragment)
            s.answer("b", round, fragment)
    assert s.core.open_round.round == 4
    return s


def test_patience_below_the_quorum_asks_for_no_wake_that_changes_nothing(scripted: Any) -> None:
    s = scripted(min_quorum=2, start_timeout_s=5.0)
    s.begin("a")
    s.wait(6.0)
    assert s.core.wake_at is None or s.core.wake_at > s.now
    s.hello("b")
    s.synchronise("b")
    assert s.sent(Begin)


# ── rounds ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_kth_fastest_sets_the_pace(scripted: Any) -> None:
    s = scripted(min_quorum=2)
    s.begin("a", "b", "c")
    s.progress("a", 1)
    assert not s.said(QuorumMet)
    s.progress("b", 1)
    assert [(q.round, q.at_clock, q.live) for q in s.said(QuorumMet)] == [(1, 2, 3)]
    assert [(a.round, a.fragments) for a in s.sent(Ask)] == [(1, (0,))] * 3


def test_everybody_answers_and_the_round_closes_with_all(scripted: Any) -> None:
    s = warmed(scripted)
    s.answer("a", 4)
    assert s.core.open_round.round == 4
    s.answer("b", 4)
    closed = s.said(RoundClosed)[-1]
    assert (closed.participants, closed.why) == (("a", "b"), "everybody answered: 2 answers")
    assert s.core.published == (4, 1, 2, 3)
    assert s.core.open_round.round == 5


def test_weights_are_tokens_squared_over_steps(scripted: Any) -> None:
    s = scripted()
    s.begin("a", "b")
    s.progress("a", 1)
    s.answer("a", 1, tokens=100, steps=4, total_tokens=100)
    assert s.said(Fold)[0].weight == 2500.0


def test_a_round_never_closes_with_fewer_answers_than_the_quorum(scripted: Any) -> None:
    s = scripted(min_quorum=2)
    s.begin("a", "b", "c")
    for name in "ab":
        s.progress(name, 1)
    s.answer("a", 1)
    for name in "abc":
        s.progress(name, 2)
    s.wait(1.0)
    assert not s.said(RoundClosed)
    s.answer("c", 1)
    assert s.said(RoundClosed)[0].participants == ("a", "c")


def test_a_learner_that_says_it_will_be_late_is_not_waited_for(scripted: Any) -> None:
    s = warmed(scripted)
    s.answer("a", 4)
    assert s.core.open_round.round == 4
    s.feed(Deferred(learner=LearnerId("b"), incarnation=Incarnation(1), epoch=Epoch(1), round=Round(4), expected_s=0.7))
    assert s.core.open_round.round == 4
    s.feed(Deferred(learner=LearnerId("b"), incarnation=Incarnation(1), epoch=Epoch(1), round=Round(4), expected_s=0.9))
    assert s.said(RoundClosed)[-1].participants == ("a",)
    s.answer("b", 4)
    assert s.said(Drop)[-1].reason is RejectionReason.LATE


def test_until_the_durations_are_known_a_round_waits_for_its_quorum_only(scripted: Any) -> None:
    s = scripted()
    s.begin("a", "b")
    s.progress("a", 1, tokens=10)
    s.answer("a", 1)
    assert s.said(QuorumMet)[0].grace_s == 0.0
    assert s.said(RoundClosed)[0].participants == ("a",)


def test_the_grace_window_ends_on_time(scripted: Any) -> None:
    s = warmed(scripted)
    window = s.said(QuorumMet)[-1].grace_s
    assert window == pytest.approx(0.8)
    s.answer("a", 4)
    assert s.core.wake_at == s.core.open_round.asked_at + window
    s.wait(window / 2)
    assert len(s.said(RoundClosed)) == 3
    s.now = s.core.wake_at
    s.feed(Tick())
    assert s.said(RoundClosed)[-1].participants == ("a",)
    assert s.said(RoundClosed)[-1].why.startswith("grace spent")


def test_the_window_ends_when_the_fleet_moves_on(scripted: Any) -> None:
    s = warmed(scripted)
    s.answer("a", 4)
    s.now += 0.1
    s.progress("a", 5, tokens=50)
    assert s.said(RoundClosed)[-1].why == "the fleet moved on: 1 learners are past the round, 1 answers"


def test_a_wake_at_its_own_time_always_brings_something_about(scripted: Any) -> None:
    """0.1 + 0.2 − 0.1 < 0.2 in floating point: a deadline compared as a difference would never come."""
    s = scripted(start_learners=4, start_timeout_s=0.2)
    s.now = 0.1
    s.begin("a")
    assert s.core.wake_at == 0.1 + 0.2
    s.now = s.core.wake_at
    s.feed(Tick())
    assert s.sent(Begin)


def test_rounds_without_fragments_pass_with_the_quorum(scripted: Any) -> None:
    s = scripted(num_fragments=1, sync_period=3, overlap_steps=2)
    s.begin("a")
    s.progress("a", 1)
    s.progress("a", 2)
    assert [c.why for c in s.said(RoundClosed)] == ["nothing is due"] * 2
    assert not s.sent(Ask)
    s.progress("a", 3, tokens=30)
    s.answer("a", 3, tokens=30, steps=3)
    assert s.core.published == (3,)


def test_fewer_alive_than_the_quorum_waits_with_an_alarm_or_goes_on(scripted: Any) -> None:
    for when_short, closes in (("wait", 0), ("degrade", 1)):
        s = scripted(min_quorum=2, when_short=when_short)
        s.begin("a", "b")
        s.goodbye("b")
        s.progress("a", 1)
        s.answer("a", 1)
        assert len(s.said(RoundClosed)) == closes
        s.wait(4.0)
        assert not s.said(Alarm)
        s.wait(2.0)
        assert [a.kind for a in s.said(Alarm)] == [AlarmKind.QUORUM_SHORT] * (1 - closes)
        assert not s.said(AlarmOver)
        s.hello("c")
        s.synchronise("c", clock=1)
        assert [a.kind for a in s.said(AlarmOver)] == [AlarmKind.QUORUM_SHORT] * (1 - closes)


# ── persist before publish ──────────────────────────────────────────────────────────────────────────────────────


def test_slow_actions_follow_each_other_and_none_is_skipped(scripted: Any) -> None:
    s = scripted()
    s.begin("a")
    s.instant = False
    s.progress("a", 1, tokens=10)
    s.answer("a", 1)
    assert s.core.phase is Phase.GRACE  # the fold is not done
    s.feed(Folded(round=Round(1), fragment=Fragment(0), learner=LearnerId("a")))
    assert s.core.phase is Phase.MERGING
    s.feed(Published(round=Round(1)))
    assert s.core.phase is Phase.MERGING  # out of order: nothing happens
    s.feed(OuterStepped(round=Round(1)))
    assert s.core.phase is Phase.PERSISTING
    assert s.core.published == (0,)  # not durable: not to be read
    assert s.said(Persist)[-1].state.versions == (1,)
    s.feed(Persisted(round=Round(1)))
    assert (s.core.phase, s.core.published) == (Phase.PUBLISHING, (1,))
    s.feed(Published(round=Round(1)))
    assert (s.core.phase, s.core.open_round.round) == (Phase.QUORUM, 2)


def test_nobody_hears_of_a_round_that_is_not_durable(scripted: Any) -> None:
    """After a crash that round is asked for again; who believed it closed would never answer."""
    s = scripted(min_quorum=1)
    s.begin("a")
    s.instant = False
    s.progress("a", 1, tokens=10)
    s.answer("a", 1)
    s.feed(Folded(round=Round(1), fragment=Fragment(0), learner=LearnerId("a")))
    s.feed(OuterStepped(round=Round(1)))
    s.hello("b")
    assert (s.welcome("b").round, s.welcome("b").versions) == (0, (0,))
    s.feed(Persisted(round=Round(1)))
    s.hello("c")
    assert (s.welcome("c").round, s.welcome("c").versions) == (1, (1,))


def test_after_an_outage_rounds_do_not_gallop(scripted: Any) -> None:
    s = scripted()
    s.begin("a")
    s.feed(LinkLost(learner=LearnerId("a"), incarnation=Incarnation(1)))
    s.hello("a", incarnation=Incarnation(1), run_id="run", versions=(Version(0),))
    s.progress("a", 0, tokens=5000)
    assert s.core.phase is Phase.QUORUM
    s.progress("a", 1, tokens=5010)
    s.answer("a", 1, tokens=10, total_tokens=5010)
    s.progress("a", 1, tokens=5010)
    assert s.core.round == 1


def test_a_failed_persist_is_tried_again_and_nothing_is_published(scripted: Any) -> None:
    s = scripted()
    s.begin("a")
    s.instant = False
    s.progress("a", 1, tokens=10)
    s.answer("a", 1)
    s.feed(Folded(round=Round(1), fragment=Fragment(0), learner=LearnerId("a")))
    s.feed(OuterStepped(round=Round(1)))
    s.feed(PersistFailed(round=Round(1), why="no space left"))
    assert [a.kind for a in s.said(Alarm)] == [AlarmKind.PERSIST_FAILED]
    assert s.core.wake_at == s.now + 1.0
    before = len(s.said(Persist))
    s.wait(1.0)
    assert len(s.said(Persist)) == before + 1
    assert s.said(Persist)[-1].fragments == (0,)
    s.feed(Persisted(round=Round(1)))
    assert s.core.published == (1,)
    assert [a.kind for a in s.said(AlarmOver)] == [AlarmKind.PERSIST_FAILED]


def test_a_value_that_is_not_finite_is_never_published_and_its_work_is_open_again(scripted: Any) -> None:
    s = scripted()
    s.begin("a")
    s.not_finite = (Fragment(0),)
    s.progress("a", 1, tokens=10)
    s.answer("a", 1)
    assert s.core.published == (0,)
    assert [a.kind for a in s.said(Alarm)] == [AlarmKind.NOT_FINITE]
    assert s.core.ledger.totals.merged == 0
    assert s.core.ledger.open_total() == 10
    assert s.core.open_round.round == 2
    s.not_finite = ()
    s.progress("a", 2, tokens=20)
    s.answer("a", 2, tokens=20, steps=2, total_tokens=20)
    assert s.core.published == (2,)
    assert s.core.ledger.totals.merged == 20


# ── the gate ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"epoch": Epoch(0)}, RejectionReason.STALE_EPOCH),
        ({"epoch": Epoch(7)}, RejectionReason.STALE_EPOCH),
        ({"learner": LearnerId("nobody")}, RejectionReason.UNKNOWN_LEARNER),
        ({"incarnation": Incarnation(9)}, RejectionReason.STALE_INCARNATION),
        ({"layout_hash": "other"}, RejectionReason.LAYOUT),
        ({"round": Round(0)}, RejectionReason.LATE),
        ({"round": Round(2)}, RejectionReason.NOT_ASKED),
        ({"fragment": Fragment(5)}, RejectionReason.NOT_ASKED),
        ({"fragment": Fragment(-1)}, RejectionReason.NOT_ASKED),
        ({"base_version": Version(-1)}, RejectionReason.STALE_BASE),
        ({"base_version": Version(3)}, RejectionReason.STALE_BASE),
        ({"steps": 0}, RejectionReason.NO_WORK),
        ({"tokens": 0}, RejectionReason.NO_WORK),
        ({"steps": -1}, RejectionReason.IMPLAUSIBLE_COUNTS),
        ({"tokens": -5}, RejectionReason.IMPLAUSIBLE_COUNTS),
        ({"tokens": 11}, RejectionReason.IMPLAUSIBLE_COUNTS),
        ({"steps": 2**60}, RejectionReason.IMPLAUSIBLE_COUNTS),
        ({"tokens": 2**60, "total_tokens": 2**60}, RejectionReason.IMPLAUSIBLE_COUNTS),
        ({"finite": False}, RejectionReason.NOT_FINITE),
    ],
)
def test_the_gate_names_its_reason_and_changes_nothing(
    scripted: Any, change: dict[str, Any], reason: RejectionReason
) -> None:
    s = scripted(min_quorum=2)
    s.begin("a", "b")
    for name in "ab":
        s.progress(name, 1, tokens=10)
    before = s.core.ledger.copy()
    s.answer("a", 1, **change)
    assert [d.reason for d in s.said(Drop)] == [reason]
    assert not s.said(Fold)
    assert s.core.ledger == before
    assert s.core.rejected == {reason.value: 1}
    if "learner" not in change and "incarnation" not in change:
        assert [r.reason for r in s.sent(Rejection, "a")] == [reason]


def test_a_second_contribution_to_the_same_round_is_a_duplicate(scripted: Any) -> None:
    s = scripted(min_quorum=2)
    s.begin("a", "b")
    for name in "ab":
        s.progress(name, 1, tokens=10)
    s.answer("a", 1)
    s.answer("a", 1)
    assert [d.reason for d in s.said(Drop)] == [RejectionReason.DUPLICATE]
    assert len(s.said(Fold)) == 1


def test_a_stale_base_gets_the_current_version_again(scripted: Any) -> None:
    s = scripted()
    s.begin("a", "b")
    s.progress("a", 1, tokens=10)
    s.answer("a", 1, base_version=Version(-1))
    assert s.sent(Announcement, "a")[-1].versions == ((0, 0),)


def test_a_refused_contribution_may_be_made_good_while_the_round_is_short(scripted: Any) -> None:
    s = scripted(min_quorum=2)
    s.begin("a", "b")
    for name in "ab":
        s.progress(name, 1, tokens=10)
    s.answer("a", 1)
    s.answer("b", 1, finite=False)
    assert not s.said(RoundClosed)
    s.wait(6.0)
    assert AlarmKind.ANSWERS_SHORT in [a.kind for a in s.said(Alarm)]
    s.progress("b", 2, tokens=20)
    assert len(s.sent(Ask, "b")) == 2
    s.answer("b", 1, total_tokens=20)
    assert s.said(RoundClosed)[0].participants == ("a", "b")


def test_stale_contributions_may_be_accepted_up_to_a_period_late(scripted: Any) -> None:
    s = scripted(stale="accept", num_fragments=1, sync_period=2, overlap_steps=1)
    s.begin("a", "b")
    for round in (1, 2):
        s.progress("a", round, tokens=10 * round)
    s.answer("a", 2, tokens=20, steps=2, total_tokens=20)
    s.wait(1.0)
    assert s.core.published == (2,)
    for round in (3, 4):
        s.progress("a", round, tokens=10 * round)
    # "a" has merged its first 20 tokens: the same base again would count them twice
    s.answer("a", 4, base_version=Version(0), tokens=40, steps=4, total_tokens=40)
    assert s.said(Drop)[-1].reason is RejectionReason.STALE_BASE
    s.answer("b", 4, base_version=Version(0), tokens=40, steps=4, total_tokens=40)
    assert s.said(Fold)[-1].learner == "b"


# ── membership ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"layout_hash": "other"}, RefusalReason.LAYOUT),
        ({"run_id": "another"}, RefusalReason.WRONG_RUN),
    ],
)
def test_strangers_are_refused_by_name(scripted: Any, change: dict[str, Any], reason: RefusalReason) -> None:
    s = scripted()
    s.begin("a")
    s.hello("b", **change)
    assert [r.reason for r in s.sent(Refusal, "b")] == [reason]
    assert s.core.members.get(LearnerId("b")) is None


def test_a_new_process_under_an_old_name_fences_the_old_one_off(scripted: Any) -> None:
    s = scripted()
    s.begin("a", "b")
    s.progress("a", 1, tokens=10)
    s.hello("a", session="reborn")
    assert s.welcome("a").incarnation == 2
    assert s.core.ledger.totals.lost == 10
    s.answer("a", 1, incarnation=Incarnation(1))
    assert s.said(Drop)[-1].reason is RejectionReason.STALE_INCARNATION
    s.hello("a", session="session of a", incarnation=Incarnation(1), run_id="run")
    assert [r.reason for r in s.sent(Refusal, "a")] == [RefusalReason.SUPERSEDED]


def test_a_life_whose_admission_was_lost_with_the_syncer_is_not_taken_for_the_present_one(scripted: Any) -> None:
    s = scripted()
    s.begin("a")
    s.hello("b", incarnation=Incarnation(3), run_id="run", versions=(Version(0),))
    assert s.welcome("b").incarnation == 4


def test_the_same_process_comes_back_as_itself(scripted: Any) -> None:
    s = scripted()
    s.begin("a", "b")
    s.progress("a", 1, tokens=10)
    s.feed(LinkLost(learner=LearnerId("a"), incarnation=Incarnation(1)))
    assert [m.learner for m in s.core.members.live()] == ["b"]
    s.hello("a", incarnation=Incarnation(1), run_id="run", versions=(Version(0),))
    assert s.welcome("a").incarnation == 1
    s.progress("a", 1, tokens=10)
    assert [m.learner for m in s.core.members.live()] == ["a", "b"]
    assert s.core.ledger.totals.lost == 0


def test_a_missing_heartbeat_is_noticed_on_time_and_its_return_too(scripted: Any) -> None:
    s = scripted(liveness_s=10.0)
    s.begin("a", "b")
    s.now = 6.0
    s.progress("b", 0)
    assert s.core.wake_at == 10.0
    s.now = 10.0
    s.feed(Tick())
    assert [m.learner for m in s.core.members.live()] == ["b"]
    s.progress("a", 1)
    assert [m.learner for m in s.core.members.live()] == ["a", "b"]


def test_who_joins_while_a_round_asks_is_asked_too(scripted: Any) -> None:
    s = scripted(min_quorum=2)
    s.begin("a", "b")
    for name in "ab":
        s.progress(name, 1, tokens=10)
    s.hello("c")
    s.synchronise("c")
    assert len(s.sent(Ask, "c")) == 1


def test_slots_are_leased_and_a_newcomer_takes_over_where_the_leaver_was(scripted: Any) -> None:
    s = scripted(num_learners=2, num_slots=2)
    s.begin("a", "b")
    s.progress("a", 1, tokens=10)
    s.answer("a", 1, cursor=77)
    s.hello("c")
    assert [r.reason for r in s.sent(Refusal, "c")] == [RefusalReason.FULL]
    s.goodbye("a")
    s.hello("c")
    assert (s.welcome("c").slot, s.welcome("c").cursor) == (0, 77)


def test_restarts_under_ever_new_names_do_not_fill_all_slots(scripted: Any) -> None:
    s = scripted(num_learners=2, num_slots=2, liveness_s=10.0)
    s.begin("a", "b")
    s.progress("a", 1, tokens=10)
    s.feed(LinkLost(learner=LearnerId("a"), incarnation=Incarnation(1)))
    s.now = 9.0
    s.progress("b", 1, tokens=10)
    s.hello("c")
    assert [r.reason for r in s.sent(Refusal, "c")] == [RefusalReason.FULL]  # "a" may come back any moment
    s.now = 10.0
    s.hello("c")
    assert s.welcome("c").slot == 0
    assert s.core.ledger.totals.lost == 10
    s.hello("a", incarnation=Incarnation(1), run_id="run")
    assert [r.reason for r in s.sent(Refusal, "a")] == [RefusalReason.FULL]
    s.feed(LinkLost(learner=LearnerId("b"), incarnation=Incarnation(1)))
    s.now = 30.0
    s.hello("a", incarnation=Incarnation(1), run_id="run")
    assert s.welcome("a").incarnation == 2


def test_a_seeder_that_hangs_is_replaced(scripted: Any) -> None:
    s = scripted(liveness_s=10.0)
    s.hello("a")
    s.now = 9.0
    s.hello("b")
    s.now = 10.0
    s.feed(Tick())
    assert [w.seed for w in s.sent(Welcome, "b")] == [False, True]


def test_who_comes_back_in_the_middle_of_a_round_is_asked_for_the_rest_only(scripted: Any) -> None:
    s = scripted(num_fragments=2, min_quorum=2)
    s.begin("a", "b", "c")
    for name in "ab":
        s.progress(name, 1, tokens=10)
    s.answer("a", 1, 0)
    s.feed(LinkLost(learner=LearnerId("a"), incarnation=Incarnation(1)))
    s.hello("a", incarnation=Incarnation(1), run_id="run", versions=(Version(0), Version(0)))
    s.progress("a", 1, tokens=10)
    assert [ask.fragments for ask in s.sent(Ask, "a")] == [(0, 1), (1,)]


# ── the end, and the next life ──────────────────────────────────────────────────────────────────────────────────


def test_the_last_round_ends_the_run_and_the_books_are_settled(scripted: Any) -> None:
    s = scripted(rounds=1, min_quorum=2)
    s.begin("a", "b", "c")
    for name in "ab":
        s.progress(name, 1, tokens=10)
    s.answer("a", 1)
    s.answer("b", 1)
    s.feed(LinkLost(learner=LearnerId("c"), incarnation=Incarnation(1)))
    assert s.said(Publish)[-1].message.finished
    assert s.core.phase is Phase.FINISHED
    s.progress("a", 2, tokens=25, applied=(Applied(fragment=Fragment(0), version=Version(1), at_tokens=20),))
    s.goodbye("a")
    s.feed(Settle())
    books = s.core.ledger.in_tokens()
    assert books == {"consumed": 35, "merged": 20, "discarded": 15, "lost": 0, "promised": 0, "open": 0}
    assert [type(action) for action in s.hello("late")] == [Send], "no slot, no account, no commit"
    assert s.core.members.get(LearnerId("late")) is None
    s.hello("c", incarnation=Incarnation(1), run_id="run", versions=(Version(0),))
    assert (s.welcome("c").incarnation, s.welcome("c").versions) == (UNBORN, (1,)), "it was cut off for too long"


def test_who_comes_when_the_run_is_over_sees_the_last_weights_and_leaves_no_trace(scripted: Any) -> None:
    s = scripted(rounds=1, num_learners=2, min_quorum=2, num_slots=2)
    s.begin("a", "b")
    for name in "ab":
        s.progress(name, 1, tokens=10)
    for name in "ab":
        s.answer(name, 1)
    before = s.core.snapshot()
    for name, session in (("late", "l"), ("a", "another process"), ("late", "l")):
        s.hello(name, session=session, needs_state=True, donates_at="here:1")
        seen = s.sent(Welcome, name)[-1]
        assert (seen.incarnation, seen.finished, seen.versions, seen.begun) == (0, True, (1,), True)
        assert not seen.seed and not seen.donors and seen.round == 1
        s.progress(name, 5, tokens=99, incarnation=UNBORN)
        s.feed(Goodbye(learner=LearnerId(name), incarnation=UNBORN))
    assert s.core.snapshot() == before, "nor does what it says"
    s.hello("a", session="session of a", incarnation=Incarnation(1), run_id="run", versions=(Version(0),))
    assert s.welcome("a").incarnation == 1, "whoever was there to the end is no visitor"
    for wrong, reason in (
        ({"layout_hash": "another"}, RefusalReason.LAYOUT),
        ({"run_id": "another"}, RefusalReason.WRONG_RUN),
        ({"run_id": "run", "versions": (Version(2),)}, RefusalReason.AHEAD),
    ):
        s.hello("stranger", **wrong)
        assert s.sent(Refusal, "stranger")[-1].reason is reason
    for name in "ab":
        s.goodbye(name)
    assert not s.core.members.connected(), "nobody waits for a visitor"


def test_a_new_life_goes_on_from_what_was_durable(scripted: Any) -> None:
    first = scripted(min_quorum=2)
    first.begin("a", "b")
    for name in "ab":
        first.progress(name, 1, tokens=10)
    first.answer("a", 1)
    first.answer("b", 1)
    second = scripted(epoch=2, state=first.durable)
    assert (second.core.round, second.core.published) == (1, (1,))
    assert second.core.phase is Phase.STARTING
    second.hello("a", incarnation=Incarnation(1), run_id="run", versions=(Version(1),))
    assert (second.welcome("a").epoch, second.welcome("a").incarnation, second.welcome("a").round) == (2, 1, 1)
    second.progress("a", 2, tokens=20)
    assert second.core.open_round.round == 2  # no round number is used twice
    second.answer("a", 2, epoch=Epoch(1))
    assert second.said(Drop)[-1].reason is RejectionReason.STALE_EPOCH
    second.answer("a", 2)
    assert second.core.published == (2,)
    assert second.core.ledger.balances()


def test_who_was_away_at_the_end_still_gets_the_last_weights(scripted: Any) -> None:
    s = scripted(rounds=1, min_quorum=2)
    s.begin("a", "b", "c")
    for name in "ab":
        s.progress(name, 1, tokens=10)
    s.feed(LinkLost(learner=LearnerId("c"), incarnation=Incarnation(1)))
    for name in "ab":
        s.answer(name, 1)
    last = scripted(rounds=1, epoch=2, state=s.durable)
    last.hello("c", incarnation=Incarnation(1), run_id="run", versions=(Version(0),))
    assert last.welcome("c").versions == (1,)
    assert (last.welcome("c").incarnation, last.welcome("c").finished) == (1, True)
    last.hello("c", session="another process")
    assert (last.welcome("c").incarnation, last.welcome("c").finished) == (UNBORN, True)


def test_one_learner_that_supplies_nearly_everything_raises_an_alarm_once(scripted: Any) -> None:
    s = scripted()
    s.begin("a", "b")
    for round in range(1, 50):
        s.progress("a", round, tokens=10 * round)
        s.answer("a", round)
        s.feed(
            Deferred(
                learner=LearnerId("b"), incarnation=Incarnation(1), epoch=Epoch(1), round=Round(round), expected_s=99
            )
        )
    assert [a.kind for a in s.said(Alarm)] == [AlarmKind.ONE_LEARNER, AlarmKind.LEFT_OUT]
    assert "a supplied 100%" in s.said(Alarm)[0].text
