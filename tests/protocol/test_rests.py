"""What is left unsaid is owed exactly if what was said has counted."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gruppetto.protocol.actions import DropRests, KeepRest
from gruppetto.protocol.events import Arrived, LinkDown, Taken
from gruppetto.protocol.learner import LearnerCore
from gruppetto.protocol.messages import Announcement, ApplyMode, Welcome
from gruppetto.protocol.rests import Rests
from gruppetto.protocol.units import Epoch, Fragment, Incarnation, LearnerId, Round, Version

P = Fragment(0)


def welcome(*, round: int, versions: tuple[int, ...], epoch: int = 1, incarnation: int = 1) -> Welcome:
    return Welcome(
        run_id="r",
        epoch=Epoch(epoch),
        incarnation=Incarnation(incarnation),
        slot=0,
        cursor=0,
        round=Round(round),
        versions=tuple(map(Version, versions)),
        seed=False,
        begun=True,
        num_fragments=len(versions),
        sync_period=2,
        snapshot_window=2,
        apply=ApplyMode.OVERWRITE,
        blend_alpha=0.0,
        rounds=None,
    )


def taken(round: int, *, epoch: int = 1, tokens: int = 5) -> Taken:
    return Taken(epoch=Epoch(epoch), round=Round(round), fragment=P, tokens=tokens)


def announcement(round: int, *fragments: int, epoch: int = 1) -> Announcement:
    versions = tuple((Fragment(p), Version(round)) for p in fragments)
    return Announcement(epoch=Epoch(epoch), round=Round(round), versions=versions)


def core() -> LearnerCore:
    learner = LearnerCore(LearnerId("a"), session="s", layout_hash="l")
    learner.step(0.0, welcome(round=0, versions=(0, 0)))
    return learner


def rests_in(actions: list[object]) -> list[object]:
    return [action for action in actions if isinstance(action, KeepRest | DropRests)]


KEEP = [KeepRest(fragment=P, round=Round(1), tokens=5)]


def test_a_rest_is_kept_when_the_value_is_announced_after_the_reply() -> None:
    learner = core()
    assert rests_in(learner.step(1.0, taken(1))) == []
    assert rests_in(learner.step(2.0, announcement(1, 0))) == KEEP
    assert rests_in(learner.step(3.0, announcement(3, 0))) == []


def test_a_rest_is_kept_when_the_reply_comes_last() -> None:
    learner = core()
    learner.step(1.0, announcement(1, 0))
    assert rests_in(learner.step(2.0, taken(1))) == KEEP


def test_a_merge_that_came_to_nothing_leaves_what_was_owed_before() -> None:
    learner = core()
    learner.step(1.0, taken(1))
    assert rests_in(learner.step(2.0, announcement(1, 1))) == []
    assert rests_in(learner.step(3.0, announcement(3, 0))) == []


def test_a_value_that_came_before_its_announcement_counts() -> None:
    learner = core()
    learner.step(1.0, taken(1))
    assert rests_in(learner.step(2.0, Arrived(fragment=P, version=Version(1)))) == KEEP


def test_the_same_life_of_the_syncer_may_be_two_rounds_on_after_a_reconnect() -> None:
    learner = core()
    learner.step(1.0, taken(1))
    learner.step(2.0, LinkDown())
    assert rests_in(learner.step(3.0, welcome(round=3, versions=(3, 2)))) == KEEP


def test_in_another_life_of_the_syncer_nothing_counts_any_more() -> None:
    """Not even under the same number: a run that went back has made the round anew, without this contribution."""
    for versions in ((1, 0), (0, 0), (3, 2)):
        learner = core()
        learner.step(1.0, taken(1))
        assert rests_in(learner.step(2.0, welcome(round=max(versions), versions=versions, epoch=2))) == []
        assert rests_in(learner.step(3.0, announcement(5, 0, epoch=2))) == []


def test_a_new_life_owes_nothing() -> None:
    learner = core()
    learner.step(1.0, taken(1))
    learner.step(2.0, announcement(1, 0))
    learner.step(2.0, taken(3))
    assert rests_in(learner.step(3.0, welcome(round=3, versions=(3, 2), incarnation=2))) == [DropRests()]
    assert rests_in(learner.step(4.0, welcome(round=3, versions=(3, 2), incarnation=3))) == []


def test_a_reply_of_another_life_changes_nothing() -> None:
    learner = core()
    learner.step(1.0, announcement(1, 0))
    assert rests_in(learner.step(2.0, taken(1, epoch=2))) == []


@given(st.lists(st.tuples(st.integers(1, 4), st.booleans(), st.booleans()), max_size=12))
def test_exactly_what_was_taken_and_published_is_kept_in_order(story: list[tuple[int, bool, bool]]) -> None:
    """One fragment, round after round: each contribution is taken or not, each merge published or void."""
    rests, newest, now = Rests(), Version(0), Round(0)
    kept, wanted = [], []
    for gap, is_taken, is_published in story:
        now = Round(now + gap)
        if is_taken:
            rests.took(taken(now, tokens=now))
        if is_published:
            newest = Version(now)
        keep = rests.settle(P, newest=newest, closed=now, epoch=Epoch(1))
        kept += [keep.round] if keep is not None else []
        wanted += [now] if is_taken and is_published else []
    assert kept == wanted and rests.open() == []
