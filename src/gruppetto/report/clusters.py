"""The pictures of clusters that nobody can try: goodput against chips, utilisation against bandwidth.

In the style of :mod:`~gruppetto.report.figures`; matplotlib is imported when something is drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gruppetto.errors import UserError
from gruppetto.report.figures import COLOURS, INK, chart, save_png
from gruppetto.report.in_short import as_amount
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
    "streaming": ("streaming DiLoCo", "-."),
    "decoupled": ("decoupled", "-"),
}
"""In the order of a legend: what it is called, and its stroke."""
BAR_INCHES, ROOM_INCHES = 0.36, 1.0
MANY_CHIPS = 6
"""So many numbers of chips have a tick each."""


def draw_goodput(rows: Sequence[Row]) -> Figure:
    """Goodput against chips: one line for each system and number of learners; with one number of chips, a bar."""
    lines = _by_label(rows)
    if all(len(cells) == 1 for cells in lines.values()) and len({row.chips for row in rows}) == 1:
        return _drawn(lambda axes: _bars(axes, lines), height=ROOM_INCHES + BAR_INCHES * len(lines))
    return _drawn(lambda axes: _goodput(axes, lines))


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


def _drawn(draw: Callable[[Axes], None], *, height: float = 3.6) -> Figure:
    try:
        return chart(draw, height=height)
    except ImportError:
        raise _missing() from None


def _missing() -> UserError:
    return UserError("there is no matplotlib", where="--figure", fix="pip install 'gruppetto[dashboard]'")


def _goodput(axes: Axes, lines: Mapping[str, Sequence[Row]]) -> None:
    chips = sorted({row.chips for cells in lines.values() for row in cells})
    for place, (label, cells) in enumerate(lines.items()):
        axes.errorbar(
            [row.chips for row in cells],
            [100 * row.goodput for row in cells],
            yerr=[100 * (row.ci95 or 0.0) for row in cells],
            fmt=_drawn_as(cells[0].system)[1],
            marker="o",
            ms=4,
            color=COLOURS[place % len(COLOURS)],
            label=label,
        )
    axes.set_xscale("log")
    if len(chips) <= MANY_CHIPS:
        axes.set_xticks(chips, [as_amount(each) for each in chips])
        axes.set_xticks([], minor=True)
    axes.set_ylim(0, 103)
    axes.set_xlabel("chips")
    axes.set_ylabel("goodput, simulated, %")
    axes.grid(alpha=0.25)
    axes.legend()


def _bars(axes: Axes, lines: Mapping[str, Sequence[Row]]) -> None:
    """Of one number of chips: there is no line to draw."""
    for place, (label, cells) in enumerate(reversed(list(lines.items()))):
        colour, (row,) = COLOURS[(len(lines) - 1 - place) % len(COLOURS)], cells
        half = row.ci95 or 0.0
        axes.barh(label, 100 * row.goodput, height=0.7, color=colour, xerr=[100 * half] if half else None)
        end = (min(100.0, 100 * (row.goodput + half)), place)
        axes.annotate(f"{row.goodput:.1%}", end, xytext=(6, 0), textcoords="offset points", va="center", color=INK)
    axes.set_xlim(0, 112)
    axes.set_xticks(range(0, 101, 20))
    axes.set_xlabel(f"goodput of {as_amount(row.chips)} chips, simulated, %")


def _by_label(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Rows of one line together, by what the legend calls it and in its order."""
    order = list(LINES)
    lines: dict[str, list[Row]] = {}
    for row in sorted(rows, key=lambda row: (order.index(row.system), row.learners, row.chips)):
        name = _drawn_as(row.system)[0]
        label = name if row.learners == 1 and row.system != "decoupled" else f"{name}, M = {row.learners}"
        lines.setdefault(label, []).append(row)
    return lines


def _drawn_as(system: str) -> tuple[str, str]:
    return LINES[system]


def _utilisation(axes: Axes, curves: Sequence[tuple[str, Sequence[Demand]]]) -> None:
    for place, (name, points) in enumerate(curves):
        system, comma, rest = name.partition(",")
        called, dash = _drawn_as(system)
        axes.plot(
            [point.gbit_s for point in points],
            [100 * point.utilisation for point in points],
            ls=dash,
            color=COLOURS[place % len(COLOURS)],
            label=f"{called}{comma}{rest}",
        )
        if any(point.in_time < point.utilisation for point in points):
            axes.plot(
                [point.gbit_s for point in points],
                [100 * point.in_time for point in points],
                ls=(0, (1, 1)),
                color=COLOURS[place % len(COLOURS)],
                label=f"{called}: rounds in time",
            )
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(lambda width, _: f"{width:g}")
    axes.set_ylim(0, 103)
    axes.grid(alpha=0.25)
    axes.set_xlabel("bandwidth of a site, Gbit/s each way")
    axes.set_ylabel("compute utilisation, computed, %")
    axes.legend()
