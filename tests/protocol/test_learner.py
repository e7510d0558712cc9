"""The learner's core, one rule a test."""

from __future__ import annotations

from typing import Any

import pytest

from gruppetto.protocol.actions import Apply, Pull, Seed, TakeSnapshot
from gruppetto.protocol.events import Arrived, Boundary, LinkDown, StepDone, StepStarted
from gruppetto.protocol.learner import LearnerCore
from gruppetto.protocol.messages import (
    Announcement,
    Answer,
    Applied,
    ApplyMode,
    Ask,
    Begin,
    Deferred,
    Progress,
    Refusal,
    RefusalReason,
    Rejection,
    RejectionReason,
    Welcome,
)
from gruppetto.protocol.units import UNBORN, Epoch, Fragment, Incarnation, LearnerId, Round, Version


class Rider:
    """A learner core with a clock of its own and a memory of its actions."""

    def __init__(self, num_fragments: int = 2, **welcome: Any) -> None:
        self.core = LearnerCore(LearnerId("a"), session="s", layout_hash="layout")
        self.now = 0.0
        self.num_fragments = num_fragments
        self.welcome_fields = welcome

    def feed(self, event: Any) -> list[Any]:
        return self.core.step(self.now, event)

    def welcome(self, **change: Any) -> list[Any]:
        fields: dict[str, Any] = {
            "run_id": "run",
            "epoch": Epoch(1),
            "incarnation": Incarnation(1),
            "slot": 3,
            "cursor": 40,
            "round": Round(0),
            "versions": (Version(0),) * self.num_fragments,
            "seed": False,
            "begun": True,
            "num_fragments": self.num_fragments,
            "sync_period": 2,
            "snapshot_window": 2,
            "apply": ApplyMode.OVERWRITE,
            "blend_alpha": 0.5,
            "rounds": None,
        }
        return self.feed(Welcome(**{**fields, **self.welcome_fields, **change}))

    def join(self) -> None:
        """Welcomed, synchronised, ready."""
        self.welcome()
        for p in range(self.num_fragments):
            self.feed(Arrived(fragment=Fragment(p), version=Version(0)))
        self.feed(Boundary())
        assert self.core.ready

    def train(self, *, seconds: float = 1.0, tokens: int = 10) -> list[Any]:
        self.feed(StepStarted())
        self.now += seconds
        return self.feed(StepDone(tokens=tokens, cursor=self.core.cursor + 1))

    def ask(self, round: int, *fragments: int, epoch: int = 1) -> list[Any]:
        return self.feed(Ask(epoch=Epoch(epoch), round=Round(round), fragments=tuple(Fragment(p) for p in fragments)))

    def publish(self, round: int, fragment: int) -> list[Any]:
        return self.feed(
            Announcement(epoch=self.core.epoch, round=Round(round), versions=((Fragment(fragment), Version(round)),))
        )


def kinds(actions: list[Any]) -> list[str]:
    return [type(a).__name__ for a in actions]


@pytest.fixture
def rider() -> Rider:
    rider = Rider()
    rider.join()
    return rider


def test_it_pulls_everything_before_the_first_step() -> None:
    rider = Rider()
    actions = rider.welcome(begun=False)
    assert actions == [Pull(fragment=Fragment(0), version=Version(0)), Pull(fragment=Fragment(1), version=Version(0))]
    rider.feed(Arrived(fragment=Fragment(0), version=Version(0)))
    rider.feed(Boundary())
    assert not rider.core.synchronised
    rider.feed(Arrived(fragment=Fragment(1), version=Version(0)))
    applied = rider.feed(Boundary())
    assert kinds(applied) == ["Apply", "Progress"]
    assert not rider.core.ready  # the syncer has not begun
    rider.feed(Begin(epoch=Epoch(1), round=Round(0)))
    assert rider.core.ready


def test_who_is_asked_to_seeds() -> None:
    rider = Rider()
    assert rider.welcome(versions=(), seed=True, begun=False) == [Seed()]
    assert not rider.core.ready


