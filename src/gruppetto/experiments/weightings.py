"""Other weights for contributions than tokens² / steps, to see what those are worth."""

from __future__ import annotations

from collections.abc import Callable

from gruppetto.protocol.messages import Answer
from gruppetto.protocol.syncer import SyncerCore

__all__ = ["WEIGHTINGS", "syncer_weighing"]


class _ByTokens(SyncerCore):
    def _weight(self, answer: Answer) -> float:
        return float(answer.tokens)


class _Equally(SyncerCore):
    def _weight(self, answer: Answer) -> float:
        return 1.0


WEIGHTINGS: dict[str, Callable[..., SyncerCore]] = {"": SyncerCore, "tokens": _ByTokens, "equal": _Equally}


def syncer_weighing(weighting: str) -> Callable[..., SyncerCore]:
    """A syncer's core that weighs contributions so; "": as the algorithm says."""
    return WEIGHTINGS[weighting]
