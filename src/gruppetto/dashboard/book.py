"""A trace and the notes beside it, read as they grow, on one thread of their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from gruppetto.dashboard.picture import Picture
from gruppetto.dashboard.tail import Tail
from gruppetto.report.rundir import DEATHS, EVALUATION
from gruppetto.runtime.clock import Clock, wall_time_s

__all__ = ["Book"]

SLICE_BYTES = 1 << 18
"""Read at once; then somebody may look, and others may have the processor."""
STILL_S = 15.0
"""A trace that nobody has written for so long is not being written."""


class Source(Protocol):
    """Where lines come from: :class:`~gruppetto.dashboard.tail.Tail`, or :class:`~gruppetto.dashboard.tap.Tap`."""

    read_bytes: int
    anew: int

    def size(self) -> int: ...
    def written_at(self) -> float | None:
        """The date of the newest line, in seconds since 1970; None if that is now."""

    def lines(self, most_bytes: int) -> Iterator[bytes]: ...
    def close(self) -> None: ...


class Book:
    """The picture of the run whose trace lies at ``trace``.

    ``always_live``: the reader lives in the process that writes the trace. ``source``: where lines come from instead of
    the file, if nobody writes one.
    """

    def __init__(
        self, trace: Path | None, clock: Clock, *, always_live: bool = False, source: Source | None = None
    ) -> None:
        self.picture = Picture()
        self.version = 0
        """Rises with every line."""
        self._clock, self._always_live = clock, always_live
        assert trace is not None or source is not None
        self._trace = source if source is not None else Tail(trace or Path())
        self._notes = [Tail(trace.with_name(name)) for name in (EVALUATION, DEATHS)] if trace is not None else []
        self._anew = 0
        self._heard_at = self._written_at()
        """When the newest line was written, on our clock."""

    @property
    def live(self) -> bool:
        """Somebody is writing, as far as can be told."""
        return self._always_live or self._clock.now() - self._heard_at < STILL_S

    @property
    def now(self) -> float:
        """Seconds since the run began; while it lives they go on between two records."""
        idle_s = self._clock.now() - self._heard_at if self.live and not self.picture.finished else 0.0
        return self.picture.now + min(max(0.0, idle_s), 3600.0)

    @property
    def share_read(self) -> float:
        """How much of the trace has been taken in."""
        size = self._trace.size()
        return 1.0 if size <= 0 else min(1.0, self._trace.read_bytes / size)

    def read(self, most_bytes: int = SLICE_BYTES) -> bool:
        """Take in what is new, up to a slice; whether there may be more."""
        took, before = 0, self._trace.read_bytes
        for line in self._trace.lines(most_bytes):
            if self._trace.anew != self._anew:
                self._begin_anew()
            self.picture.take(line)
            took += 1
        behind = self._trace.read_bytes != before and self._trace.size() > self._trace.read_bytes
        if took:
            self._heard_at = self._written_at()
        if not behind:
            for notes in self._notes:
                for line in notes.lines(most_bytes):
                    self.picture.take(line)
                    took += 1
        self.version += took
        return behind

    def read_all(self) -> None:
        """Everything that is there now."""
        while self.read(16 * SLICE_BYTES):
            pass

    def close(self) -> None:
        for tail in (self._trace, *self._notes):
            tail.close()

    def _begin_anew(self) -> None:
        """Another run lies where this one lay."""
        self._anew = self._trace.anew
        self.picture = Picture()
        for notes in self._notes:
            notes.close()

    def _written_at(self) -> float:
        date = self._trace.written_at()
        return self._clock.now() - (0.0 if date is None else max(0.0, wall_time_s() - date))
