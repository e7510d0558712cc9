"""Files that are there whole or not at all, whatever happens to the machine.

A file is written under a temporary name, forced to the disk, and renamed; the new name is durable once its directory
has been forced too. Whoever reads sees the old file or the new one.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from gruppetto.numerics.codec import Buffer
from gruppetto.runtime.wire import checksum, octets

__all__ = ["TEMPORARY", "force_directory", "write_durably"]

TEMPORARY = ".tmp"
"""The suffix of files that a crash may leave behind; nobody reads them."""

MAX_WRITE_BYTES = 1 << 30
"""One write call takes at most 2 GiB."""


def write_durably(path: Path, chunks: Iterable[Buffer]) -> tuple[int, int]:
    """Replace ``path`` by the chunks, one after another; returns its size and CRC-32.

    The bytes are durable; the name is after :func:`force_directory`, which several files share. Raises OSError.
    """
    size, crc = 0, 0
    temporary = path.with_name(path.name + TEMPORARY)
    file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        for chunk in chunks:
            rest = octets(chunk)
            size, crc = size + len(rest), checksum(rest, crc)
            while rest:
                rest = rest[os.write(file, rest[:MAX_WRITE_BYTES]) :]
        os.fsync(file)
    finally:
        os.close(file)
    os.replace(temporary, path)  # noqa: PTH105
    return size, crc


def force_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
