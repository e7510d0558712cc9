"""The pictures of a run: how the loss fell, who rode when, what a round is made of, what travelled.

Every function draws one figure from plain values. matplotlib is imported when something is drawn; without it a report
has no pictures and says so.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gruppetto.report.curves import Curve
from gruppetto.report.story import as_bytes, as_duration
from gruppetto.trace.measures import Measures

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["COLOURS", "INK", "as_svg", "chart", "draw_rival", "draw_run", "in_ink", "save", "save_png"]

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
"""Okabe and Ito's, which stay apart for the colour-blind."""
INK = "#102030"
"""Lines and letters; on the page they take the colour of its text."""
USUAL, FAR = 0.9, 4.0
BINS = 120
"""A strip of so many cells shows a run of any length."""
PHASES = (
    ("quorum_s", "waiting for the quorum"),
    ("grace_spent_s", "grace window"),
    ("merge_s", "merge and outer step"),
    ("persist_s", "persist"),
    ("publish_s", "publish"),
)


def draw_run(found: Measures, report: Mapping[str, Any], curves: Sequence[Curve]) -> dict[str, Figure]:
    """All figures of a decoupled run, by file name. ``curves`` begin with its own."""
    losses = [(round, loss) for round, _, loss in found.train_losses]
    figures = _losses(curves, losses)
    if found.learners:
        figures["participation"] = chart(
            lambda axes: _participation(axes, found), height=0.9 + 0.38 * len(found.learners)
        )
    if found.rounds:
        figures["round-anatomy"] = chart(lambda axes: _anatomy(axes, found))
    if report["bytes"]["up"] is not None and report["bytes"]["data_parallel_equivalent"]:
        figures["bytes"] = chart(lambda axes: _bytes(axes, report["bytes"]), height=1.9)
    return figures


def draw_rival(records: Sequence[Mapping[str, Any]], curves: Sequence[Curve]) -> dict[str, Figure]:
    """The figures of a rival."""
    losses = [(r["round"], r["loss"]) for r in records if r["kind"] == "train" and r["loss"] is not None]
    return _losses(curves, losses)


def _losses(curves: Sequence[Curve], train: Sequence[tuple[int, float]]) -> dict[str, Figure]:
    """What there is to be drawn of losses: a run that evaluates nothing has those of its training batches at most."""
    drawn = [curve for curve in curves if curve.losses]
    figures = {}
    if drawn or train:
        figures["loss-by-round"] = chart(lambda axes: _loss(axes, drawn, "rounds", train))
    if drawn:
        figures["loss-by-tokens"] = chart(lambda axes: _loss(axes, drawn, "tokens", []))
    return figures


def save_png(figure: Figure, path: Path) -> None:
    figure.savefig(path, dpi=150, facecolor="white")


def save(figure: Figure, place: Path, name: str) -> None:
    """As ``place/name.png``, and as ``name.svg`` beside it, which the page of the run's report shows."""
    place.mkdir(exist_ok=True)
    save_png(figure, place / f"{name}.png")
    (place / f"{name}.svg").write_text(as_svg(figure, name), encoding="utf-8")


def as_svg(figure: Figure, name: str) -> str:
    """The figure as text to put into a page, in the colours of the page. ``name`` keeps its inner ids apart."""
    import matplotlib

    buffer = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": name, "svg.fonttype": "none"}):
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    text = buffer.getvalue()
    return text[text.index("<svg") :].replace(INK, "currentColor")


