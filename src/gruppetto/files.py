"""Files that somebody else may have written, or put there: read without waiting, and with two kinds of error."""

from __future__ import annotations

import errno
import json
import os
import stat
from pathlib import Path
from typing import Any, BinaryIO

__all__ = ["content_of", "json_in", "open_file"]


def open_file(path: Path) -> BinaryIO:
    """To be read. Raises :class:`OSError`, for what is no file too: whoever opens a pipe waits for ever."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "it is not a regular file", str(path))
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def content_of(path: Path) -> bytes:
    """All of it. Raises :class:`OSError`."""
    with open_file(path) as file:
        return file.read()


def json_in(path: Path) -> Any:
    """What a file of JSON says. Raises :class:`OSError`, and :class:`ValueError` for whatever is no JSON: brackets
    without end are none either.

    >>> json_in(Path("no-such-file"))
    Traceback (most recent call last):
    ...
    FileNotFoundError: [Errno 2] No such file or directory: 'no-such-file'
    """
    try:
        return json.loads(content_of(path))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
