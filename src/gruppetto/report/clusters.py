"""The pictures of clusters that nobody can try: goodput against chips, utilisation against bandwidth.

In the style of :mod:`~gruppetto.report.figures`; matplotlib is imported when something is drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gruppetto.errors import UserError
from gruppetto.report.figures import COLOURS, chart, save_png
from gruppetto.sim.bandwidth import Demand
from gruppetto.sim.goodput import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["check_kind", "draw_goodput", "draw_utilisation", "save"]

LINES = {
    "data-parallel": ("data parallel", ":"),
    "elastic": ("elastic data parallel", "--"),
    "diloco": ("DiLoCo", "-."),
}


def draw_goodput(rows: Sequence[Row]) -> Figure:
    """Goodput against chips: one line for each system and number of learners."""
    return _drawn(lambda axes: _goodput(axes, rows))


def draw_utilisation(curves: Sequence[tuple[str, Sequence[Demand]]]) -> Figure:
    """The share of time in which chips compute, against the bandwidth between sites; one named line for each curve."""
    return _drawn(lambda axes: _utilisation(axes, curves))


def check_kind(path: Path) -> None:
    """Whether matplotlib draws such a picture, before hours are simulated for it. Raises :class:`UserError`."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
    except ImportError:
        raise _missing() from None
    kinds = FigureCanvasAgg.get_supported_filetypes()
    if path.suffix and path.suffix[1:].lower() not in kinds:
        raise UserError(f"{path.suffix} is no kind of picture", where=str(path), fix="name a .png, .svg or .pdf")


def save(figure: Figure, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    save_png(figure, path)


def _drawn(draw: Callable[[Axes], None]) -> Figure:
    try:
        return chart(draw)
    except ImportError:
        raise _missing() from None


def _missing() -> UserError:
    return UserError("there is no matplotlib", where="--figure", fix="pip install 'gruppetto[dashboard]'")


def _goodput(axes: Axes, rows: Sequence[Row]) -> None:
    lines: dict[tuple[str, int], list[Row]] = {}
    for row in rows:
        lines.setdefault((row.system, row.learners), []).append(row)
    for place, ((system, learners), cells) in enumerate(sorted(lines.items())):
        cells = sorted(cells, key=lambda row: row.chips)
        name, dash = LINES.get(system, ("decoupled", "-"))
        label = name if learners == 1 and system != "decoupled" else f"{name}, M = {learners}"
        axes.errorbar(
            [row.chips for row in cells],
            [100 * row.goodput for row in cells],
            yerr=[100 * (row.ci95 or 0.0) for row in cells],
            fmt=dash,
            marker="o",
            ms=4,
            color=COLOURS[place % len(COLOURS)],
            label=label,
        )
    axes.set_xscale("log")
    axes.set_ylim(0, 101)
    axes.set_xlabel("chips")
    axes.set_ylabel("goodput, %")
    axes.legend()


def _utilisation(axes: Axes, curves: Sequence[tuple[str, Sequence[Demand]]]) -> None:
    for place, (name, points) in enumerate(curves):
        axes.plot(
            [point.gbit_s for point in points],
            [100 * point.utilisation for point in points],
            color=COLOURS[place % len(COLOURS)],
            label=name,
        )
        if any(point.in_time < point.utilisation for point in points):
            axes.plot(
                [point.gbit_s for point in points],
                [100 * point.in_time for point in points],
                "--",
                color=COLOURS[place % len(COLOURS)],
                label=f"{name.partition(',')[0]}: rounds in time",
            )
    axes.set_xscale("log")
    axes.set_ylim(0, 101)
    axes.set_xlabel("bandwidth of a site, Gbit/s each way")
    axes.set_ylabel("compute utilisation, %")
    axes.legend()
