"""How much a contribution counts (section 4)."""

from __future__ import annotations

__all__ = ["contribution_weight"]


def contribution_weight(*, tokens: int, steps: int) -> float:
    """w = c_tokens² / c_steps: quantity (tokens) times quality (tokens per step). Zero if either is zero.

    >>> contribution_weight(tokens=1024, steps=2)
    524288.0
    >>> contribution_weight(tokens=0, steps=2)
    0.0
    """
    if tokens <= 0 or steps <= 0:
        return 0.0
    return tokens * tokens / steps