def test_the_clock_is_stamped_at_the_start_from_the_newest_round(rider: Rider) -> None:
    rider.train()
    assert rider.core.clock == 1
    rider.publish(7, 0)
    rider.feed(StepStarted())
    assert rider.core.clock == 8
    rider.publish(9, 1)
    rider.feed(StepDone(tokens=1, cursor=1))
    assert rider.core.clock == 8  # observed during the step: it counts from the next one on


def test_a_step_that_starts_again_is_the_same_step(rider: Rider) -> None:
    """An evaluation between two steps makes the first stamp stale, and its time no part of the step."""
    rider.feed(StepStarted())
    rider.now += 100.0
    rider.publish(7, 0)
    rider.feed(StepStarted())
    assert rider.core.clock == 8
    rider.feed(StepStarted())
    assert rider.core.clock == 8
    rider.now += 1.0
    rider.feed(StepDone(tokens=1, cursor=1))
    assert rider.core.step_s == 1.0


def test_what_can_be_asked_next_is_snapshot_and_answered_at_once(rider: Rider) -> None:
    actions = rider.train()
    assert TakeSnapshot(fragments=(Fragment(0), Fragment(1))) in actions
    answers = rider.ask(1, 1)
    assert answers == [
        Answer(
            learner=LearnerId("a"),
            incarnation=Incarnation(1),
            epoch=Epoch(1),
            round=Round(1),
            fragment=Fragment(1),
            base_version=Version(0),
            steps=1,
            tokens=10,
            total_tokens=10,
            cursor=41,
            layout_hash="layout",
        )
    ]


def test_without_a_snapshot_it_defers_and_answers_at_the_boundary() -> None:
    rider = Rider(snapshot_window=0)
    rider.join()
    rider.train(seconds=2.0)
    rider.feed(StepStarted())
    rider.now += 0.5
    deferred = rider.ask(1, 1)
    assert [(type(d), d.round, d.expected_s) for d in deferred] == [(Deferred, 1, 1.5)]
    rider.now += 1.5
    actions = rider.feed(StepDone(tokens=10, cursor=42))
    assert kinds(actions) == ["TakeSnapshot", "Answer", "Progress"]
    assert (actions[1].steps, actions[1].tokens) == (2, 20)


def test_a_fragment_without_work_since_its_base_is_never_answered() -> None:
    """A snapshot with no step in it would be a zero contribution; it is owed until there is one."""
    rider = Rider(num_fragments=1, sync_period=1)
    rider.join()
    rider.train()
    rider.ask(1, 0)
    rider.publish(1, 0)
    rider.feed(Arrived(fragment=Fragment(0), version=Version(1)))
    rider.train()  # applies version 1: no work since
    assert kinds(rider.ask(2, 0)) == ["Deferred"]
    answer = next(a for a in rider.train() if isinstance(a, Answer))
    assert (answer.base_version, answer.steps, answer.round) == (1, 1, 2)


def test_a_boundary_applies_then_snapshots_then_answers_then_reports(rider: Rider) -> None:
    rider.train()
    rider.publish(1, 1)
    rider.feed(Arrived(fragment=Fragment(1), version=Version(1)))
    rider.core.step(rider.now, StepStarted())
    rider.ask(2, 0)
    actions = rider.feed(StepDone(tokens=10, cursor=42))
    assert kinds(actions) == ["Apply", "TakeSnapshot", "Progress"]
    assert actions[0] == Apply(fragment=Fragment(1), version=Version(1), mode=ApplyMode.OVERWRITE, blend_alpha=0.5)
    assert actions[1].fragments == (0,)  # fragment 1 has no work in it
    assert actions[2].applied == (Applied(fragment=Fragment(1), version=Version(1), at_tokens=20),)
    assert (rider.core.c_steps(Fragment(1)), rider.core.c_tokens(Fragment(1))) == (0, 0)
    assert rider.core.c_steps(Fragment(0)) == 2


