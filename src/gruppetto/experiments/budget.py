"""How much time there is for rides, and which of them are still worth beginning."""

from __future__ import annotations

from gruppetto.experiments.ride import Ride
from gruppetto.runtime.clock import Clock

__all__ = ["Budget", "steps_of"]

Kind = tuple[str, str, int]
"""What the length of a step goes by: system, model, and batch."""


def steps_of(ride: Ride) -> float:
    """Steps of all learners, guests and fine-tuning included.

    >>> steps_of(Ride(learners=4, rounds=100, tuned_steps=20))
    420.0
    """
    guests = ride.guests * ride.guests_share * ride.guests_of_rounds
    return float(ride.learners * ride.rounds + guests + ride.tuned_steps)


class Budget:
    """So many seconds from now on; a ride that would not be over by then is not begun.

    How long one takes is expected of those of its kind that were made since, by the number of their steps; the first of
    a kind is begun as long as there is any time, so that the budget can be exceeded by one such ride a worker.

    >>> from gruppetto.runtime.clock import ManualClock
    >>> clock = ManualClock()
    >>> budget = Budget(100.0, clock)
    >>> budget.made(Ride(learners=4, rounds=100), took_s=20.0)
    >>> clock.advance(70.0)
    >>> budget.allows(Ride(learners=4, rounds=100)), budget.allows(Ride(learners=8, rounds=100))
    (True, False)
    """

    def __init__(self, seconds: float, clock: Clock) -> None:
        self._clock = clock
        self._over_at = clock.now() + seconds
        self._made: dict[Kind, tuple[float, float]] = {}

    @property
    def left_s(self) -> float:
        """Seconds; 0 when it is used up."""
        return max(0.0, self._over_at - self._clock.now())

    def expected_s(self, ride: Ride) -> float:
        """How long it will take; 0 where nothing is known."""
        seconds, steps = self._made.get(_kind(ride), (0.0, 1.0))
        return steps_of(ride) * seconds / steps

    def allows(self, ride: Ride) -> bool:
        """Whether it is to be begun now."""
        left_s = self.left_s
        return left_s > 0 and self.expected_s(ride) <= left_s

    def made(self, ride: Ride, *, took_s: float) -> None:
        """Learn from one that is over."""
        seconds, steps = self._made.get(_kind(ride), (0.0, 0.0))
        self._made[_kind(ride)] = seconds + took_s, steps + steps_of(ride)


def _kind(ride: Ride) -> Kind:
    return ride.system, ride.model, ride.batch
