"""What can be wrong with a state directory, in one line each: what, where, and the fix."""

from __future__ import annotations

from pathlib import Path

from gruppetto.errors import StateError
from gruppetto.runtime.commits import STORE_VERSION

__all__ = ["StoreInUse", "cannot_write", "damaged", "in_use", "other_format"]


class StoreInUse(StateError):
    """Another syncer has the authority here."""


def cannot_write(path: Path, why: OSError) -> StateError:
    """Something of the state cannot be written at all; not for what passes by itself while a run goes on."""
    return StateError(
        f"cannot be written ({why.strerror})", where=str(path), fix="make room for it, or name another state directory"
    )


def in_use(path: Path) -> StoreInUse:
    return StoreInUse("another syncer is using this state directory", where=str(path), fix="stop it, or name another")


def other_format(path: Path, version: str) -> StateError:
    return StateError(
        f"was written in format {version}, this version of Gruppetto reads format {STORE_VERSION}",
        where=str(path),
        fix="use the version that wrote it",
    )


def damaged(path: Path, how: str) -> StateError:
    return StateError(
        f"is damaged: {how}", where=str(path), fix="restore the state directory from a copy, or start a new one"
    )