def test_carry_keeps_the_work_in_flight_and_its_counts() -> None:
    rider = Rider(apply=ApplyMode.CARRY)
    rider.join()
    rider.train()
    rider.ask(1, 1)
    rider.train()
    rider.publish(1, 1)
    rider.feed(Arrived(fragment=Fragment(1), version=Version(1)))
    actions = rider.train()
    assert actions[0].mode is ApplyMode.CARRY
    assert (rider.core.c_steps(Fragment(1)), rider.core.c_tokens(Fragment(1))) == (2, 20)
    applied = next(a for a in actions if isinstance(a, Progress)).applied
    assert (applied[0].at_tokens, applied[0].kept_tokens) == (30, 20)


def test_carry_overwrites_when_nothing_of_its_own_is_in_the_result() -> None:
    rider = Rider(apply=ApplyMode.CARRY)
    rider.join()
    rider.train()
    rider.publish(1, 1)
    rider.feed(Arrived(fragment=Fragment(1), version=Version(1)))
    assert rider.train()[0].mode is ApplyMode.OVERWRITE


def test_carry_offers_nothing_on_a_base_whose_successor_is_on_its_way() -> None:
    """Its answer would be refused, and it would forget what the successor is to be carried over."""
    rider = Rider(apply=ApplyMode.CARRY)
    rider.join()
    rider.train()
    assert kinds(rider.ask(1, 1)) == ["Answer"]
    rider.publish(1, 1)
    rider.train()
    assert kinds(rider.ask(3, 1)) == ["Deferred"]
    assert "Answer" not in kinds(rider.train())
    rider.feed(Arrived(fragment=Fragment(1), version=Version(1)))
    actions = rider.train()
    assert actions[0].mode is ApplyMode.CARRY
    answer = next(a for a in actions if isinstance(a, Answer))
    assert (answer.round, answer.base_version, answer.steps) == (3, 1, 3)


def test_what_would_be_refused_is_not_offered_until_the_newer_value_is_here() -> None:
    """Round 2 is asked for while what round 1 has made is on its way: due every round, every fragment is."""
    rider = Rider(sync_period=1)
    rider.join()
    rider.train()
    assert kinds(rider.ask(1, 0, 1)) == ["Answer", "Answer"]
    rider.publish(1, 0)
    rider.train()
    assert kinds(rider.ask(2, 0, 1)) == ["Answer", "Deferred"]
    rider.feed(Arrived(fragment=Fragment(0), version=Version(1)))
    assert "Answer" not in kinds(rider.train()), "nothing has been done on it yet"
    answer = next(a for a in rider.train() if isinstance(a, Answer))
    assert (answer.round, answer.fragment, answer.base_version, answer.steps) == (2, 0, 1, 1)


def test_where_stale_work_is_taken_it_is_offered_unless_it_is_merged_already() -> None:
    rider = Rider(sync_period=1, accepts_stale=True)
    rider.join()
    rider.train()
    assert kinds(rider.ask(1, 0)) == ["Answer"]
    rider.publish(1, 0)
    rider.publish(1, 1)
    assert kinds(rider.ask(2, 0)) == ["Deferred"], "round 1 has it"
    assert kinds(rider.ask(2, 1)) == ["Answer"]


def test_how_far_it_has_run_ahead_counts_from_what_is_here_of_the_fragments_due_next() -> None:
    rider = Rider(num_fragments=3, sync_period=3)
    rider.join()
    rider.train()
    rider.publish(1, 1)
    assert rider.core.run_ahead == 0, "fragment 1 is due at round 4"
    for t, p in ((2, 2), (3, 0)):
        rider.train()
        rider.publish(t, p)
    assert (rider.core.clock, rider.core.run_ahead) == (3, 3), "and what round 1 made of it is not here yet"
    rider.feed(Arrived(fragment=Fragment(1), version=Version(1)))
    assert rider.core.run_ahead == 0


