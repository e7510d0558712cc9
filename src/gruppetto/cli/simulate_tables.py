"""The tables of ``gruppetto simulate``, and its rows for scripts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from gruppetto.cli.quantities import counted
from gruppetto.config.run import CodecChoice
from gruppetto.numerics.codec import CODECS as ENCODINGS
from gruppetto.report.in_short import as_bytes
from gruppetto.sim.bandwidth import METHODS, Demand, Traffic, demand, needed_gbit_s
from gruppetto.sim.goodput import Row
from gruppetto.sim.paper import GOODPUT

__all__ = [
    "CODECS",
    "Carried",
    "as_json",
    "bandwidth_rows",
    "bandwidth_table",
    "paper_table",
    "plain_table",
    "utilisation_curves",
]

WIDEST = 0.1
"""Half of an interval: a wider one says nothing of a goodput."""
UTILISATION = 0.9
"""Of the chips, which the links of the table of bandwidths give."""
CODECS = ("bf16", "int8", "int4")
WIDTHS = 60
"""Links of a curve, from 0.01 to 1,000 Gbit/s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Carried:
    """What links carry of a model, in the codecs of a run by default: all of it once in H rounds.

    >>> Carried(parameters=1000, sync_period=10).bytes_of(Row(
    ...     system="decoupled", chips=8, learners=2, goodput=1.0, uptime=1.0, ci95=None, seeds=1,
    ...     contributions=15, deliveries=20))
    {'up': 3000, 'down': 8000}
    """

    parameters: int
    sync_period: int

    def bytes_of(self, row: Row) -> dict[str, int] | None:
        """Of all learners together; None for a system that has none."""
        if row.contributions is None or row.deliveries is None:
            return None
        codecs = CodecChoice()
        up, down = (ENCODINGS[codec].payload_bytes(self.parameters) for codec in (codecs.uplink, codecs.downlink))
        return {
            "up": round(row.contributions * up / self.sync_period),
            "down": round(row.deliveries * down / self.sync_period),
        }

    @property
    def told(self) -> str:
        codecs = CodecChoice()
        return (
            f"up, down: of all learners, with a model of {counted(self.parameters)} parameters (--parameters), "
            f"{codecs.uplink} up and {codecs.downlink} down"
        )


def as_json(row: Row, carried: Carried | None = None) -> dict[str, object]:
    paper = GOODPUT.get((row.system, row.learners), {}).get(row.chips)
    return {**asdict(row), "paper": paper, "bytes": None if carried is None else carried.bytes_of(row)}


def plain_table(rows: Sequence[Row], carried: Carried | None = None) -> str:
    head = f"{'system':<14} {'chips':>8} {'M':>4} {'goodput':>15} {'uptime':>8} {'taking part':>12} {'merged':>7}"
    moved = [None if carried is None else carried.bytes_of(row) for row in rows]
    lines = [head if not any(moved) else f"{head} {'up':>9} {'down':>9}"]
    for row, each in zip(rows, moved, strict=True):
        goodput = f"{row.goodput:.1%}{_spread(row, lambda half: f'{half:.1%}')}"
        line = (
            f"{row.system:<14} {counted(row.chips):>8} {row.learners:>4} {goodput:>15} {row.uptime:>8.2%} "
            f"{_share(row.participation):>12} {_share(row.merged):>7}"
        )
        lines.append(line if each is None else f"{line} {as_bytes(each['up']):>9} {as_bytes(each['down']):>9}")
    told = [carried.told] if carried is not None and any(moved) else []
    return "\n".join([*lines, *_why_unknown(rows), *told])


def paper_table(rows: Sequence[Row]) -> str:
    lines = [f"{'system':<14} {'M':>3} {'chips':>7} {'paper':>6} {'ours':>13} {'error':>6} {'uptime':>8}"]
    for row in sorted(rows, key=lambda r: (r.system != "data-parallel", r.system != "elastic", r.learners, r.chips)):
        paper = GOODPUT.get((row.system, row.learners), {}).get(row.chips)
        half = _spread(row, lambda half: f"{100 * half:.1f}")
        lines.append(
            f"{row.system:<14} {row.learners:>3} {counted(row.chips):>7} "
            f"{'' if paper is None else f'{100 * paper:.0f}':>6} {100 * row.goodput:>7.1f}{half:<6} "
            f"{'' if paper is None else f'{100 * (row.goodput - paper):+.1f}':>6} {row.uptime:>8.2%}"
        )
    return "\n".join([*lines, *_why_unknown(rows)])


def _spread(row: Row, shown: Callable[[float], str]) -> str:
    """Nothing of a single seed; a question mark where so few say nothing."""
    if row.ci95 is None:
        return ""
    return f" ± {shown(row.ci95) if row.ci95 <= WIDEST else '?'}"


def _why_unknown(rows: Sequence[Row]) -> list[str]:
    wide = [row for row in rows if row.ci95 is not None and row.ci95 > WIDEST]
    if not wide:
        return []
    seeds = max(row.seeds for row in wide)
    return [f"± ?: {seeds} seeds do not tell how far off such a mean is; use more --seeds, {max(3, 2 * seeds)} or more"]


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"


def bandwidth_rows(traffics: Sequence[Traffic]) -> list[dict[str, object]]:
    """What every method needs of a link each way, for each traffic."""
    return [
        {
            "method": method,
            "sites": traffic.sites,
            "codec": traffic.gradient_codec if method == "data-parallel" else traffic.codec,
            "gbit_s": needed_gbit_s(method, traffic, utilisation=UTILISATION),
            "gbit_a_step": demand(method, traffic, 1.0).gbit_a_step,
        }
        for traffic in traffics
        for method in METHODS
        if method != "data-parallel" or traffic.codec == CODECS[0]  # its gradients stay what they are
    ]


def bandwidth_table(rows: Sequence[dict[str, object]]) -> str:
    lines = [f"{'method':<14} {'sites':>5} {'codec':>6} {'Gbit/s':>8} {'data parallel needs':>20}"]
    most = {row["sites"]: row["gbit_s"] for row in rows if row["method"] == "data-parallel"}
    for row in rows:
        times = float(str(most[row["sites"]])) / float(str(row["gbit_s"]))
        more = "" if row["method"] == "data-parallel" else f"{times:,.0f} times that"
        lines.append(f"{row['method']:<14} {row['sites']:>5} {row['codec']:>6} {row['gbit_s']:>8.3g} {more:>20}")
    return "\n".join(lines)


def utilisation_curves(traffics: Sequence[Traffic]) -> list[tuple[str, list[Demand]]]:
    """A named curve for every method under the first of the traffics."""
    widths = [10 ** (-2 + 5 * i / (WIDTHS - 1)) for i in range(WIDTHS)]
    sites = traffics[0].sites
    curves = []
    for method in METHODS:
        name = f"{method}, {traffics[0].codec}, {sites} sites"
        curves.append((name, [demand(method, traffics[0], width) for width in widths]))
    return curves
