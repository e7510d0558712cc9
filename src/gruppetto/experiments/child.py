"""A command as a child of a ride: it ends with us, and what it says is all that comes of it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from contextlib import suppress

from gruppetto.errors import RunFailed

__all__ = ["last_line", "said_by"]

ENDS_WITHIN_S = 3.0


def said_by(command: Sequence[str]) -> str:
    """What it says on standard output. It ends with us, however we end: its standard input is a pipe that closes then.

    Raises :class:`RunFailed`, with the last line of its standard error.
    """
    listens, ours = os.pipe()
    with subprocess.Popen(
        command, stdin=listens, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        os.close(listens)
        try:
            said, why = process.communicate()
        finally:
            os.close(ours)
            if process.poll() is None:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(ENDS_WITHIN_S)
                process.kill()
    if process.returncode:
        raise RunFailed(last_line(why))
    return said


def last_line(text: str) -> str:
    """The last one that says something, for whoever wonders why.

    >>> last_line("Traceback\\nOSError: the last\\n\\n")
    'OSError: the last'
    """
    return next((line.strip() for line in reversed(text.split("\n")) if line.strip()), "it said nothing")
