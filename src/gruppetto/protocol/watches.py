"""What an operator should know though no rule of a round looks at it: pace, participation, disk, clocks, loss.

Nothing here changes what is merged. Between the mark at which an alarm is raised and the one at which it is withdrawn
nothing changes, so that none comes and goes at every crossing.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping

from gruppetto.protocol.actions import AlarmKind
from gruppetto.protocol.alarm_table import (
    ALWAYS_SPENT,
    FALLEN_AGAIN,
    LOSS_FACTOR,
    LOSS_NATS,
    LOSS_NOISES,
    MOSTLY_SLOW,
    ROOM_AGAIN,
    SELDOM_SLOW,
    SELDOM_SPENT,
    SKEW_S,
    SKEWED_NO_MORE_S,
)
from gruppetto.protocol.alarms import Alarms
from gruppetto.protocol.events import LookedAround
from gruppetto.protocol.grace import median
from gruppetto.protocol.units import LearnerId, Round

__all__ = ["Watches"]

ENOUGH_ROUNDS = 20
"""The first rounds of a life are not like the others: caches are cold, and averages young."""
SMOOTHING, NOISE_SMOOTHING = 0.2, 0.05
"""Of the loss, and of its noise: so much slower that a rise, however steep, is not taken for noise."""
MIB = 2**20


class Watches:
    """Tells ``alarms`` what it sees. ``rounds``: how many make "lately"."""

    def __init__(self, alarms: Alarms, *, rounds: int) -> None:
        self._alarms = alarms
        self._rounds = rounds
        self._published = 0
        self._slow: deque[bool] = deque(maxlen=rounds)
        self._spent: deque[bool] = deque(maxlen=rounds)
        self._missed: dict[LearnerId, int] = {}
        """Rounds in a row without work of a learner that was live in all of them."""
        self._loss: float | None = None
        self._best: float = math.inf
        self._noise = 0.0
        """How far a loss usually lies from the smoothed one."""
        self._looks = 0
        self._risen = False

    def published(self, round: Round, *, sync_s: float, step_s: float | None) -> None:
        """``step_s``: a step of the learners at whose pace rounds could go. ``sync_s``: from closing to publication."""
        self._published += 1
        if step_s is None or self._published < ENOUGH_ROUNDS:
            return
        self._slow.append(sync_s > step_s)
        share = sum(self._slow) / self._rounds
        self._alarms.keep(
            AlarmKind.SLOW_SYNCER,
            share >= (SELDOM_SLOW if self._alarms.holds(AlarmKind.SLOW_SYNCER) else MOSTLY_SLOW),
            lambda: (
                f"round {round}: merging, persisting and publishing takes {sync_s:.3g} s, a step {step_s:.3g} s, and "
                f"was the longer of both in {share:.0%} of the last rounds."
            ),
        )

    def closed(
        self, round: Round, *, live: Iterable[LearnerId], merged: Iterable[LearnerId], grace_spent: bool
    ) -> None:
        """``merged``: those of whose work the round holds some. ``grace_spent``: it ended with its window."""
        here, held = list(live), set(merged)
        self._spent.append(grace_spent and len(held) < len(here))
        share = sum(self._spent) / self._rounds
        self._alarms.keep(
            AlarmKind.GRACE_SPENT,
            share >= (SELDOM_SPENT if self._alarms.holds(AlarmKind.GRACE_SPENT) else ALWAYS_SPENT),
            lambda: f"round {round}: {share:.0%} of the last rounds spent their grace window and lacked somebody.",
        )
        before = self._missed
        self._missed = {name: 0 if name in held else before.get(name, 0) + 1 for name in here}
        left_out = [name for name, missed in self._missed.items() if missed >= self._rounds]
        self._alarms.keep(
            AlarmKind.LEFT_OUT,
            bool(left_out),
            lambda: (
                f"round {round}: {len(here)} learners are live, and no work of {', '.join(left_out)} was merged in the "
                f"last {self._rounds} rounds."
            ),
        )

    def looked(self, event: LookedAround, live: Iterable[LearnerId]) -> None:
        """What the shell has seen beside the protocol, of learners that are live now."""
        here = set(live)
        self._mind_the_disk(event.free_bytes, event.wanted_bytes)
        self._mind_the_clocks({name: skew for name, skew in event.skews_s if name in here})
        self._mind_the_losses([(name, loss) for name, loss in event.losses if name in here])

    def _mind_the_disk(self, free: int | None, wanted: int) -> None:
        if free is None:
            return
        enough = ROOM_AGAIN * wanted if self._alarms.holds(AlarmKind.DISK_FILLING) else wanted
        self._alarms.keep(
            AlarmKind.DISK_FILLING,
            free < enough,
            lambda: (
                f"{free / 2**20:,.0f} MiB are free under the state directory, {wanted / 2**20:,.0f} MiB are wanted."
            ),
        )

    def _mind_the_clocks(self, skews: Mapping[LearnerId, float]) -> None:
        worst = max(skews, key=lambda name: (abs(skews[name]), name), default=None)
        if worst is None:
            self._alarms.keep(AlarmKind.CLOCK_SKEW, False, str)
            return
        skew = skews[worst]
        limit = SKEWED_NO_MORE_S if self._alarms.holds(AlarmKind.CLOCK_SKEW) else SKEW_S
        self._alarms.keep(
            AlarmKind.CLOCK_SKEW,
            abs(skew) > limit,
            lambda: f"the clock of {worst} is {abs(skew):.0f} s {'ahead of' if skew > 0 else 'behind'} the syncer's.",
        )

    def _mind_the_losses(self, losses: list[tuple[LearnerId, float]]) -> None:
        """Most have to rise before the run diverges; a loss that is no number any more is one learner's end."""
        spoilt = sorted(name for name, loss in losses if not math.isfinite(loss))
        now = median([loss for _, loss in losses if math.isfinite(loss)])
        if now is not None:
            self._mind_the_rise(now)
        smoothed, best = self._loss, self._best
        self._alarms.keep(
            AlarmKind.DIVERGES,
            self._risen or bool(spoilt),
            lambda: (
                f"the loss of {', '.join(spoilt)} is not finite."
                if spoilt
                else f"the loss that learners report has risen to {smoothed:.4g}; it was {best:.4g}."
            ),
        )

    def _mind_the_rise(self, now: float) -> None:
        before = now if self._loss is None else self._loss
        self._loss = before + SMOOTHING * (now - before)
        self._best = min(self._best, self._loss)
        if not self._risen:
            self._looks += 1
            self._noise += max(NOISE_SMOOTHING, 1 / self._looks) * (abs(now - before) - self._noise)
        rise = max(LOSS_NATS, (LOSS_FACTOR - 1) * abs(self._best), LOSS_NOISES * self._noise)
        self._risen = self._loss > self._best + (FALLEN_AGAIN * rise if self._risen else rise)
