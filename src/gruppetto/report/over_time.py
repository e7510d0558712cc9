"""Held-out loss against time, of a run and its rivals: who is where when. Times are whatever the run's clock says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from gruppetto.report.figures import COLOURS, chart

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["draw_loss_over_time"]


def draw_loss_over_time(curves: Mapping[str, Sequence[tuple[float, float]]]) -> Figure:
    """One named line of (seconds, nats per token) for each system. Raises ImportError without matplotlib."""
    return chart(lambda axes: _lines(axes, curves))


def _lines(axes: Axes, curves: Mapping[str, Sequence[tuple[float, float]]]) -> None:
    for place, (name, points) in enumerate(curves.items()):
        colour = COLOURS[place % len(COLOURS)]
        axes.plot([t for t, _ in points], [loss for _, loss in points], "o-", ms=3, lw=1.6, color=colour, label=name)
    axes.set_xlabel("virtual seconds")
    axes.set_ylabel("held-out loss, nats per token")
    axes.grid(alpha=0.25)
    axes.legend()