def test_a_round_that_waits_for_a_step_of_its_own_holds_nobody_up() -> None:
    rider = Rider(sync_period=1, num_fragments=1)
    rider.join()
    for _ in range(4):
        rider.train()
    assert rider.core.run_ahead == 4 and rider.core.is_too_far(1)
    assert kinds(rider.ask(1, 0)) == ["Answer"]
    rider.publish(1, 0)
    assert kinds(rider.ask(2, 0)) == ["Deferred"]
    assert rider.core.is_too_far(1), "for what is on its way it may wait"
    rider.feed(Arrived(fragment=Fragment(0), version=Version(1)))
    rider.feed(Boundary())
    assert rider.core.run_ahead == 3 and not rider.core.is_too_far(1)
    assert "Answer" in kinds(rider.train())
    assert rider.core.is_too_far(1)


def test_standing_still_it_answers_with_what_it_has_not_copied_yet() -> None:
    rider = Rider(snapshot_window=0)
    rider.join()
    rider.train()
    assert not rider.core.wants_boundary
    assert kinds(rider.ask(1, 1)) == ["Deferred"]
    assert rider.core.wants_boundary
    assert "Answer" in kinds(rider.feed(Boundary()))
    assert not rider.core.wants_boundary


def test_only_news_is_pulled_and_the_newest_wins(rider: Rider) -> None:
    assert rider.publish(2, 0) == [Pull(fragment=Fragment(0), version=Version(2))]
    assert rider.publish(2, 0) == []
    assert rider.publish(4, 0) == [Pull(fragment=Fragment(0), version=Version(4))]
    rider.feed(Arrived(fragment=Fragment(0), version=Version(4)))
    rider.feed(Arrived(fragment=Fragment(0), version=Version(2)))
    assert rider.train()[0].version == 4
    assert rider.publish(3, 0) == []


def test_a_lost_link_stops_nothing_and_everything_missing_is_pulled_again(rider: Rider) -> None:
    rider.publish(2, 0)
    rider.feed(LinkDown())
    assert not rider.core.linked
    assert rider.ask(3, 1) == []
    rider.train()
    assert rider.core.steps == 1
    pulls = [
        a
        for a in rider.welcome(epoch=Epoch(2), round=Round(5), versions=(Version(4), Version(5)))
        if isinstance(a, Pull)
    ]
    assert [(p.fragment, p.version) for p in pulls] == [(0, 4), (1, 5)]
    assert rider.core.clock == 5  # on every connect it takes the current round as its clock ...
    for _ in range(50):
        rider.train()
    rider.welcome(epoch=Epoch(3), round=Round(6), versions=(Version(4), Version(5)))
    assert (rider.core.clock, rider.core.newest_round) == (6, 6)  # ... also when it has ridden far ahead alone
    assert rider.core.steps == 51  # the same life goes on
    assert rider.core.cursor == 91


def test_messages_of_another_epoch_are_not_obeyed(rider: Rider) -> None:
    rider.train()
    assert rider.ask(1, 0, epoch=9) == []
    assert rider.feed(Announcement(epoch=Epoch(9), round=Round(5), versions=((Fragment(0), Version(5)),))) == []
    assert rider.core.newest_round == 0


def test_a_new_incarnation_counts_from_zero_at_the_durable_cursor(rider: Rider) -> None:
    rider.train()
    rider.welcome(incarnation=Incarnation(2), slot=5, cursor=99)
    assert (rider.core.steps, rider.core.tokens, rider.core.slot, rider.core.cursor) == (0, 0, 5, 99)
    counted = [(rider.core.c_steps(Fragment(p)), rider.core.c_tokens(Fragment(p))) for p in (0, 1)]
    assert counted == [(0, 0)] * 2
    # What the model holds beyond its bases belongs to the life before: it is overwritten, and never answered for.
    assert kinds(rider.ask(1, 0)) == ["Deferred"]
    actions = rider.train()
    assert [(a.fragment, a.version) for a in actions if isinstance(a, Apply)] == [(0, 0), (1, 0)]
    assert not any(isinstance(a, Answer) for a in actions)
    assert all(rider.core.c_steps(Fragment(p)) == 0 for p in (0, 1))
    answer = next(a for a in rider.train() if isinstance(a, Answer))
    assert (answer.steps, answer.tokens) == (1, 10)


