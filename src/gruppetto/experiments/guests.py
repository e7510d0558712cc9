"""Guests as spare machines come and go, and what they are worth in time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from gruppetto.experiments.ride import Ride
from gruppetto.train.virtual_setting import Guest

__all__ = ["VISITS", "time_to_loss", "time_to_tokens", "visits"]

VISITS = 3

Curve = Sequence[tuple[float, float, float]]
"""(virtual seconds, tokens of all, held-out loss), in order of time."""


def visits(ride: Ride) -> tuple[Guest, ...]:
    """Every visit is by machines that were never there before; a step takes a second.

    Together they last for ``guests_share`` of the time that the plain run takes, and are spread evenly over the time
    that is left of it if letting guests in and out costs nothing.
    """
    whole_s, share = float(ride.guests_of_rounds), ride.guests_share
    every_s = whole_s * (1.0 - share * ride.guests / ride.learners) / VISITS
    lasts_s = whole_s * share / VISITS
    middles = [(visit + 0.5) * every_s for visit in range(VISITS if ride.guests else 0)]
    return tuple(
        Guest(name=f"guest-{visit}-{i}", joins_s=middle - lasts_s / 2, leaves_s=middle + lasts_s / 2)
        for visit, middle in enumerate(middles)
        for i in range(ride.guests)
    )


def time_to_tokens(curve: Curve, tokens: float) -> float:
    """Virtual seconds; a run that ends a little before goes on at its mean pace.

    >>> time_to_tokens([(10.0, 100, 3.0), (20.0, 300, 2.0)], 200), time_to_tokens([(10.0, 100, 3.0)], 110)
    (15.0, 11.0)
    """
    then_s, had = 0.0, 0.0
    for at_s, consumed, _ in curve:
        if consumed >= tokens:
            return then_s + (at_s - then_s) * (tokens - had) / (consumed - had)
        then_s, had = at_s, consumed
    return then_s * tokens / had


def time_to_loss(curve: Curve, loss: float) -> float:
    """When it is first reached, between two evaluations; infinite if never.

    >>> time_to_loss([(0.0, 0, 4.0), (10.0, 1, 2.0)], 3.0)
    5.0
    """
    for (then_s, _, before), (at_s, _, after) in pairwise(curve):
        if after <= loss:
            return then_s + (at_s - then_s) * (before - loss) / (before - after)
    return math.inf