def chart(draw: Callable[[Axes], None], *, height: float = 3.6) -> Figure:
    """A figure of one chart that ``draw`` draws, ``height`` inches high. Raises ImportError without matplotlib."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.0, height), layout="constrained")
    axes = figure.subplots()
    draw(axes)
    in_ink(axes)
    return figure


def in_ink(axes: Axes) -> None:
    """What has been drawn on them in lines and letters of one colour, open to above and to the right."""
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for spine in axes.spines.values():
        spine.set_color(INK)
    for label in (axes.xaxis.label, axes.yaxis.label):
        label.set_color(INK)
    axes.tick_params(colors=INK, which="both")
    legend = axes.get_legend()
    if legend is not None:
        legend.get_frame().set_alpha(0.0)
        for text in legend.get_texts():
            text.set_color(INK)


def _loss(axes: Axes, curves: Sequence[Curve], by: str, train: Sequence[tuple[int, float]]) -> None:
    sound, lost = [(x, y) for x, y in train if math.isfinite(y)], [x for x, y in train if not math.isfinite(y)]
    if lost:
        axes.plot(
            lost, [0.97] * len(lost), "x", transform=axes.get_xaxis_transform(), color=COLOURS[1], label="not finite"
        )
    if sound:
        axes.plot(
            [x for x, _ in sound],
            [y for _, y in sound],
            ".",
            ms=3,
            alpha=0.4,
            color=COLOURS[5],
            label="training batches",
        )
    for curve, colour in zip(curves, COLOURS * (1 + len(curves) // len(COLOURS)), strict=False):
        axes.plot(getattr(curve, by), curve.losses, "o-", ms=4, lw=1.8, color=colour, label=curve.label)
    _look_past_the_fall(axes, curves)
    axes.set_xlabel("round" if by == "rounds" else "tokens trained on, all learners")
    axes.set_ylabel("held-out loss, nats per token" if curves else "loss, nats per token")
    axes.grid(alpha=0.25)
    if curves or train:
        axes.legend()


def _look_past_the_fall(axes: Axes, curves: Sequence[Curve]) -> None:
    """The first evaluation stands so high that no difference between the others could be seen beside it."""
    later = [loss for curve in curves for loss in curve.losses[1:]]
    first = [curve.losses[0] for curve in curves if curve.losses]
    if not later or max(first) <= max(later):
        return
    low, high = min(later), max(later)
    margin = 0.08 * (high - low) or 0.1
    axes.set_ylim(low - margin, high + margin)
    axes.text(0.3, 0.97, f"begins at {max(first):.2f}", transform=axes.transAxes, va="top", color=INK)


def _participation(axes: Axes, found: Measures) -> None:
    """One lane a learner: blue where its work was merged, grey where it lived, nothing where it was away."""
    import numpy as np

    start, end = found.window
    end = max(end, start + 1e-9)
    names = sorted(found.learners)
    edges = np.linspace(start, end, BINS + 1)
    rounds = [r for r in found.rounds.values() if r.due]
    place = np.clip(np.searchsorted(edges, [r.closed_at for r in rounds], side="right") - 1, 0, BINS - 1)
    per_bin = np.maximum(np.bincount(place, minlength=BINS), 1)
    for lane, name in enumerate(names):
        states = [*found.learners[name].states, (end, "end")]
        for (since, state), (until, _) in pairwise(states):
            if state == "live" and until > since:
                axes.broken_barh([(since, until - since)], (lane - 0.36, 0.72), facecolors="#8888884d")
        merged = np.bincount([b for b, r in zip(place, rounds, strict=True) if name in r.participants], minlength=BINS)
        axes.broken_barh(
            [(edges[b], edges[b + 1] - edges[b]) for b in range(BINS)],
            (lane - 0.36, 0.72),
            facecolors=[(0.0, 0.447, 0.698, share) for share in merged / per_bin],
            lw=0,
        )
    _deaths(axes, found, names)
    axes.set_yticks(range(len(names)), names)
    axes.set_xlim(start, end)
    axes.set_xlabel("seconds; the darker, the more rounds its work was merged in")


def _deaths(axes: Axes, found: Measures, names: Sequence[str]) -> None:
    """A cross where a learner died, a line through all lanes where the syncer did."""
    for death in found.deaths:
        at = found.since_it_began(death)
        if at is None:
            continue
        if death.process in names:
            lane = names.index(death.process)
            axes.plot([at], [lane], "x", color=COLOURS[1], ms=9, mew=2.5)
            axes.annotate(f" {death.cause}", (at, lane + 0.4), fontsize="x-small", color=INK, ha="center")
        else:
            axes.axvline(at, color=COLOURS[1], ls="--", lw=1)


def _anatomy(axes: Axes, found: Measures) -> None:
    import numpy as np

    rounds = sorted((r for r in found.rounds.values() if r.due), key=lambda r: r.round)
    groups = [group for group in np.array_split(np.arange(len(rounds)), min(BINS, len(rounds))) if len(group)]
    at = [float(np.mean([rounds[i].round for i in group])) for group in groups]
    heights = [
        [1000 * float(np.mean([getattr(rounds[i], name) for i in group])) for group in groups] for name, _ in PHASES
    ]
    if len(at) == 1:
        at, heights = [at[0] - 0.5, at[0] + 0.5], [[h[0], h[0]] for h in heights]
    axes.stackplot(at, *heights, labels=[text for _, text in PHASES], colors=COLOURS, alpha=0.85, lw=0)
    axes.set_xlabel("round")
    axes.set_ylabel("milliseconds")
    stacks = [sum(stack) for stack in zip(*heights, strict=True)]
    end = usual_high(stacks)
    axes.set_ylim(0, 1.15 * end or 1.0)
    for x, height in zip(at, stacks, strict=True):
        if height > end:
            place: dict[str, Any] = {
                "xycoords": ("data", "axes fraction"),
                "xytext": (16, 0),
                "textcoords": "offset points",
            }
            says = f"↑ {as_duration(height / 1000)}"
            axes.annotate(says, (x, 0.95), **place, fontsize="small", color=INK)
    axes.legend(ncols=len(PHASES), fontsize="small", loc="lower center", bbox_to_anchor=(0.5, 1.0))


def usual_high(values: Sequence[float]) -> float:
    """Where an axis ends on which most values can be told apart: the largest that is not far beyond nine tenths of
    them. One long first round does not flatten all others.

    >>> usual_high([180.0, 1.0, 1.2, 1.0, 1.1]), usual_high([3.0, 2.0, 1.0])
    (1.2, 3.0)
    """
    ordered = sorted(values)
    usual = ordered[int(USUAL * (len(ordered) - 1))]
    return max(value for value in ordered if value <= FAR * usual) if usual > 0 else ordered[-1]


def _bytes(axes: Axes, moved: Mapping[str, Any]) -> None:
    bars = [
        ("data parallel", moved["data_parallel_equivalent"], COLOURS[1]),
        ("to the learners", moved["down"], COLOURS[0]),
        ("to the syncer", moved["up"], COLOURS[0]),
    ]
    axes.barh([text for text, _, _ in bars], [count for _, count, _ in bars], color=[c for _, _, c in bars])
    for lane, (_, count, _) in enumerate(bars):
        axes.annotate(as_bytes(count), (count, lane), xytext=(6, 0), textcoords="offset points", va="center", color=INK)
    axes.set_xticks([])
    axes.spines["bottom"].set_visible(False)
    axes.set_xlim(0, 1.25 * max(count for _, count, _ in bars) or 1.0)  # a label stands beside the longest bar too
