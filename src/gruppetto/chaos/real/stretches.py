"""Time as stretches, sorted and apart from each other: what of one covers another, and what of it nobody covers."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["Stretches", "length", "overlap", "without"]

Stretches = Sequence[tuple[float, float]]


def without(stretches: Stretches, holes: Stretches) -> list[tuple[float, float]]:
    """What of ``stretches`` lies in none of ``holes``.

    >>> without([(0.0, 10.0)], [(2.0, 3.0), (9.0, 12.0)])
    [(0.0, 2.0), (3.0, 9.0)]
    """
    left: list[tuple[float, float]] = []
    for a, b in stretches:
        for hole_a, hole_b in holes:
            if hole_b <= a or hole_a >= b:
                continue
            if hole_a > a:
                left.append((a, hole_a))
            a = max(a, hole_b)
        if b > a:
            left.append((a, b))
    return left


def length(stretches: Stretches) -> float:
    """How much time they cover.

    >>> length([(0.0, 1.0), (3.0, 5.0)])
    3.0
    """
    return sum(b - a for a, b in stretches)


def overlap(some: Stretches, others: Stretches) -> float:
    """How much time both cover.

    >>> overlap([(0.0, 4.0)], [(3.0, 5.0), (6.0, 7.0)])
    1.0
    """
    return length(others) - length(without(others, some))
