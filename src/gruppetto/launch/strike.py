"""A kill on purpose: how the demo shows what a dead learner costs. Nothing else in a run knows of it."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Strike"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Strike:
    """kill −9 of ``learner``, from outside, once ``round`` is closed."""

    learner: str
    round: int
