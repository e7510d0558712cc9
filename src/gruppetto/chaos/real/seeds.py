"""Several runs of one plan, each with a seed of its own: its figures side by side, their mean and their spread."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from gruppetto.chaos.real.check import Verdict

__all__ = ["Figure", "as_table", "figures_of", "spread"]

LIMITS = frozenset({"at_least", "at_most"})
"""What a figure is held against is no figure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One figure over all seeds. ``values`` has those that have it; ``sd`` is the sample's, None for fewer than two."""

    values: Mapping[int, float]
    mean: float
    sd: float | None

    def as_json(self) -> dict[str, Any]:
        values = {str(seed): value for seed, value in self.values.items()}
        return {"values": values, "mean": self.mean, "sd": self.sd, "n": len(values)}


def figures_of(verdict: Verdict) -> dict[str, float]:
    """The plain numbers of all checks, as ``check.figure``.

    >>> from gruppetto.chaos.real.check import Check
    >>> check = Check(name="quality", state="pass", text="", figures={"loss": 1.5, "at_most": 2.0, "losses": [1.5]})
    >>> figures_of(Verdict(checks=(check,)))
    {'quality.loss': 1.5}
    """
    return {
        f"{check.name}.{name}": float(value)
        for check in verdict.checks
        for name, value in check.figures.items()
        if name not in LIMITS
        and isinstance(value, int | float)
        and not isinstance(value, bool)
        and math.isfinite(value)
    }


def spread(verdicts: Mapping[int, Verdict]) -> dict[str, Figure]:
    """Each figure of the runs by seed, in the order of the checks."""
    found = {seed: figures_of(verdict) for seed, verdict in verdicts.items()}
    names = list(dict.fromkeys(name for figures in found.values() for name in figures))
    return {
        name: _figure({seed: figures[name] for seed, figures in found.items() if name in figures}) for name in names
    }


def as_table(verdicts: Mapping[int, Verdict]) -> str:
    """A column for each seed, then mean and spread; what fails is said under it."""
    rows = [["", *(f"seed {seed}" for seed in verdicts), "mean", "± sd"]]
    rows.append(["verdict", *("holds" if verdict.passed else "FAILS" for verdict in verdicts.values()), "", ""])
    for name, figure in spread(verdicts).items():
        values = [_shown(figure.values.get(seed)) for seed in verdicts]
        rows.append([name, *values, _shown(figure.mean), _shown(figure.sd)])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip() for row in rows]
    failed = [
        f"seed {seed}: FAIL {check.name}: {check.text}"
        for seed, verdict in verdicts.items()
        for check in verdict.checks
        if check.state == "fail"
    ]
    return "\n".join([*lines, *failed])


def _figure(values: Mapping[int, float]) -> Figure:
    numbers = list(values.values())
    return Figure(values=values, mean=fmean(numbers), sd=stdev(numbers) if len(numbers) > 1 else None)


def _shown(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}" if abs(value) < 1000 else f"{value:,.0f}"
