"""One judgement about a run, and all of them together."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

__all__ = ["Check", "State", "Verdict"]

State = Literal["pass", "fail", "not applicable", "measured"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One judgement. ``figures`` are plain numbers and names, for ``--json``."""

    name: str
    state: State
    text: str
    figures: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """All checks of a run."""

    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        return not any(check.state == "fail" for check in self.checks)

    def as_json(self) -> dict[str, Any]:
        checks = [{"name": c.name, "state": c.state, "text": c.text, "figures": _plain(c.figures)} for c in self.checks]
        return {"passed": self.passed, "checks": checks}

    def __str__(self) -> str:
        width = max(len(check.name) for check in self.checks)
        marks = {"pass": "pass", "fail": "FAIL", "not applicable": "n/a", "measured": "is"}
        lines = [f"{marks[c.state]:<5} {c.name:<{width}}  {c.text}" for c in self.checks]
        return "\n".join([*lines, "the verdict: " + ("all holds" if self.passed else "SOMETHING IS WRONG")])


def _plain(value: Any) -> Any:
    """JSON has no infinity and no not-a-number."""
    if isinstance(value, float):
        return float(f"{value:.7g}") if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value