def test_a_new_life_mixes_nothing_of_the_old_one_in() -> None:
    rider = Rider(apply=ApplyMode.BLEND)
    rider.join()
    rider.train()
    rider.welcome(incarnation=Incarnation(2), round=Round(1), versions=(Version(0), Version(1)))
    rider.feed(Arrived(fragment=Fragment(1), version=Version(1)))
    applied = [a for a in rider.train() if isinstance(a, Apply)]
    assert [(a.version, a.mode) for a in applied] == [(0, "overwrite"), (1, "overwrite")]
    rider.publish(3, 1)
    rider.feed(Arrived(fragment=Fragment(1), version=Version(3)))
    assert rider.train()[0].mode is ApplyMode.BLEND


def test_refusals_and_rejections_are_remembered(rider: Rider) -> None:
    rider.feed(Rejection(epoch=Epoch(1), round=Round(1), fragment=Fragment(0), reason=RejectionReason.LATE))
    assert rider.core.rejections == {"late": 1}
    rider.feed(Refusal(reason=RefusalReason.SUPERSEDED, text="..."))
    assert rider.core.refusal is not None
    assert not rider.core.linked


def test_the_end_is_seen(rider: Rider) -> None:
    rider.feed(Announcement(epoch=Epoch(1), round=Round(9), versions=(), finished=True))
    assert rider.core.finished


def test_a_visitor_takes_the_last_weights_and_says_nothing(rider: Rider) -> None:
    """One that was away for too long, and one that begins and would look for a state."""
    rider.train()
    rider.feed(LinkDown())
    fresh = Rider()
    fresh.core.recovers = True
    for one in (rider, fresh):
        over = {"incarnation": UNBORN, "slot": 0, "round": Round(9), "versions": (Version(8), Version(9))}
        pulls = one.welcome(**over, finished=True)
        assert kinds(pulls) == ["Pull", "Pull"] and one.core.finished
        for p, version in enumerate((8, 9)):
            one.feed(Arrived(fragment=Fragment(p), version=Version(version)))
        assert kinds(one.feed(Boundary())) == ["Apply", "Apply"]
        assert one.core.ready and one.core.held == (8, 9)
        assert kinds(one.train()) == [], "a step that a trainer could not be kept from is nobody's"
        one.feed(LinkDown())
        assert kinds(one.welcome(**over, finished=True)) == []
        assert [a.version for a in one.feed(Boundary())] == [8, 9], "and goes"


def test_a_checkpoint_pulls_only_what_has_changed(rider: Rider) -> None:
    rider.train()
    state = rider.core.snapshot()
    again = Rider()
    again.core.restore(state)
    assert again.core.hello().versions == (0, 0)
    assert again.core.hello().run_id == "run"
    pulls = [a for a in again.welcome(versions=(Version(0), Version(3))) if isinstance(a, Pull)]
    assert [(p.fragment, p.version) for p in pulls] == [(1, 3)]
    assert again.core.has_arrived
    applied = [a for a in again.feed(Boundary()) if isinstance(a, Apply)]
    assert [(a.fragment, a.version, a.mode) for a in applied] == [(0, 0, "overwrite"), (1, 0, "overwrite")]


def test_nonsense_from_the_syncer_is_ignored(rider: Rider) -> None:
    assert kinds(rider.ask(1, 99, -5)) in ([], ["Deferred"])
    assert rider.publish(3, 77) == []
    assert rider.feed(Arrived(fragment=Fragment(44), version=Version(1))) == []
    rider.train()
