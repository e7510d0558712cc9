"""A checkpoint of the whole run, as syncer and learners cut it: one rule a test."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gruppetto.protocol.actions import (
    Apply,
    Checkpoint,
    CheckpointClosed,
    CheckpointRefused,
    Persist,
    Publish,
    SaveState,
    TakeSnapshot,
)
from gruppetto.protocol.events import (
    Arrived,
    Boundary,
    CheckpointRecorded,
    LinkDown,
    LinkLost,
    OuterStepped,
    Persisted,
    Published,
    StateSaved,
    StepDone,
    StepStarted,
    TakeCheckpoint,
)
from gruppetto.protocol.learner import LearnerCore
from gruppetto.protocol.messages import (
    Announcement,
    Answer,
    ApplyMode,
    Ask,
    Marked,
    Marker,
    Progress,
    Refusal,
    RefusalReason,
    Welcome,
)
from gruppetto.protocol.round import Phase
from gruppetto.protocol.state import without_the_absent
from gruppetto.protocol.units import Epoch, Fragment, Incarnation, LearnerId, Round, Version

# ── the syncer ───────────────────────────────────────────────────────────────────────────────────────────────────


def marked(run: Any, name: str, mark: str = "m", **change: Any) -> list[Any]:
    said = {"incarnation": run.incarnation(name), "epoch": run.core.epoch, "ok": True, "text": f"disk of {name}"}
    return run.feed(Marked(learner=LearnerId(name), mark=mark, **{**said, **change}))


def asked(scripted: Any, **setting: Any) -> Any:
    """Two learners, a quorum of both, and a checkpoint asked for while round 1 is short of an answer."""
    run = scripted(min_quorum=2, checkpoint_timeout_s=30.0, **setting)
    run.begin("a", "b")
    run.progress("a", 1, tokens=10)
    run.progress("b", 1, tokens=10)
    run.answer("a", 1)
    assert run.core.phase is Phase.GRACE
    run.feed(TakeCheckpoint(mark="m"))
    return run


def test_the_cut_waits_for_the_end_of_the_round(scripted: Any) -> None:
    run = asked(scripted)
    assert not run.said(Checkpoint) and run.core.open_mark.waiting_for == "the open round to close"
    run.answer("b", 1)
    (cut,) = run.said(Checkpoint)
    assert (cut.round, cut.state.round, cut.state.versions) == (1, 1, (1,))
    assert cut.state.ledger.totals.merged == 20
    # Behind the announcement of round 1, before anything of round 2.
    assert [m.round for m in run.sent(Marker)] == [1, 1]
    kinds = [type(a).__name__ for a in run.log]
    assert kinds.index("Publish") < kinds.index("Checkpoint")
    assert run.core.open_mark.waiting_for == "a, b, the syncer's own part"


def test_no_moment_inside_a_round_will_do(scripted: Any) -> None:
    """Merged and not durable, durable and not published: each waits."""
    run = asked(scripted)
    run.instant = False
    run.answer("b", 1)
    run.core._open.folding.clear()
    run.feed(OuterStepped(round=Round(1)))  # not yet: it was not asked for
    run.wait(0.0)
    run.feed(OuterStepped(round=Round(1)))
    assert isinstance(run.log[-1], Persist) and not run.said(Checkpoint)
    run.feed(Persisted(round=Round(1)))
    assert isinstance(run.log[-1], Publish) and not run.said(Checkpoint)
    run.feed(Published(round=Round(1)))
    assert run.said(Checkpoint)


def test_between_rounds_it_is_cut_at_once(scripted: Any) -> None:
    run = scripted()
    run.begin("a")
    assert run.core.phase is Phase.QUORUM
    actions = run.feed(TakeCheckpoint(mark="m"))
    assert [type(a) for a in actions][:1] == [Checkpoint]
    assert run.sent(Marker, "a")


def test_it_is_complete_when_all_have_answered_and_the_run_goes_on_meanwhile(scripted: Any) -> None:
    run = asked(scripted)
    run.answer("b", 1)
    marked(run, "a")
    run.progress("a", 2, tokens=20)
    run.progress("b", 2, tokens=20)
    run.answer("a", 2)
    run.answer("b", 2)
    assert run.core.round == 2  # nobody has waited
    assert not run.said(CheckpointClosed)
    run.feed(CheckpointRecorded(mark="m"))
    marked(run, "b")
    (closed,) = run.said(CheckpointClosed)
    assert closed.parts == (("a", 1, "disk of a"), ("b", 1, "disk of b")) and closed.left_out == ()
    assert (closed.round, closed.why) == (1, "")
    assert run.core.open_mark is None


def test_one_at_a_time_and_none_before_there_are_weights(scripted: Any) -> None:
    run = scripted()
    run.feed(TakeCheckpoint(mark="early"))
    run.begin("a")
    run.feed(TakeCheckpoint(mark="one"))
    run.feed(TakeCheckpoint(mark="two"))
    early, second = run.said(CheckpointRefused)
    assert early.mark == "early" and "no weights yet" in early.why
    assert second.mark == "two" and "checkpoint one is being taken" in second.why
    run.feed(CheckpointRecorded(mark="one"))
    marked(run, "a", "one")
    run.feed(TakeCheckpoint(mark="three"))
    assert run.core.open_mark.mark == "three"


@pytest.mark.parametrize("how", ["link", "goodbye", "lease", "reborn", "back", "refused"])
def test_who_goes_away_is_left_out_with_the_reason(scripted: Any, how: str) -> None:
    run = asked(scripted)
    run.answer("b", 1)
    run.feed(CheckpointRecorded(mark="m"))
    marked(run, "a")
    match how:
        case "link":
            run.feed(LinkLost(learner=LearnerId("b"), incarnation=Incarnation(1)))
        case "goodbye":
            run.goodbye("b")
        case "lease":
            run.now += 5.0
            run.progress("a", 1, tokens=10)
            run.wait(6.0)
        case "reborn":
            run.hello("b", "another process")
        case "back":
            run.hello("b")  # on another connection: the marker may have been lost with the old one
        case _:
            marked(run, "b", ok=False, text="its disk is full")
    (closed,) = run.said(CheckpointClosed)
    assert [name for name, _, _ in closed.parts] == ["a"]
    why = {"refused": "its disk is full", "back": "its link broke", "reborn": "its link broke"}
    ((name, said),) = closed.left_out
    assert name == "b" and said == why.get(how, said) and said and closed.why == ""


def test_a_part_saved_before_the_link_broke_counts(scripted: Any) -> None:
    run = asked(scripted)
    run.answer("b", 1)
    run.hello("b")
    assert "b" in run.core.open_mark.left_out
    marked(run, "b")
    marked(run, "a")
    run.feed(CheckpointRecorded(mark="m"))
    (closed,) = run.said(CheckpointClosed)
    assert [name for name, _, _ in closed.parts] == ["a", "b"] and not closed.left_out


@pytest.mark.parametrize("change", [{"epoch": Epoch(9)}, {"incarnation": Incarnation(7)}, {"mark": "another"}])
def test_the_mark_of_another_life_or_checkpoint_counts_nothing(scripted: Any, change: dict[str, Any]) -> None:
    run = asked(scripted)
    run.answer("b", 1)
    marked(run, "a", **change)
    assert not run.core.open_mark.parts


def test_patience_ends(scripted: Any) -> None:
    run = asked(scripted)
    run.answer("b", 1)
    run.feed(CheckpointRecorded(mark="m"))
    for second in range(1, 31):
        run.wait(1.0)
        for name in ("a", "b"):
            run.progress(name, 1, tokens=10)
        assert bool(run.said(CheckpointClosed)) == (second == 30)
    (closed,) = run.said(CheckpointClosed)
    assert dict(closed.left_out) == dict.fromkeys(("a", "b"), "no answer in 30 s")


def test_a_round_that_does_not_close_ends_patience_too_and_says_so(scripted: Any) -> None:
    run = asked(scripted, liveness_s=100.0)
    run.wait(30.0)
    (closed,) = run.said(CheckpointClosed)
    assert closed.why == "no round has closed in 30 s" and not run.said(Checkpoint)
    assert run.core.wake_at is None or run.core.wake_at > run.now


def test_a_disk_that_refuses_is_the_end_of_it(scripted: Any) -> None:
    run = asked(scripted)
    run.answer("b", 1)
    marked(run, "a")
    marked(run, "b")
    run.feed(CheckpointRecorded(mark="m", why="the disk is full"))
    (closed,) = run.said(CheckpointClosed)
    assert closed.why == "the disk is full"


def test_a_resumed_syncer_awaits_whom_it_knows_and_closes_the_other_accounts(scripted: Any) -> None:
    run = asked(scripted)
    run.answer("b", 1)
    run.progress("b", 2, tokens=35)
    run.feed(TakeCheckpoint(mark="m"))
    state = run.core.snapshot()
    resumed = without_the_absent(state, {LearnerId("a"): Incarnation(1)}, Epoch(1))
    assert resumed.ledger.balances() and resumed.ledger.totals.lost == 25
    assert {m.learner: (m.gone, m.awaited) for m in resumed.members} == {"a": (False, True), "b": (True, False)}
    assert state.ledger.totals.lost == 0  # a copy
    again = scripted(min_quorum=1, epoch=2, state=resumed)
    again.hello("a", "a new process", continues="session of a", versions=(Version(1),))
    assert again.welcome("a").incarnation == 1 and again.welcome("a").goes_on
    # Its place is taken: a second process from the same part begins a new life.
    again.hello("a", "one more", continues="session of a", versions=(Version(1),))
    assert again.welcome("a").incarnation == 2 and not again.welcome("a").goes_on
    again.hello("b", "whoever", continues="session of b", versions=(Version(1),))
    assert again.welcome("b").incarnation == 2


def test_a_run_that_was_not_resumed_awaits_nobody(scripted: Any) -> None:
    run = scripted()
    run.begin("a")
    run.hello("a", "from a part", continues="session of a", versions=(Version(0),))
    assert run.welcome("a").incarnation == 2


def test_who_comes_from_after_the_cut_is_refused_by_name(scripted: Any) -> None:
    run = scripted()
    run.begin("a")
    run.hello("b", versions=(Version(3),))
    refusal = run.sent(Refusal, "b")[-1]
    assert refusal.reason is RefusalReason.AHEAD
    assert "a round 3 that this run, which is at round 0, has not made" in refusal.text


def test_a_run_that_went_back_refuses_what_came_after_for_ever(scripted: Any) -> None:
    """Round 2 comes again, and the run goes beyond it; the number is the same, the value is not."""
    run = scripted(min_quorum=1)
    run.begin("a", "b")
    resumed = without_the_absent(run.core.snapshot(), {LearnerId("a"): Incarnation(1)}, Epoch(7))
    again = scripted(min_quorum=1, epoch=8, state=resumed)
    again.hello("a", continues="session of a", versions=(Version(0),), epoch=Epoch(1))
    for round in (1, 2, 3):
        again.progress("a", round, tokens=10 * round)
        again.answer("a", round)
    assert again.core.published == (3,)
    again.hello("c", "rode on alone", versions=(Version(2),), epoch=Epoch(6))
    assert again.sent(Refusal, "c")[-1].reason is RefusalReason.AHEAD
    again.hello("c", "from before the cut", versions=(Version(0),), epoch=Epoch(6))
    again.hello("d", "has been here", versions=(Version(2),), epoch=Epoch(8))
    assert again.welcome("c") and again.welcome("d")
    # The next life remembers it, and may go back again.
    assert again.core.snapshot().went_back == ((7, 0),)
    third = scripted(min_quorum=1, epoch=10, state=without_the_absent(again.core.snapshot(), {}, Epoch(9)))
    assert third.core.went_back == ((7, 0), (9, 3))


def test_a_refusal_says_whose_it_is(scripted: Any) -> None:
    """Whoever lost his authority and finds a learner ahead of him is the one who is behind."""
    run = scripted()
    run.begin("a")
    run.hello("b", versions=(Version(3),))
    refusal = run.sent(Refusal, "b")[-1]
    rider = Rider()
    rider.welcome(epoch=Epoch(2))
    assert refusal.epoch == 1 and rider.core.knows_newer(refusal)
    assert not rider.core.knows_newer(replace(refusal, epoch=Epoch(2)))
    assert not rider.core.knows_newer(replace(refusal, epoch=Epoch(0))), "it serves nobody yet"


def test_what_is_given_before_its_round_is_asked_for_is_only_promised(scripted: Any) -> None:
    """The cut may come before the outer step: what is merged by then has to be in the values."""
    run = scripted(min_quorum=2)
    run.begin("a", "b")
    run.progress("a", 1, tokens=10)
    run.answer("a", 1, parting=True)
    run.goodbye("a")
    run.feed(TakeCheckpoint(mark="m"))
    (cut,) = run.said(Checkpoint)
    ledger = cut.state.ledger
    assert (ledger.totals.merged, ledger.promised_total()) == (0, 10) and ledger.balances()
    resumed = scripted(min_quorum=2, epoch=3, state=without_the_absent(cut.state, {}, Epoch(2)))
    books = resumed.core.ledger
    assert (books.totals.merged, books.promised_total(), books.totals.lost) == (0, 0, 10) and books.balances()


def test_it_is_cut_at_a_commit_and_asks_for_one(scripted: Any) -> None:
    """With durability = "interval" a value may be published and nowhere on the disk."""
    run = scripted(durability="interval", durability_rounds=10)
    run.begin("a")
    for round in (1, 2):
        run.progress("a", round, tokens=10 * round)
        run.answer("a", round)
    commits = len(run.said(Persist))
    assert run.core.phase is Phase.QUORUM
    run.feed(TakeCheckpoint(mark="m"))
    assert not run.said(Checkpoint) and run.core.open_mark.waiting_for == "the open round to close"
    run.progress("a", 3, tokens=30)
    run.answer("a", 3)
    (cut,) = run.said(Checkpoint)
    assert len(run.said(Persist)) == commits + 1 and cut.state.versions == run.said(Persist)[-1].state.versions == (3,)
    assert run.said(Persist)[-1].state.reserve > 0 == cut.state.reserve, (
        "in the world of the cut nothing comes after it"
    )


# ── a learner ────────────────────────────────────────────────────────────────────────────────────────────────────


class Rider:
    def __init__(self, mode: ApplyMode = ApplyMode.OVERWRITE, core: LearnerCore | None = None) -> None:
        self.core = core or LearnerCore(LearnerId("a"), session="s", layout_hash="layout")
        self.now, self.mode = 0.0, mode

    def feed(self, event: Any) -> list[Any]:
        return self.core.step(self.now, event)

    def welcome(self, **change: Any) -> list[Any]:
        fields: dict[str, Any] = {
            "run_id": "run",
            "epoch": Epoch(1),
            "incarnation": Incarnation(1),
            "slot": 3,
            "cursor": 0,
            "round": Round(0),
            "versions": (Version(0), Version(0)),
            "seed": False,
            "begun": True,
            "num_fragments": 2,
            "sync_period": 2,
            "snapshot_window": 2,
            "apply": self.mode,
            "blend_alpha": 0.5,
            "rounds": None,
        }
        return self.feed(Welcome(**{**fields, **change}))

    def join(self) -> Rider:
        self.welcome()
        for p in range(2):
            self.feed(Arrived(fragment=Fragment(p), version=Version(0)))
        self.feed(Boundary())
        return self

    def train(self, during: list[Any] | None = None) -> list[Any]:
        self.feed(StepStarted())
        for event in during or []:
            self.feed(event)
        self.now += 1.0
        return self.feed(StepDone(tokens=10, cursor=self.core.cursor + 1))


def announced(round: int, fragment: int) -> Announcement:
    return Announcement(epoch=Epoch(1), round=Round(round), versions=((Fragment(fragment), Version(round)),))


def arrived(round: int, fragment: int) -> Arrived:
    return Arrived(fragment=Fragment(fragment), version=Version(round))


def marker(round: int, mark: str = "m") -> Marker:
    return Marker(epoch=Epoch(1), mark=mark, round=Round(round))


def deeds(actions: list[Any]) -> list[Any]:
    return [
        (a.fragment, a.version) if isinstance(a, Apply) else "save" for a in actions if isinstance(a, Apply | SaveState)
    ]


def test_a_part_is_saved_between_what_was_announced_before_and_after_the_marker() -> None:
    rider = Rider().join()
    during = [announced(1, 0), arrived(1, 0), marker(1), announced(2, 1), arrived(2, 1)]
    actions = rider.train(during)
    assert deeds(actions) == [(0, 1), "save", (1, 2)]
    save = next(a for a in actions if isinstance(a, SaveState))
    assert save.state.fragments == ((1, 0, 0), (0, 1, 10))
    assert (save.state.cursor, save.state.tokens, save.state.session, save.state.slot) == (1, 10, "s", 3)
    assert save.state.newest_round == 2  # a resumed syncer says in its Welcome how far the run is
    assert isinstance(actions[-1], Progress) and len(actions[-1].applied) == 2
    (answer,) = rider.feed(StateSaved(mark="m", ok=True, text="here"))
    assert answer == Marked(
        learner=LearnerId("a"), incarnation=Incarnation(1), epoch=Epoch(1), mark="m", ok=True, text="here"
    )
    assert not deeds(rider.train())  # once


def test_what_comes_ahead_of_its_announcement_waits_for_it() -> None:
    """The body of round 2 has overtaken the marker of round 1: applied, it would be in the part."""
    rider = Rider().join()
    rider.feed(announced(1, 1))
    assert deeds(rider.train([arrived(2, 1)])) == []
    assert not rider.core.has_arrived
    assert deeds(rider.train([marker(1), announced(2, 1)])) == ["save", (1, 2)]


@given(
    order=st.permutations(range(6)),
    bodies_early=st.booleans(),
    steps_between=st.lists(st.booleans(), min_size=8, max_size=8),
)
def test_no_part_ever_holds_more_than_the_marker_says(
    order: list[int], bodies_early: bool, steps_between: list[bool]
) -> None:
    """Control frames in order; bodies whenever they like; steps whenever they end."""
    rider = Rider().join()
    stream: list[Any] = [announced(1, 1), announced(2, 0), marker(2), announced(3, 1), announced(4, 0)]
    bodies = [arrived(1, 1), arrived(2, 0), arrived(3, 1), arrived(4, 0)]
    steps = iter(steps_between)
    saved: list[SaveState] = []
    for place in order:
        if place < len(stream):
            rider.feed(stream.pop(0))
        if bodies and (bodies_early or place % 2):
            rider.feed(bodies.pop(place % len(bodies)))
        if next(steps):
            saved += [a for a in rider.train() if isinstance(a, SaveState)]
    saved += [a for a in rider.train() if isinstance(a, SaveState)]
    assert all(version <= 2 for save in saved for version, _, _ in save.state.fragments)
    assert len(saved) == 1


@pytest.mark.parametrize("event", [LinkDown(), None])
def test_a_marker_is_forgotten_with_its_stream(event: Any) -> None:
    rider = Rider().join()
    rider.feed(StepStarted())
    rider.feed(marker(0))
    if event is not None:
        rider.feed(event)
    rider.welcome()
    assert deeds(rider.feed(StepDone(tokens=10, cursor=1))) == []


def test_the_marker_of_another_epoch_is_not_heeded() -> None:
    rider = Rider().join()
    assert deeds(rider.train([replace(marker(0), epoch=Epoch(9))])) == []


def test_who_has_not_all_weights_says_so() -> None:
    rider = Rider()
    rider.welcome()
    rider.feed(marker(0))
    assert rider.core.wants_boundary
    answer = next(a for a in rider.feed(Boundary()) if isinstance(a, Marked))
    assert not answer.ok and "did not have all weights" in answer.text


def resumed(state: Any, **welcome: Any) -> tuple[Rider, list[Any]]:
    rider = Rider(core=LearnerCore(LearnerId("a"), session="t", layout_hash="layout"))
    rider.core.restore(state, same_life=True)
    hello = rider.core.hello()
    assert (hello.session, hello.continues, hello.incarnation) == ("t", "s", 0)
    assert not hello.can_seed and hello.run_id == "run"
    return rider, rider.welcome(**welcome)


def saved_state() -> Any:
    rider = Rider().join()
    rider.train()
    actions = rider.train([announced(1, 1), arrived(1, 1), marker(1)])
    return next(a for a in actions if isinstance(a, SaveState)).state


def test_a_resumed_life_goes_on_where_it_was() -> None:
    state = saved_state()
    rider, actions = resumed(state, goes_on=True, epoch=Epoch(2), round=Round(1), versions=(Version(0), Version(1)))
    core = rider.core
    assert (core.incarnation, core.slot, core.cursor, core.steps, core.tokens) == (1, 3, 2, 2, 20)
    assert list(core.snapshot().fragments) == list(state.fragments) == [(0, 2, 20), (1, 0, 0)]
    assert core.clock == 2  # the step it had done counts: round 2 asks for it
    (report,) = [a for a in actions if isinstance(a, Progress)]
    assert [(a.fragment, a.version, a.at_tokens) for a in report.applied] == [(0, 0, 0), (1, 1, 20)]
    # What that step led to can be asked for before the next one.
    assert core.wants_boundary
    assert any(isinstance(a, TakeSnapshot) for a in rider.feed(Boundary()))
    assert not core.wants_boundary
    (answer,) = rider.feed(Ask(epoch=Epoch(2), round=Round(2), fragments=(Fragment(0),)))
    assert isinstance(answer, Answer) and (answer.steps, answer.tokens, answer.cursor) == (2, 20, 2)
    assert rider.core.hello().incarnation == 1


def test_a_resumed_clock_is_never_far_ahead() -> None:
    state = replace(saved_state(), clock=500)
    rider, _ = resumed(state, goes_on=True, round=Round(1), versions=(Version(0), Version(1)))
    assert rider.core.clock == 2
    rider.feed(LinkDown())
    rider.welcome(round=Round(7), versions=(Version(6), Version(7)))
    assert rider.core.clock == 7  # a reconnection later is like any other


@pytest.mark.parametrize("life", [1, 5])
def test_a_part_that_is_not_awaited_becomes_a_new_life_with_nothing_of_the_old(life: int) -> None:
    """Also where its number is that of the old one, because the syncer has lost all that it knew of this name."""
    rider, _ = resumed(saved_state(), incarnation=Incarnation(life), slot=1, cursor=9, round=Round(1))
    core = rider.core
    assert (core.incarnation, core.slot, core.cursor, core.steps, core.tokens) == (life, 1, 9, 0, 0)
    assert [counters for _, *counters in core.snapshot().fragments] == [[0, 0], [0, 0]]
    assert deeds(rider.feed(Boundary()))[:2] == [(0, 0), (1, 1)]  # every base again


def test_a_learner_says_what_it_has_heard_of_and_trusts_only_what_it_saved_since() -> None:
    rider = Rider().join()
    assert rider.core.hello().epoch == 1 and rider.core.snapshot().epoch == 1
    fresh = LearnerCore(LearnerId("a"), session="later", layout_hash="layout")
    assert fresh.hello().epoch == 0
    fresh.restore(rider.core.snapshot())
    assert fresh.hello().epoch == 1
    again = Rider(core=fresh)
    again.welcome(epoch=Epoch(1), incarnation=Incarnation(2))
    assert fresh.still_stands(Epoch(1)) and not fresh.still_stands(Epoch(2))
    again.welcome(epoch=Epoch(4), incarnation=Incarnation(3))
    assert not fresh.still_stands(Epoch(1))


def test_what_is_here_and_not_announced_is_said_too() -> None:
    """A run that was resumed before it has to see that this learner has more than there is."""
    rider = Rider().join()
    rider.feed(Arrived(fragment=Fragment(1), version=Version(1)))
    assert rider.core.held == (0, 0) and rider.core.hello().versions == (0, 1)
