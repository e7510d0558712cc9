"""The one place that knows how a standby of the syncer is started."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["standby_verb"]


def standby_verb(syncer: Sequence[str]) -> list[str] | None:
    """The arguments of ``gruppetto`` for a standby beside the syncer started with ``syncer``; None: there is none."""
    return None
