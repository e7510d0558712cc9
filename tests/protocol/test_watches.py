"""Alarms that no rule of a round looks at: raised at one mark, withdrawn at the other, and once in between."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gruppetto.protocol.actions import Alarm, AlarmKind, AlarmOver
from gruppetto.protocol.alarm_table import MOSTLY_SLOW, ROOM_AGAIN, SELDOM_SLOW, SKEW_S, SKEWED_NO_MORE_S
from gruppetto.protocol.alarms import Alarms
from gruppetto.protocol.events import LookedAround
from gruppetto.protocol.watches import ENOUGH_ROUNDS, Watches

ROUNDS = 8


class Ear:
    """Hears what is said, and knows what holds."""

    def __init__(self, rounds: int = ROUNDS) -> None:
        self.said: list[tuple[str, AlarmKind]] = []
        self.texts: list[str] = []
        self.watches = Watches(Alarms(self._hear, solo_rounds=rounds), rounds=rounds)

    def _hear(self, action: Alarm | AlarmOver) -> None:
        self.said.append(("on" if isinstance(action, Alarm) else "off", action.kind))
        if isinstance(action, Alarm):
            self.texts.append(action.text)

    def holds(self, kind: AlarmKind) -> bool:
        words = [word for word, about in self.said if about is kind]
        assert words == (["on", "off"] * len(words))[: len(words)], "said once for as long as it holds"
        return words[-1:] == ["on"]

    def look(self, **seen: Any) -> None:
        self.watches.looked(LookedAround(**seen), ("anna", "ben"))  # type: ignore[arg-type]


def with_marks(values: list[float], on: float, off: float) -> list[bool]:
    """A deliberately dumb twin: above ``on`` it holds, at ``off`` or below it does not, between it stays."""
    held, holds = [], False
    for value in values:
        holds = value > on or (holds and value > off)
        held.append(holds)
    return held


@given(st.lists(st.integers(0, 300), max_size=30))
def test_a_disk_that_fills(free: list[int]) -> None:
    ear, seen = Ear(), []
    for free_bytes in free:
        ear.look(free_bytes=free_bytes, wanted_bytes=100)
        seen.append(ear.holds(AlarmKind.DISK_FILLING))
    assert seen == with_marks([-float(f) for f in free], on=-100, off=-100 * ROOM_AGAIN)


def test_a_disk_that_cannot_be_asked_changes_nothing() -> None:
    ear = Ear()
    ear.look(free_bytes=None, wanted_bytes=100)
    assert not ear.holds(AlarmKind.DISK_FILLING)
    ear.look(free_bytes=99, wanted_bytes=100)
    ear.look(free_bytes=None, wanted_bytes=100)
    assert ear.holds(AlarmKind.DISK_FILLING)


@given(st.lists(st.tuples(st.floats(-9, 9), st.floats(-9, 9)), max_size=30))
def test_clocks_that_are_off(skews: list[tuple[float, float]]) -> None:
    ear, seen = Ear(), []
    for anna, ben in skews:
        ear.look(skews_s=(("anna", anna), ("ben", ben), ("gone", 1e9)))
        seen.append(ear.holds(AlarmKind.CLOCK_SKEW))
    assert seen == with_marks([max(abs(a), abs(b)) for a, b in skews], on=SKEW_S, off=SKEWED_NO_MORE_S)


@pytest.mark.parametrize(
    ("losses", "holds"),
    [
        ([8.0, 6.0, 4.0, 3.0, 2.5], False),
        ([2.0, 2.2, 1.8, 2.3, 2.1] * 5, False),
        ([2.0] * 20 + [4.0] * 5, True),
        ([2.0] * 5 + [4.0] * 20, True),  # what is usual was hardly known
        ([2.0] * 20 + [4.0] * 5 + [2.0] * 10, False),
        ([2.0, math.nan], True),
        ([2.0, math.nan, 2.0], False),
        ([0.01] * 5 + [0.03] * 20, False),
        ([-5.0] * 5 + [-4.0] * 20, False),
    ],
)
def test_a_loss_that_diverges(losses: list[float], holds: bool) -> None:
    ear = Ear()
    for loss in losses:
        ear.look(losses=(("anna", loss),))
    assert ear.holds(AlarmKind.DIVERGES) is holds


@pytest.mark.parametrize(("mean", "spread"), [(2.0, 0.7), (1.0, 0.4), (0.6, 0.3), (2.5, 0.2)])
def test_a_healthy_loss_may_be_as_noisy_as_small_batches_make_it(mean: float, spread: float) -> None:
    """And one that rises out of that noise is seen all the same."""
    for seed in range(3):
        rng, ear = random.Random(seed), Ear()
        for look in range(600):
            ear.look(losses=(("anna", max(0.0, rng.gauss(mean + 3 * 0.97**look, spread))),))
        assert ear.said == []
        for look in range(40):
            ear.look(losses=(("anna", rng.gauss(mean + 6 * spread + 0.1 * look, spread)),))
        assert ear.holds(AlarmKind.DIVERGES)


@pytest.mark.parametrize("growth", [1.05, 1.2, 2.0, 10.0, 1000.0])
def test_a_loss_that_explodes_is_not_taken_for_noise(growth: float) -> None:
    ear = Ear()
    for look in range(100):
        ear.look(losses=(("anna", 2.0 + 0.1 * (look % 2)),))
    for look in range(30):
        ear.look(losses=(("anna", 2.0 * growth**look),))
    assert ear.said == [("on", AlarmKind.DIVERGES)]


def test_one_loss_that_rises_among_three_is_no_alarm_and_one_that_is_no_number_is() -> None:
    ear, held = Ear(), []
    for loss in (2.0, 2.0, 900.0, math.nan, math.nan, -math.inf, 2.0, math.inf):
        ear.watches.looked(
            LookedAround(losses=(("a", 2.0), ("b", 2.0), ("c", loss))),  # type: ignore[arg-type]
            ("a", "b", "c"),  # type: ignore[arg-type]
        )
        held.append(ear.holds(AlarmKind.DIVERGES))
    assert held == [False, False, False, True, True, True, False, True]
    assert ear.texts[0].startswith("the loss of c is not finite. Lower the learning rate")
    ear.look(losses=(("c", math.inf),))  # it is gone, and nobody else reports any
    assert not ear.holds(AlarmKind.DIVERGES)


def test_a_loss_that_was_no_number_for_a_moment_has_not_risen() -> None:
    """Between both marks of a rise there is no memory of what was not finite."""
    ear = Ear()
    for loss in (2.0, 2.0, math.nan, 3.2, 2.6, 2.6, 2.6):
        ear.look(losses=(("anna", loss),))
    assert not ear.holds(AlarmKind.DIVERGES)


@given(st.lists(st.sampled_from([0.5, 1.5, None]), max_size=40))
def test_a_syncer_slower_than_a_step(steps: list[float | None]) -> None:
    """The rounds of its youth say nothing, and neither do those in which nobody's step is known."""
    ear, told, holds = Ear(), list[bool](), False
    for round, step_s in enumerate([0.1] * (ENOUGH_ROUNDS - 1) + steps):
        ear.watches.published(round, sync_s=1.0, step_s=step_s)  # type: ignore[arg-type]
        if step_s is not None and round + 1 >= ENOUGH_ROUNDS:
            told.append(step_s < 1.0)
        holds = sum(told[-ROUNDS:]) >= (SELDOM_SLOW if holds else MOSTLY_SLOW) * ROUNDS
        assert ear.holds(AlarmKind.SLOW_SYNCER) is holds


