"""Files that many processes may make at once and that none may ever read half-made."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from gruppetto.errors import DataError

__all__ = ["publish"]

OPEN_FILES = Path("/proc/self/fd")
"""Where a file that has no name can be given one (Linux)."""


def publish(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Make ``path`` from what ``write`` writes, unless someone else was first: then theirs stays.

    The content is complete and on disk before the name appears, and where a file can do without one until then nothing
    is left of a process that is killed. Whoever calls this reads ``path`` afterwards, so all processes use the same
    bytes even where ``write`` is not deterministic to the last of them.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = _begun(path)
    except OSError as error:
        raise DataError(
            f"cannot be written ({error.strerror})", where=str(path.parent), fix="check rights and space"
        ) from error
    try:
        with os.fdopen(descriptor, "w+b") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
            # A link, unlike a rename, fails when the name is taken: the first stays.
            with suppress(FileExistsError):
                if temporary is None:
                    os.link(OPEN_FILES / str(descriptor), path, src_dir_fd=descriptor)  # which makes it follow the link
                else:
                    _link(temporary, path)
    except OSError as error:
        raise DataError(
            f"cannot be written ({error.strerror})", where=str(path), fix="check rights and space"
        ) from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def _begun(path: Path) -> tuple[int, Path | None]:
    """A new file in the folder of ``path``, open; and its name, if it has to have one. Who may read it says the umask:
    several people may share a cache."""
    if hasattr(os, "O_TMPFILE") and OPEN_FILES.is_dir():
        with suppress(OSError):  # not every file system has files without names
            return os.open(path.parent, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o666), None
    name = path.with_name(f".making-{secrets.token_hex(8)}{path.suffix}")
    return os.open(name, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o666), name


def _link(temporary: Path, path: Path) -> None:
    try:
        path.hardlink_to(temporary)
    except FileExistsError:
        raise
    except OSError:  # a file system without links
        temporary.replace(path)
