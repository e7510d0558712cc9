"""The core at the gate where contributions are compared: clipped, refused, capped, and who pulls back."""

from __future__ import annotations

from typing import Any

import pytest

from gruppetto.protocol.actions import Alarm, AlarmKind, Drop, Fold, RoundClosed
from gruppetto.protocol.events import Folded, Seeded
from gruppetto.protocol.heading import ENOUGH
from gruppetto.protocol.messages import Ask, ClipCause, Clipping, Rejection, RejectionReason
from gruppetto.protocol.units import Fragment, LearnerId, Round

NAMES = ("a", "b", "c")


def begun(scripted: Any, names: tuple[str, ...] = NAMES, **setting: Any) -> Any:
    """Everybody is live and needed, and round 1 has asked for the one fragment, whose pieces are (10, 20) long."""
    s = scripted(**{"num_learners": len(names), "min_quorum": len(names), **setting})
    for name in names:
        s.hello(name)
    s.feed(Seeded(learner=LearnerId(names[0]), incarnation=s.incarnation(names[0]), value_norms=((10.0, 20.0),)))
    for name in names:
        s.synchronise(name)
    step(s, 1, names)
    return s


def step(s: Any, round: int, names: tuple[str, ...] = NAMES) -> None:
    """All that is published is applied, and a step of ten tokens made on top."""
    for name in names:
        s.synchronise(name, clock=round - 1, at_tokens=10 * (round - 1))
        s.progress(name, round, tokens=10 * round)


def offer(s: Any, name: str, round: int, *norms: float, **fields: Any) -> list[Any]:
    return s.answer(name, round, 0, norms=norms, **fields)  # type: ignore[no-any-return]


def test_who_is_too_long_in_the_very_first_round_is_clipped_even_if_it_comes_first(scripted: Any) -> None:
    s = begun(scripted)
    offer(s, "a", 1, 1000.0, 5.0)
    assert s.said(Fold)[-1].caps == ((0, 1.0),)
    offer(s, "b", 1, 1.0, 2.0)
    assert s.said(Fold)[-1].caps == ()
    [told] = s.sent(Clipping, "a")
    assert (told.cause, told.round, told.factor) == (ClipCause.NORM, 1, 1000.0)
    assert s.core.clipped == {"norm": 1} and s.core.rejected == {}
    assert s.core.members.get("a").norm == pytest.approx(1000.0125)


def test_what_is_clipped_is_merged_and_booked(scripted: Any) -> None:
    s = begun(scripted)
    for name in NAMES:
        offer(s, name, 1, 1000.0, 1.0)
    assert s.said(RoundClosed)[-1].participants == NAMES
    assert s.core.ledger.totals.merged == 30


def test_what_was_offered_is_the_yardstick_of_those_to_come(scripted: Any) -> None:
    s = begun(scripted)
    for round in (1, 2):
        for name in NAMES:
            offer(s, name, round, 0.01, 2.0)
        step(s, round + 1)
    offer(s, "a", 3, 0.2, 2.0)
    assert s.said(Fold)[-1].caps == ((0, 0.01),)


def test_off_is_off_and_the_factor_counts(scripted: Any) -> None:
    cases = (({"norm_gate": "off"}, False), ({"norm_factor": 2000.0}, False), ({"norm_factor": 5.0}, True))
    for setting, clipped in cases:
        s = begun(scripted, **setting)
        offer(s, "a", 1, 1000.0, 2.0)
        assert bool(s.said(Fold)[-1].caps) is clipped, setting


def test_a_shell_that_does_not_look_is_not_judged(scripted: Any) -> None:
    s = begun(scripted)
    s.answer("a", 1)
    assert s.said(Fold)[-1].caps == ()


def test_reject_refuses_a_minority_and_says_so(scripted: Any) -> None:
    s = begun(scripted, norm_gate="reject", min_quorum=2)
    offer(s, "a", 1, 1000.0, 2.0)
    assert [d.reason for d in s.said(Drop)] == [RejectionReason.NORM]
    assert [r.reason for r in s.sent(Rejection, "a")] == [RejectionReason.NORM]
    offer(s, "b", 1, 1.0, 2.0)
    offer(s, "c", 1, 1.0, 2.0)
    assert s.said(RoundClosed)[-1].participants == ("b", "c")
    assert s.core.rejected == {"norm": 1}


def test_a_majority_is_right_and_who_was_refused_before_it_is_asked_again(scripted: Any) -> None:
    s = begun(scripted, norm_gate="reject", min_quorum=2)
    offer(s, "a", 1, 1000.0, 2.0)
    asked = len(s.sent(Ask, "a"))
    offer(s, "b", 1, 1000.0, 2.0)
    assert s.said(Fold)[-1].caps == ((0, 1.0),)
    assert len(s.sent(Ask, "a")) == asked + 1
    offer(s, "a", 1, 1000.0, 2.0)
    assert s.said(RoundClosed)[-1].participants == ("a", "b")
    assert [(f.learner, f.caps) for f in s.said(Fold)] == [(name, ((0, 1.0),)) for name in ("b", "a")]


def test_a_single_learner_never_locks_itself_up(scripted: Any) -> None:
    s = begun(scripted, ("a",), norm_gate="reject")
    for round in range(1, 20):
        offer(s, "a", round, 1000.0, 2.0)
        step(s, round + 1, ("a",))
    assert s.core.published_round == 19
    assert s.said(Fold)[-1].caps == ()


