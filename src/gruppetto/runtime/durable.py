"""Files that are there whole or not at all, whatever happens to the machine.

A file is written under a temporary name, forced to the disk, and renamed; the new name is durable once its directory
has been forced too. Whoever reads sees the old file or the new one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path

from gruppetto.numerics.codec import Buffer
from gruppetto.runtime.past_cache import WriterPastCache
from gruppetto.runtime.wire import octets

__all__ = ["TEMPORARY", "force_directory", "force_file", "write_durably"]

TEMPORARY = ".tmp"
"""The suffix of files that a crash may leave behind; nobody reads them."""

MAX_WRITE_BYTES = 1 << 30
"""One write call takes at most 2 GiB."""


def write_durably(
    path: Path, chunks: Iterable[Buffer], *, look: Callable[[], object] = lambda: None, past_cache: bool = False
) -> None:
    """Replace ``path`` by the chunks, one after another.

    The bytes are durable; the name is after :func:`force_directory`, which several files share. ``look`` is called
    before the file gets its name, and raises if it may not have it. ``past_cache``: the file is large, and will hardly
    be read. Raises OSError.
    """
    temporary = path.with_name(path.name + TEMPORARY)
    file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        if past_cache:
            with WriterPastCache(file) as writer:
                for chunk in chunks:
                    writer.write(octets(chunk))
                writer.finish()
        else:
            for chunk in chunks:
                rest = octets(chunk)
                while rest:
                    rest = rest[os.write(file, rest[:MAX_WRITE_BYTES]) :]
        os.fsync(file)
    finally:
        os.close(file)
    look()
    os.replace(temporary, path)  # noqa: PTH105


def force_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def force_file(path: Path) -> None:
    """Make the content of a file durable that somebody else has written."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)
