"""Writing large files past the page cache.

What the system caches of a file that nobody will read costs a copy, and worse: when others on the machine write much,
whoever writes next is made to wait until the disk has caught up with all of them. Here blocks go to the disk from
aligned memory (``O_DIRECT``), one while the next one is put together, so that checksums are taken under the writing.
Where a file system does not have that, and for the last bytes of a file, they are written as usual.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from types import TracebackType
from typing import Self

__all__ = ["BLOCK_BYTES", "WriterPastCache"]

BLOCK_BYTES = 1 << 20
"""Written in one go: a multiple of what any disk wants, small enough for the second-level cache."""
BLOCKS = 3
"""One on its way, one that waits behind it, and one that is being filled."""
_DIRECT = getattr(os, "O_DIRECT", 0)


class WriterPastCache:
    """Writes into an open file from its beginning, in order. Leaving the context waits for what is on its way, and
    leaves the file open; nothing is forced to the disk yet.

    Every method raises the OSError of any write before.
    """

    def __init__(self, file: int) -> None:
        self._file = file
        self._blocks = [memoryview(mmap.mmap(-1, BLOCK_BYTES)) for _ in range(BLOCKS)]
        self._on_its_way: list[Future[None]] = []
        self._filled = 0
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="gruppetto-write")
        self._switch(direct=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._writer.shutdown(wait=True, cancel_futures=True)

    def write(self, data: memoryview) -> None:
        """Take these bytes; they are copied when this returns."""
        while data:
            block = self._blocks[0]
            part = data[: BLOCK_BYTES - self._filled]
            block[self._filled : self._filled + len(part)] = part
            self._filled += len(part)
            data = data[len(part) :]
            if self._filled == BLOCK_BYTES:
                self._hand_over(block)

    def finish(self) -> None:
        """Wait until everything is written."""
        for written in self._on_its_way:
            written.result()
        self._on_its_way.clear()
        self._switch(direct=False)  # what is left is no whole block
        self._write_block(self._blocks[0][: self._filled])
        self._filled = 0

    def _hand_over(self, block: memoryview) -> None:
        """The first block is full: write it, and go on with the next one when that is free."""
        self._on_its_way.append(self._writer.submit(self._write_block, block))
        self._blocks = [*self._blocks[1:], block]
        self._filled = 0
        while len(self._on_its_way) >= BLOCKS:
            self._on_its_way.pop(0).result()

    def _write_block(self, block: memoryview) -> None:
        while block:
            try:
                block = block[os.write(self._file, block) :]
            except OSError as wrong:
                # It can be opened like that, and not written; or a part was, and the rest begins at an odd place.
                if wrong.errno != errno.EINVAL or not self._switch(direct=False):
                    raise

    def _switch(self, *, direct: bool) -> bool:
        """Write past the cache from now on, or through it; whether that has changed something."""
        before = fcntl.fcntl(self._file, fcntl.F_GETFL)
        after = before | _DIRECT if direct else before & ~_DIRECT
        with suppress(OSError):
            fcntl.fcntl(self._file, fcntl.F_SETFL, after)
        return fcntl.fcntl(self._file, fcntl.F_GETFL) != before
