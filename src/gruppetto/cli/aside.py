"""Standard error is where a verb says how it gets on, and whoever listens there may go.

A reader that has ended (``2>&1 | head``, a ``tee`` that was killed, a closed ssh) or a full disk under a log must not
end a run that is going well, nor change the exit code of anything. On standard output, where a verb gives what it was
asked for, both still count.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, suppress
from pathlib import Path
from typing import Any, TextIO, cast

__all__ = ["stderr_never_fails"]


class _Aside:
    """A stream of text that takes everything, and passes on what it can."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        try:
            self._stream.write(text)
        except BrokenPipeError:
            self._give_up()
        except OSError:
            pass  # a disk may have room again
        return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except BrokenPipeError:
            self._give_up()
        except OSError:
            pass

    def end(self) -> None:
        """What could not be written is not tried again: Python would end with code 120."""
        try:
            self._stream.flush()
        except OSError:
            self._give_up()

    def _give_up(self) -> None:
        with suppress(OSError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)
            self._stream.flush()


@contextmanager
def stderr_never_fails() -> Iterator[None]:
    """Until the end of the block nothing that is printed on standard error raises :class:`OSError`; closed from the
    start (``2>&-``), it is nowhere, and not standard output."""
    given = cast(TextIO | None, sys.stderr)
    if given is None:
        with Path(os.devnull).open("w", encoding="utf-8") as nowhere, redirect_stderr(nowhere):
            yield
        return
    aside = _Aside(given)
    try:
        with redirect_stderr(cast(TextIO, aside)):
            yield
    finally:
        aside.end()
