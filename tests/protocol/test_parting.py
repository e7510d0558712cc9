"""A learner that leaves on notice: what it gives ahead of a round, and what becomes of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gruppetto.protocol.actions import Apply, Fold, RoundClosed, TakeOuterStep, TakeSnapshot
from gruppetto.protocol.events import Arrived, Boundary, Folded, Leaving, OuterStepped, StepDone, StepStarted
from gruppetto.protocol.learner import LearnerCore
from gruppetto.protocol.messages import (
    Announcement,
    Answer,
    ApplyMode,
    Ask,
    Deferred,
    Rejection,
    RejectionReason,
    Welcome,
)
from gruppetto.protocol.schedule import Schedule
from gruppetto.protocol.units import Epoch, Fragment, Incarnation, LearnerId, Round, Version

Make = Callable[..., Any]
TWO = {"num_fragments": 2, "sync_period": 2}
"""Fragment 1 is due at rounds 1, 3, …; fragment 0 at 2, 4, …"""


def books(s: Any) -> dict[str, int]:
    ledger = s.core.ledger
    return {
        "merged": ledger.totals.merged,
        "promised": ledger.promised_total(),
        "discarded": ledger.totals.discarded,
        "lost": ledger.totals.lost,
        "open": ledger.open_total(),
    }


# ── the schedule ─────────────────────────────────────────────────────────────────────────────────────────────────


@given(st.integers(1, 12), st.integers(1, 12), st.integers(0, 11), st.integers(0, 60))
def test_the_next_round_is_the_first_at_which_it_is_due(parts: int, period: int, fragment: int, after: int) -> None:
    schedule = Schedule(num_fragments=parts, sync_period=period)
    p = Fragment(fragment % parts)
    expected = next(t for t in range(after + 1, after + period + 1) if p in schedule.due(Round(t)))
    assert schedule.next_due(p, Round(after)) == expected


# ── the syncer ───────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def riding(scripted: Make) -> Any:
    """Two learners, two fragments, K = 1; round 1 is open and has its quorum."""
    s = scripted(**TWO)
    s.begin("a", "b")
    s.progress("a", 1, tokens=10)
    s.progress("b", 1, tokens=10)
    return s


def test_what_comes_ahead_of_its_round_is_folded_at_once_and_merged_in_its_round(riding: Any) -> None:
    s = riding
    s.answer("a", 2, 0, parting=True, total_tokens=10)
    assert [(f.round, f.fragment, f.learner) for f in s.said(Fold)] == [(2, 0, "a")]
    assert books(s) == {"merged": 0, "promised": 10, "discarded": 0, "lost": 0, "open": 30}
    s.answer("a", 1, 1, parting=True)
    s.goodbye("a")
    assert (books(s)["merged"], books(s)["promised"]) == (10, 10)
    s.progress("b", 2, tokens=20)
    s.answer("b", 2, 0, total_tokens=20, tokens=20)
    closed = s.said(RoundClosed)[-1]
    assert (closed.round, closed.participants) == (2, ("a", "b"))
    assert (books(s)["merged"], books(s)["promised"]) == (40, 0)


def test_a_round_is_asked_for_what_has_not_come(riding: Any) -> None:
    s = riding
    s.answer("a", 2, 0, parting=True, total_tokens=10)
    s.answer("a", 1, 1)
    s.answer("b", 1, 1)
    s.synchronise("a", clock=2, at_tokens=10)
    s.synchronise("b", clock=2, at_tokens=10)
    assert [ask.round for ask in s.sent(Ask, "a")] == [1]
    assert [ask.round for ask in s.sent(Ask, "b")] == [1, 2]


@pytest.mark.parametrize("grace", [True, False])
def test_who_has_left_does_not_close_a_round_before_those_who_ride(scripted: Make, grace: bool) -> None:
    s = scripted(**TWO, grace=grace)
    s.begin("a", "b")
    s.progress("a", 1, tokens=10)
    s.answer("a", 2, 0, parting=True, total_tokens=10)
    s.answer("a", 1, 1, parting=True)
    s.goodbye("a")
    s.progress("b", 1, tokens=10)
    s.answer("b", 1, 1)
    s.progress("b", 2, tokens=20)
    s.wait(5.0)
    assert [c.round for c in s.said(RoundClosed)] == [1]
    s.wait(30.0)  # now nobody is live
    assert [c.round for c in s.said(RoundClosed)] == [1]
    s.progress("b", 3, tokens=20)
    s.answer("b", 2, 0, total_tokens=20, tokens=20)
    assert [c.round for c in s.said(RoundClosed)] == [1, 2]


def test_what_was_given_ahead_counts_for_the_quorum(scripted: Make) -> None:
    """The reborn is not asked for what its last life has given, and the round needs both."""
    s = scripted(**TWO, min_quorum=2, num_learners=2)
    s.begin("a", "b")
    s.progress("a", 1, tokens=10)
    s.progress("b", 1, tokens=10)
    s.answer("a", 2, 0, parting=True, total_tokens=10)
    s.answer("a", 1, 1, parting=True)
    s.answer("b", 1, 1)
    s.goodbye("a")
    s.hello("a", session="another")
    s.synchronise("a", clock=2)
    s.synchronise("b", clock=2, at_tokens=20)
    s.answer("a", 2, 0, tokens=5, total_tokens=5)
    assert s.sent(Rejection, "a")[-1].reason is RejectionReason.DUPLICATE
    s.answer("b", 2, 0, total_tokens=20, tokens=20)
    assert s.said(RoundClosed)[-1].participants == ("a", "b")


def test_nothing_is_folded_into_a_merge_that_closes(riding: Any) -> None:
    s = riding
    s.instant = False
    s.answer("b", 1, 1)
    s.feed(Folded(round=Round(1), fragment=Fragment(1), learner=LearnerId("b")))
    s.answer("a", 1, 1)
    s.feed(Folded(round=Round(1), fragment=Fragment(1), learner=LearnerId("a")))
    assert s.said(TakeOuterStep)
    s.hello("c", session="c")
    s.synchronise("c")
    for round in (1, 3):
        s.answer("c", round, 1, parting=True, total_tokens=10)
        assert s.sent(Rejection, "c")[-1].reason is RejectionReason.LATE
    s.answer("c", 2, 0, parting=True, total_tokens=10)  # the other fragment is free
    s.feed(OuterStepped(round=Round(1)))
    s.answer("c", 3, 1, parting=True, total_tokens=10)
    assert s.sent(Rejection, "c")[-1].reason is RejectionReason.STALE_BASE
    assert books(s)["promised"] == 10


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"round": Round(4)}, RejectionReason.NOT_ASKED),
        ({"base_version": Version(1)}, RejectionReason.STALE_BASE),
        ({"finite": False}, RejectionReason.NOT_FINITE),
        ({"tokens": 11}, RejectionReason.IMPLAUSIBLE_COUNTS),
        ({"parting": False}, RejectionReason.NOT_ASKED),
    ],
)
def test_the_gate_stands_for_who_leaves_too(riding: Any, change: dict[str, Any], reason: RejectionReason) -> None:
    s = riding
    s.answer("a", 2, 0, **{"parting": True, "total_tokens": 10, **change})
    assert s.sent(Rejection, "a")[-1].reason is reason
    assert books(s)["promised"] == 0


def test_a_run_that_ends_before_the_round_promises_nothing(scripted: Make) -> None:
    s = scripted(**TWO, rounds=1)
    s.begin("a")
    s.progress("a", 1, tokens=10)
    s.answer("a", 2, 0, parting=True, total_tokens=10)
    assert books(s)["promised"] == 0


@pytest.mark.parametrize("gone", [True, False])
def test_a_syncer_that_dies_has_lost_what_was_promised(scripted: Make, riding: Any, gone: bool) -> None:
    """Whoever has not left may give it once more."""
    s = riding
    s.answer("a", 2, 0, parting=True, total_tokens=10)
    if gone:
        s.goodbye("a")
    s.answer("b", 1, 1)
    if not gone:
        s.answer("a", 1, 1)
    assert s.durable.ledger.promised_total() == 10
    again = scripted(**TWO, epoch=2, state=s.durable)
    assert again.core.ledger.balances()
    assert books(again)["promised"] == 0
    assert books(again)["lost"] == (10 if gone else 0)
    if not gone:
        again.hello("a", run_id="run", incarnation=Incarnation(1))
        again.answer("a", 2, 0, parting=True, total_tokens=10)
        assert books(again)["promised"] == 10


def test_a_merge_that_diverges_merges_no_promise(riding: Any) -> None:
    s = riding
    s.answer("a", 2, 0, parting=True, total_tokens=10)
    s.answer("a", 1, 1)
    s.goodbye("a")
    s.not_finite = (Fragment(0),)
    s.progress("b", 2, tokens=20)
    s.answer("b", 2, 0, total_tokens=20, tokens=20)
    assert s.core.round == 2
    assert (books(s)["merged"], books(s)["promised"], books(s)["discarded"]) == (10, 0, 10)
    assert s.core.ledger.discarded_by == {"voided": 10}


# ── the learner ──────────────────────────────────────────────────────────────────────────────────────────────────


class Rider:
    """A learner's core that holds version 0 of three fragments, due at rounds 1, 2, 3, …"""

    def __init__(self, **welcome: Any) -> None:
        self.core = LearnerCore(LearnerId("a"), session="s", layout_hash="layout")
        self.said: list[Any] = []
        self.welcome = Welcome(
            **{
                "run_id": "run",
                "epoch": Epoch(1),
                "incarnation": Incarnation(1),
                "slot": 0,
                "cursor": 0,
                "round": Round(0),
                "versions": (Version(0),) * 3,
                "seed": False,
                "begun": True,
                "num_fragments": 3,
                "sync_period": 3,
                "snapshot_window": 1,
                "apply": ApplyMode.OVERWRITE,
                "blend_alpha": 0.5,
                "rounds": None,
                **welcome,
            }
        )
        self.feed(self.welcome)
        for p in range(3):
            self.feed(Arrived(fragment=Fragment(p), version=Version(0)))
        self.feed(Boundary())

    def feed(self, event: Any) -> list[Any]:
        self.said = self.core.step(0.0, event)
        return self.said

    def train(self, steps: int = 1) -> None:
        for _ in range(steps):
            self.feed(StepStarted())
            self.feed(StepDone(tokens=10, cursor=self.core.cursor + 1))

    def parted(self) -> list[tuple[int, int, int]]:
        return [(a.round, a.fragment, a.tokens) for a in self.said if isinstance(a, Answer) and a.parting]


