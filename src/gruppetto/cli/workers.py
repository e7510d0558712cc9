"""How many processes train a virtual run."""

from __future__ import annotations

from gruppetto.config.kinds import Typed, as_kind
from gruppetto.errors import SettingError

__all__ = ["workers_of"]

MAX_WORKERS = 64


def workers_of(text: str) -> int:
    """What ``--workers`` says. Raises :class:`SettingError`.

    >>> workers_of("2")
    2
    """
    workers: int = as_kind(Typed(text), int, where="--workers")
    if not 1 <= workers <= MAX_WORKERS:
        raise SettingError(f"is {workers}", where="--workers", fix=f"use 1 to {MAX_WORKERS}")
    return workers
