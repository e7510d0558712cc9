"""An axis of time in the unit in which people would say it: seconds, minutes, hours or days."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["tell_time", "ticks_of", "unit_of"]

MOST_TICKS = 10
UNITS = (
    ("seconds", 1.0, 180.0),
    ("minutes", 60.0, 180.0 * 60),
    ("hours", 3600.0, 96.0 * 3600),
    ("days", 86_400.0, float("inf")),
)
"""Name, seconds, and until which span it is used."""
ROUND = {"minutes": (1, 2, 5, 10, 15, 30), "hours": (0.25, 0.5, 1, 2, 3, 6, 12)}
"""Distances of ticks where tens are not what people count by."""


def unit_of(span_s: float) -> tuple[str, float]:
    """Its name, and how many seconds it has.

    >>> unit_of(90.0), unit_of(1800.0), unit_of(86_400.0)
    (('seconds', 1.0), ('minutes', 60.0), ('hours', 3600.0))
    """
    name, size, _ = next(unit for unit in UNITS if span_s <= unit[2])
    return name, size


def ticks_of(span_s: float) -> float:
    """Seconds between two ticks.

    >>> ticks_of(86_400.0) / 3600, ticks_of(1800.0) / 60, ticks_of(71.0), ticks_of(30 * 86_400.0) / 86_400
    (3.0, 5.0, 10.0, 5.0)
    """
    name, size = unit_of(span_s)
    span = max(span_s / size, 1e-9)
    tens = [digit * 10.0**power for power in range(-9, 10) for digit in (1, 2, 5)]
    return size * next(each for each in (*ROUND.get(name, ()), *tens) if span / each <= MOST_TICKS)


def tell_time(axes: Axes, start_s: float, end_s: float) -> str:
    """Give the x axis, which is in seconds, ticks of the unit that fits; its name, for a label."""
    from matplotlib.ticker import FuncFormatter, MultipleLocator

    name, size = unit_of(end_s - start_s)
    axes.xaxis.set_major_locator(MultipleLocator(ticks_of(end_s - start_s)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda seconds, _: f"{seconds / size:g}"))
    return name