def test_it_gives_every_fragment_for_its_next_round_the_soonest_first() -> None:
    rider = Rider()
    rider.train(2)
    rider.feed(Leaving())
    assert rider.parted() == [(1, 1, 20), (2, 2, 20), (3, 0, 20)]
    assert [a.fragments for a in rider.said if isinstance(a, TakeSnapshot)] == [(0, 1, 2)]


def test_what_is_on_its_way_or_came_back_newer_is_not_given() -> None:
    rider = Rider()
    rider.train(2)
    rider.feed(Ask(epoch=Epoch(1), round=Round(1), fragments=(Fragment(1),)))
    rider.feed(Announcement(epoch=Epoch(1), round=Round(0), versions=((Fragment(2), Version(2)),)))
    rider.train()
    assert rider.core.work == 30 + 10 + 30
    rider.feed(Leaving())
    assert rider.parted() == [(3, 0, 30)]


def test_what_has_arrived_is_applied_and_nothing_is_left_of_it() -> None:
    rider = Rider()
    rider.train(2)
    rider.feed(Announcement(epoch=Epoch(1), round=Round(2), versions=((Fragment(2), Version(2)),)))
    rider.feed(Arrived(fragment=Fragment(2), version=Version(2)))
    rider.feed(Leaving())
    assert any(isinstance(a, Apply) for a in rider.said)
    assert [p for _, p, _ in rider.parted()] == [0, 1]


