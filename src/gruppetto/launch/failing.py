"""What is said of a local run that came to nothing: the last words of who let it down."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gruppetto.errors import GruppettoError, RunFailed, UserError
from gruppetto.launch.children import Child, last_words

__all__ = ["failure", "failure_of"]


def failure(guilty: Sequence[Child], what: str, *, directory: Path, round: int) -> GruppettoError:
    """The error of children that ended: their own last line, as a mistake to mend if they call it one."""
    first = next((child for child in guilty if child.process.returncode == UserError.exit_code), guilty[0])
    if first.process.returncode == UserError.exit_code:
        return UserError(last_words(first).removeprefix("gruppetto: "))
    return failure_of(first, what, directory=directory, round=round)


def failure_of(child: Child, what: str, *, directory: Path, round: int) -> RunFailed:
    """``what`` is wrong with the run in ``directory``, by what ``child`` said last."""
    said = last_words(child).removeprefix("gruppetto: ")
    return RunFailed(f"{directory}: {what} at round {round}: {said} (see {child.log})")