def test_steps_of_uneven_length_are_no_news_at_every_crossing() -> None:
    """Two thirds of these rounds are slow, in no order: it is said once."""
    ear, rng = Ear(rounds=32), random.Random(5)
    for round in range(2000):
        ear.watches.published(round, sync_s=0.1, step_s=rng.choice((0.02, 0.08, 0.3)))  # type: ignore[arg-type]
    assert ear.said == [("on", AlarmKind.SLOW_SYNCER)]


def close(ear: Ear, round: int, merged: str, *, live: str = "abc", spent: bool = False) -> None:
    ear.watches.closed(round, live=live, merged=merged, grace_spent=spent)  # type: ignore[arg-type]


@given(st.lists(st.tuples(st.sampled_from(["", "a", "ab", "abc"]), st.sampled_from(["ab", "abc"])), max_size=40))
def test_who_is_live_and_never_merged(rounds: list[tuple[str, str]]) -> None:
    ear = Ear()
    for t, (merged, live) in enumerate(rounds):
        close(ear, t, merged, live=live)
        past = rounds[max(0, t + 1 - ROUNDS) : t + 1]
        out = [name for name in live if len(past) == ROUNDS and all(name in h and name not in m for m, h in past)]
        assert ear.holds(AlarmKind.LEFT_OUT) is bool(out)


def test_grace_that_is_always_spent() -> None:
    ear = Ear()
    for t in range(ROUNDS - 1):
        close(ear, t, "ab", spent=True)
    assert not ear.holds(AlarmKind.GRACE_SPENT)
    close(ear, ROUNDS, "ab", spent=True)
    assert ear.holds(AlarmKind.GRACE_SPENT)
    for t in range(ROUNDS // 2):
        close(ear, 20 + t, "abc", spent=True)  # spent, but with everybody in
    assert ear.holds(AlarmKind.GRACE_SPENT)
    close(ear, 30, "ab", spent=False)
    assert not ear.holds(AlarmKind.GRACE_SPENT)
    assert ear.texts[0].startswith("round 8: 100% of the last rounds")
