"""The picture of a run under chaos: who rode when and what hit whom, over the loss and what was kept of the pace."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from gruppetto.chaos.real.evidence import Evidence
from gruppetto.chaos.real.kinds import SYNCER
from gruppetto.report.figures import COLOURS, INK, in_ink

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["draw_chaos"]

BIN_S = 2.0
ROOM = 0.05
"""Share of the width that the name of a fault takes: one that follows sooner on its lane stands without."""


def draw_chaos(seen: Evidence) -> Figure:
    """Lanes of the syncer and the learners, held-out loss, and steps made a second against those of a calm fleet."""
    from matplotlib.figure import Figure

    lanes = [SYNCER, *seen.learners]
    figure = Figure(figsize=(8.0, 3.2 + 0.34 * len(lanes)), layout="constrained")
    top, loss, pace = figure.subplots(3, sharex=True, height_ratios=[0.34 * len(lanes) + 0.3, 1.0, 1.0])
    length_s = seen.ended - seen.began
    _lanes(top, seen, lanes)
    _loss(loss, seen)
    _pace(pace, seen)
    pace.set_xlabel("seconds of training")
    for axes in (top, loss, pace):
        axes.set_xlim(0, max(length_s, 1e-3))
        in_ink(axes)
    return figure


def _lanes(axes: Axes, seen: Evidence, lanes: list[str]) -> None:
    """Blue: steps were made. Orange: a process was starting. Nothing: it was dead, or stood still."""
    for lane, name in enumerate(lanes):
        if name == SYNCER:
            riding = [(life.published[0][0], life.published[-1][0]) for life in seen.syncer if life.published]
            starting = [(life.began, life.published[0][0]) for life in seen.syncer if life.published]
        else:
            riding, starting = _of_learner(seen, name)
        _bars(axes, seen, lane, starting, COLOURS[4], 0.5)
        _bars(axes, seen, lane, riding, COLOURS[0], 0.85)
    taken = dict.fromkeys(lanes, -math.inf)
    for fault in sorted(seen.faults, key=lambda fault: fault.began):
        if fault.missed:
            continue
        lane = lanes.index(fault.who)
        at, until = fault.began - seen.began, min(fault.ended, seen.ended) - seen.began
        if until - at > 0.5:
            axes.plot([at, until], [lane + 0.4] * 2, color=COLOURS[1], lw=2.5, solid_capstyle="butt")
        axes.plot([at], [lane], "x", color=COLOURS[1], ms=5, mew=1.6)
        if at - taken[fault.who] > ROOM * (seen.ended - seen.began):
            taken[fault.who] = at
            axes.annotate(
                fault.kind, (at, lane), xytext=(3, 3), textcoords="offset points", fontsize=6, color=INK, clip_on=True
            )
    axes.set_yticks(range(len(lanes)), lanes)
    axes.set_ylim(len(lanes) - 0.4, -0.6)


def _of_learner(seen: Evidence, name: str) -> tuple[list[tuple[float, float]], list[tuple[float, float]]]:
    steps, usual_s = seen.steps[name], seen.step_s(name)
    if math.isnan(usual_s):
        return [], []
    riding: list[tuple[float, float]] = []
    for step in steps:
        if riding and step.at - riding[-1][1] <= 3 * usual_s:
            riding[-1] = (riding[-1][0], step.at)
        else:
            riding.append((step.at - usual_s, step.at))
    starting = []
    for life in seen.lives_of(name):
        first = next((s.at for s in steps if s.life == life.pid), None)
        if first is not None:
            starting.append((life.at, first - usual_s))
    return riding, starting


def _bars(axes: Axes, seen: Evidence, lane: int, stretches: Any, colour: str, alpha: float) -> None:
    shown = [(a - seen.began, b - a) for a, b in stretches if b > a]
    if shown:
        axes.broken_barh(shown, (lane - 0.3, 0.6), facecolors=colour, alpha=alpha, lw=0)


def _loss(axes: Axes, seen: Evidence) -> None:
    at = {round: when for life in seen.syncer for when, round in life.published}
    points = [(at[e.round] - seen.began, e.loss) for e in seen.measures.evaluations if e.round in at]
    if points:
        axes.plot(*zip(*sorted(points), strict=True), "o-", ms=3, lw=1.5, color=COLOURS[2])
        # The first stands so high that nothing could be seen beside it.
        later = [loss for _, loss in sorted(points)[1:]]
        if later and min(later) < max(later):
            margin = 0.08 * (max(later) - min(later))
            axes.set_ylim(min(later) - margin, max(later) + margin)
    axes.set_ylabel("held-out loss")
    axes.grid(alpha=0.25)


def _pace(axes: Axes, seen: Evidence) -> None:
    edges = np.arange(0.0, max(seen.ended - seen.began, BIN_S) + BIN_S, BIN_S)
    calm = sum(1 / seen.step_s(name) for name in seen.learners if not math.isnan(seen.step_s(name)))
    made = [s.at - seen.began for steps in seen.steps.values() for s in steps]
    counts, _ = np.histogram(made, edges)
    if calm:
        axes.step(edges[:-1], 100 * counts / (BIN_S * calm), where="post", color=COLOURS[0], lw=1.2)
    axes.set_ylabel("% of all steps")
    axes.set_ylim(0, 118)
    axes.grid(alpha=0.25)