@pytest.mark.parametrize("when_short", ["wait", "degrade"])
def test_nor_does_a_run_that_needs_everybody(scripted: Any, when_short: str) -> None:
    """K = M: refusing one of them would be waiting for it for ever."""
    s = begun(scripted, norm_gate="reject", min_quorum=3, when_short=when_short)
    for round in range(1, 8):
        offer(s, "a", round, 1000.0, 2.0)
        offer(s, "b", round, 1.0, 2.0)
        offer(s, "c", round, 1.0, 2.0)
        step(s, round + 1)
    assert s.core.published_round == 7
    assert s.core.rejected == {} and s.core.clipped == {"norm": 7}
    assert all(f.caps == ((0, 1.0),) for f in s.said(Fold) if f.learner == "a")


def test_who_is_refused_may_make_good_while_the_round_is_short(scripted: Any) -> None:
    s = begun(scripted, norm_gate="reject", min_quorum=2)
    offer(s, "a", 1, 1000.0, 2.0)
    offer(s, "b", 1, 1.0, 2.0)
    step(s, 1, ("a",))
    assert len(s.sent(Ask, "a")) == 2
    offer(s, "a", 1, 1.0, 2.0)
    assert s.said(Fold)[-1].learner == "a" and s.said(Fold)[-1].caps == ()


def test_yardsticks_and_counts_survive_a_restart(scripted: Any) -> None:
    s = begun(scripted)
    for round in (1, 2):
        for name in NAMES:
            offer(s, name, round, 0.01, 1000.0 if name == "c" else 2.0)
        step(s, round + 1)
    state = s.durable
    assert state.yardsticks == ((0.01, 2.0),) and state.clipped == (("norm", 2),)
    assert state.usual_weight == 100.0
    again = scripted(num_learners=3, epoch=2, state=state)
    for name in NAMES:
        again.hello(name, run_id="run", incarnation=1, versions=(2,))
        again.synchronise(name, clock=3, at_tokens=30)
    again.answer("a", 3, 0, norms=(1.0, 2.0), total_tokens=40, base_version=2)
    assert again.said(Fold)[-1].caps == ((0, 0.01),)


# ── weights ─────────────────────────────────────────────────────────────────────────────────────────────────────


def weights_of(s: Any, claim: int) -> list[float]:
    for round in (1, 2):
        for name in NAMES:
            s.answer(name, round, tokens=10, total_tokens=10 * round)
        step(s, round + 1)
    s.answer("a", 3, tokens=claim, total_tokens=claim + 20)
    return [f.weight for f in s.said(Fold)]


def test_who_claims_too_many_tokens_does_not_dominate(scripted: Any) -> None:
    s = begun(scripted)
    assert weights_of(s, 1000) == [100.0] * 6 + [800.0]
    [told] = s.sent(Clipping, "a")
    assert (told.cause, told.factor) == (ClipCause.WEIGHT, 10_000.0)
    assert s.core.clipped == {"weight": 1}


@pytest.mark.parametrize(("cap", "weight"), [(None, 1e6), (8.0, 800.0), (2.0, 200.0)])
def test_the_cap_is_a_setting(scripted: Any, cap: float | None, weight: float) -> None:
    assert weights_of(begun(scripted, weight_cap=cap), 1000)[-1] == weight


def test_a_few_times_more_work_counts_a_few_times_more(scripted: Any) -> None:
    assert weights_of(begun(scripted), 25)[-1] == 625.0


def test_alone_there_is_nobody_to_be_dominated(scripted: Any) -> None:
    s = begun(scripted, ("a",))
    for round, tokens in enumerate((10, 10, 10, 10, 10, 1000), start=1):
        s.answer("a", round, tokens=tokens, total_tokens=10 * (round - 1) + tokens)
        step(s, round + 1, ("a",))
    assert s.said(Fold)[-1].weight == 1e6


# ── directions ──────────────────────────────────────────────────────────────────────────────────────────────────


def pull(s: Any, count: int, **cosines: float | None) -> list[str]:
    """So many contributions of each; the texts of the alarms that come of them."""
    before = len(s.said(Alarm))
    for _ in range(count):
        for name, cosine in cosines.items():
            s.feed(Folded(round=Round(1), fragment=Fragment(0), learner=LearnerId(name), cosine=cosine))
    return [a.text for a in s.said(Alarm)[before:] if a.kind is AlarmKind.DIRECTION]


def test_who_pulls_back_for_long_is_named_once(scripted: Any) -> None:
    s = begun(scripted)
    assert pull(s, ENOUGH - 1, a=0.3, b=0.2, c=-0.4) == []
    [text] = pull(s, 100, a=0.3, b=0.2, c=-0.4)
    assert "the contributions of c point" in text
    assert s.core.members.get("c").cosine == -0.4


def test_one_more_is_news_and_so_is_one_that_begins_again(scripted: Any) -> None:
    s = begun(scripted, (*NAMES, "d", "e"))
    assert len(pull(s, 50, a=0.3, b=0.2, c=0.4, d=0.3, e=-0.5)) == 1
    [text] = pull(s, 50, a=0.3, b=0.2, c=0.4, d=-0.5, e=-0.5)
    assert "of d, e point" in text
    assert pull(s, 50, a=0.3, b=0.2, c=0.4, d=0.3, e=0.3) == []
    assert len(pull(s, 50, a=0.3, b=0.2, c=0.4, d=0.3, e=-0.5)) == 1


def test_nobody_is_named_when_all_pull_back_or_none_is_known(scripted: Any) -> None:
    assert pull(begun(scripted), 60, a=-0.3, b=-0.2, c=-0.4) == []
    assert pull(begun(scripted), 60, a=None, b=None, c=None) == []
    assert pull(begun(scripted), 60, a=0.1, b=0.0, c=-0.05) == []