def test_what_is_here_and_not_announced_is_neither_applied_nor_given() -> None:
    """The control stream alone says what comes before what; and work on the old base would be refused."""
    rider = Rider()
    rider.train(2)
    rider.feed(Arrived(fragment=Fragment(2), version=Version(2)))
    rider.feed(Leaving())
    assert not any(isinstance(a, Apply) for a in rider.said)
    assert [p for _, p, _ in rider.parted()] == [1, 0]


def test_what_carry_keeps_when_a_value_comes_is_given_then() -> None:
    """One contribution is in the value that is on its way, the other in the open round."""
    rider = Rider(apply=ApplyMode.CARRY, snapshot_window=2)
    rider.train(2)
    rider.feed(Ask(epoch=Epoch(1), round=Round(1), fragments=(Fragment(1),)))
    rider.feed(Announcement(epoch=Epoch(1), round=Round(1), versions=((Fragment(1), Version(1)),)))
    rider.feed(Ask(epoch=Epoch(1), round=Round(2), fragments=(Fragment(2),)))
    rider.train()
    assert rider.core.work == 30 + 10 + 10
    rider.feed(Leaving())
    assert rider.parted() == [(3, 0, 30)] and rider.core.gives_more
    rider.feed(Arrived(fragment=Fragment(1), version=Version(1)))
    rider.feed(Boundary())
    assert rider.parted() == [(4, 1, 10)] and rider.core.gives_more
    rider.feed(Announcement(epoch=Epoch(1), round=Round(2), versions=((Fragment(2), Version(2)),)))
    rider.feed(Arrived(fragment=Fragment(2), version=Version(2)))
    rider.feed(Boundary())
    assert rider.parted() == [(5, 2, 10)] and not rider.core.gives_more


def test_a_run_that_ends_before_is_given_nothing() -> None:
    rider = Rider(rounds=Round(2))
    rider.train()
    rider.feed(Leaving())
    assert [round for round, _, _ in rider.parted()] == [1, 2]


def test_whoever_leaves_is_not_asked_any_more() -> None:
    rider = Rider()
    rider.train()
    rider.feed(Leaving())
    rider.feed(Ask(epoch=Epoch(1), round=Round(1), fragments=(Fragment(1),)))
    assert not [a for a in rider.said if isinstance(a, Answer | Deferred)]


def test_after_a_lost_link_all_is_given_again_but_not_by_another_life() -> None:
    for incarnation, expected in ((1, [0, 1]), (2, [])):
        rider = Rider()
        rider.train()
        rider.feed(Leaving())
        versions = (Version(0), Version(0), Version(2))
        news = {"round": Round(2), "versions": versions, "incarnation": Incarnation(incarnation), "epoch": Epoch(2)}
        rider.welcome = Rider(**news).welcome
        rider.feed(rider.welcome)
        assert sorted(p for _, p, _ in rider.parted()) == expected


def test_without_a_step_there_is_nothing_to_give() -> None:
    rider = Rider()
    rider.feed(Leaving())
    assert rider.parted() == []
