"""Who is named as a donor, and what a learner does with what it finds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gruppetto.protocol import LearnerCore, ProtocolSetting
from gruppetto.protocol.actions import Apply, Pull, Recover
from gruppetto.protocol.donors import MAX_BUSY, MAX_DONORS, Ladder, Source, choose_donors, covers
from gruppetto.protocol.events import Boundary, LinkDown, Recovered
from gruppetto.protocol.membership import Member, MemberPhase
from gruppetto.protocol.messages import Announcement, Donor, Hello
from gruppetto.protocol.reception import welcome_for
from gruppetto.protocol.units import NEVER, Epoch, Fragment, Incarnation, LearnerId, Round, Version

PUBLISHED = (Version(6), Version(5))


def member(name: str, phase: MemberPhase = MemberPhase.LIVE, at: str = "h:1", versions: object = None) -> Member:
    made = Member(learner=LearnerId(name), session=name, incarnation=Incarnation(1), slot=0, phase=phase)
    made.donates_at = at
    made.versions = dict(versions) if versions is not None else {Fragment(0): Version(6), Fragment(1): Version(5)}  # type: ignore[call-overload]
    return made


# ── the syncer's choice ──────────────────────────────────────────────────────────────────────────────────────────


def test_only_the_living_who_offer_are_named_and_never_oneself() -> None:
    new = member("new", MemberPhase.JOINING)
    everybody = [
        new,
        member("fresh", MemberPhase.JOINING),
        member("gone", MemberPhase.AWAY),
        member("left", MemberPhase.LEFT),
        member("mute", at=""),
        member("good"),
    ]
    assert choose_donors(everybody, new, PUBLISHED) == (Donor(learner=LearnerId("good"), address="h:1"),)
    assert new.sent_to == "good"


def test_nobody_to_name() -> None:
    new = member("new", MemberPhase.JOINING)
    new.sent_to = LearnerId("before")
    assert choose_donors([new], new, PUBLISHED) == () and new.sent_to is None


def test_whoever_is_behind_comes_after_those_who_are_not() -> None:
    new, behind = member("new", MemberPhase.JOINING), member("a", versions={Fragment(0): Version(0)})
    named = choose_donors([new, behind, member("b")], new, PUBLISHED)
    assert [donor.learner for donor in named] == ["b", "a"]


@given(givers=st.integers(1, 12), joiners=st.integers(0, 40))
def test_a_crowd_of_newcomers_spreads_evenly(givers: int, joiners: int) -> None:
    """However many begin at once, no donor has two more of them than another."""
    everybody = [member(f"g{i}") for i in range(givers)]
    first: Counter[str] = Counter({f"g{i}": 0 for i in range(givers)})
    for j in range(joiners):
        new = member(f"j{j}", MemberPhase.JOINING, at="")
        everybody.append(new)
        named = choose_donors(everybody, new, PUBLISHED)
        assert len({donor.learner for donor in named}) == len(named) == min(givers, MAX_DONORS)
        first[named[0].learner] += 1
    assert max(first.values()) - min(first.values()) <= 1


def test_one_after_another_they_take_turns() -> None:
    everybody = [member("a"), member("b"), member("c")]
    firsts = []
    for j in range(6):
        new = member(f"j{j}", MemberPhase.JOINING)
        firsts.append(choose_donors([*everybody, new], new, PUBLISHED)[0].learner)
    assert firsts == ["a", "b", "c", "a", "b", "c"]


# ── the ladder ───────────────────────────────────────────────────────────────────────────────────────────────────


@given(donors=st.integers(0, 4), own=st.booleans(), busy=st.lists(st.booleans(), max_size=60))
def test_every_ladder_ends_at_the_syncer(donors: int, own: bool, busy: list[bool]) -> None:
    """Peers first, then the own checkpoint if there is one, then the syncer; and it takes a bounded number of tries."""
    named = [Donor(learner=LearnerId(f"d{i}"), address="h:1") for i in range(donors)]
    ladder = Ladder(named, checkpoint=own)
    seen, answers = [ladder.rung.source], iter(busy)
    while ladder.rung.source is not Source.SYNCER:
        is_busy = ladder.rung.source is Source.PEER and next(answers, True)
        seen.append((ladder.busy() if is_busy else ladder.failed()).source)
    assert seen == sorted(seen, key=list(Source).index)
    assert (Source.CHECKPOINT in seen) == own
    assert donors <= seen.count(Source.PEER) <= donors + (MAX_BUSY if donors else 0)


@given(st.lists(st.tuples(st.integers(-1, 5), st.integers(-1, 5)), max_size=6))
def test_covering_is_elementwise(pairs: list[tuple[int, int]]) -> None:
    held, wanted = [Version(a) for a, _ in pairs], [Version(b) for _, b in pairs]
    assert covers(held, wanted) == all(a >= b for a, b in pairs)


# ── the learner ──────────────────────────────────────────────────────────────────────────────────────────────────


def begun(*, round: int = 6, recovers: bool = True) -> tuple[LearnerCore, list[object]]:
    core = LearnerCore(LearnerId("new"), session="s", layout_hash="l", recovers=recovers, donates_at="h:2")
    hello = core.hello()
    assert (hello.needs_state, hello.donates_at) == (recovers, "h:2")
    return core, core.step(0.0, welcome(hello, round))  # type: ignore[return-value]


def welcome(hello: Hello, round: int) -> object:
    return welcome_for(
        member(hello.learner, MemberPhase.JOINING),
        ProtocolSetting(num_fragments=2, sync_period=2, overlap_steps=1),
        run_id="r",
        epoch=Epoch(1),
        cursor=0,
        round=Round(round),
        versions=PUBLISHED if round else (Version(0), Version(0)),
        seed=False,
        begun=True,
        donors=(Donor(learner=LearnerId("a"), address="h:1"),),
    )


def test_nothing_is_pulled_while_a_state_is_looked_for() -> None:
    core, actions = begun()
    assert actions == [Recover(donors=(Donor(learner=LearnerId("a"), address="h:1"),), versions=PUBLISHED)]
    assert core.recovering and not core.hello().needs_state
    news = Announcement(epoch=Epoch(1), round=Round(7), versions=((Fragment(1), Version(7)),))
    assert core.step(1.0, news) == []


def test_what_was_found_is_applied_and_what_is_newer_is_pulled() -> None:
    core, _ = begun()
    core.step(1.0, Announcement(epoch=Epoch(1), round=Round(7), versions=((Fragment(1), Version(7)),)))
    assert core.step(2.0, Recovered(versions=PUBLISHED)) == [Pull(fragment=Fragment(1), version=Version(7))]
    applied = [action for action in core.step(2.0, Boundary()) if isinstance(action, Apply)]
    assert [(action.fragment, action.version) for action in applied] == [(0, 6)]
    assert not core.synchronised, "the base of fragment 1 is too old to begin on"


def test_newer_bases_than_the_welcome_named_are_welcome() -> None:
    core, _ = begun()
    assert core.step(2.0, Recovered(versions=(Version(8), Version(9)))) == []
    core.step(2.0, Boundary())
    assert not core.has_arrived and not core.synchronised, "the donor has heard of rounds that this one has not yet"
    core.step(2.0, Announcement(epoch=Epoch(1), round=Round(9), versions=((Fragment(1), Version(9)),)))
    core.step(2.0, Boundary())
    assert core.held == (8, 9) and core.synchronised


def test_nothing_found_means_everything_is_pulled() -> None:
    core, _ = begun()
    pulls = [Pull(fragment=Fragment(0), version=Version(6)), Pull(fragment=Fragment(1), version=Version(5))]
    assert core.step(2.0, Recovered()) == pulls
    assert core.step(3.0, Recovered(versions=(Version(99), Version(99)))) == [], "it is over"
    assert not core.has_arrived


def test_at_round_0_there_is_nothing_to_recover() -> None:
    core, actions = begun(round=0)
    assert [type(action) for action in actions] == [Pull, Pull] and not core.recovering


def test_a_search_outlives_its_link() -> None:
    """The Welcome of the next connection does not begin another one, and names what has to be pulled."""
    core, _ = begun()
    core.step(1.0, LinkDown())
    assert core.step(2.0, Recovered(versions=(Version(6), NEVER))) == [], "nothing can be pulled now"
    actions = core.step(3.0, welcome(core.hello(), 8))  # type: ignore[arg-type]
    assert actions == [Pull(fragment=Fragment(1), version=Version(5))]


def test_who_was_restored_by_hand_looks_for_nothing() -> None:
    core, _ = begun(recovers=False)
    state = core.snapshot()
    again = LearnerCore(LearnerId("new"), session="t", layout_hash="l", recovers=True)
    again.restore(state)
    assert not again.hello().needs_state


# ── the syncer's core ────────────────────────────────────────────────────────────────────────────────────────────


def test_donors_are_named_after_round_0_and_only_the_synchronised(scripted: Callable[..., Any]) -> None:
    syncer = scripted()
    syncer.hello("a", donates_at="h:1")
    syncer.seed("a")
    syncer.hello("early", donates_at="h:2", needs_state=True)
    assert syncer.welcome("early").donors == (), "at round 0 nobody has more than the weights"
    syncer.synchronise("a")
    syncer.progress("a", 1, tokens=10)
    syncer.answer("a", 1)
    assert syncer.core.published_round == 1
    syncer.hello("late", needs_state=True)
    assert [donor.learner for donor in syncer.welcome("late").donors] == ["a"], "early has not synchronised"
    syncer.hello("plain")
    assert syncer.welcome("plain").donors == (), "it does not ask for any"
    syncer.synchronise("early")
    syncer.hello("later", needs_state=True)
    assert [donor.learner for donor in syncer.welcome("later").donors] == ["early", "a"]


def test_a_fresh_learner_never_seeds_after_round_0(scripted: Callable[..., Any]) -> None:
    """Neither is it asked, nor would its weights be taken, even when it is all that is left."""
    syncer = scripted()
    syncer.begin("a")
    syncer.progress("a", 1, tokens=10)
    syncer.answer("a", 1)
    versions = syncer.core.published
    syncer.goodbye("a")
    syncer.hello("fresh")
    assert not syncer.welcome("fresh").seed
    syncer.seed("fresh")
    assert syncer.core.published == versions == (1,) and syncer.core.published_round == 1
