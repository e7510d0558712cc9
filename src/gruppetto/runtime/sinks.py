"""Where the bytes of a connection go (:mod:`~gruppetto.runtime.body_stream`): into their place, or nowhere."""

from __future__ import annotations

from typing import Protocol

from gruppetto.errors import ProtocolError
from gruppetto.runtime.body_wire import GREETING_END

__all__ = ["Bytes", "Discard", "Greeting", "Nothing", "Sink"]

MAX_GREETING_BYTES = 1 << 14
DISCARD_BYTES = 1 << 18
"""Thrown away at a time."""


class Sink(Protocol):
    """Where bytes go."""

    @property
    def missing_bytes(self) -> int:
        """How many it still takes."""
        ...

    def room(self) -> memoryview:
        """The place of the next ones; not empty while some are missing."""
        ...

    def wrote(self, num_bytes: int) -> None:
        """So many of them are there. May raise :class:`ProtocolError`."""
        ...


class Bytes:
    """Room for so many bytes."""

    def __init__(self, num_bytes: int) -> None:
        self.data = bytearray(num_bytes)
        self._at = 0

    @property
    def missing_bytes(self) -> int:
        return len(self.data) - self._at

    def room(self) -> memoryview:
        return memoryview(self.data)[self._at :]

    def wrote(self, num_bytes: int) -> None:
        self._at += num_bytes


class Greeting:
    """The head of an HTTP reply, up to the empty line. Nothing comes after it before we ask."""

    def __init__(self) -> None:
        self._data, self._at = bytearray(MAX_GREETING_BYTES), 0

    @property
    def missing_bytes(self) -> int:
        return 0 if GREETING_END in self._data else MAX_GREETING_BYTES - self._at

    def room(self) -> memoryview:
        return memoryview(self._data)[self._at :]

    def wrote(self, num_bytes: int) -> None:
        self._at += num_bytes

    @property
    def text(self) -> str:
        return self._data.partition(GREETING_END)[0].decode("latin-1")


class Nothing:
    """An idle connection: it is only watched for its end."""

    missing_bytes = 1

    def room(self) -> memoryview:
        return memoryview(bytearray(1))

    def wrote(self, num_bytes: int) -> None:
        raise ProtocolError("something came that nobody has asked for")


class Discard:
    """Takes so many bytes, and keeps none; None: for ever."""

    def __init__(self, num_bytes: int | None) -> None:
        self._room = memoryview(bytearray(DISCARD_BYTES))
        self._left = num_bytes

    @property
    def missing_bytes(self) -> int:
        return DISCARD_BYTES if self._left is None else self._left

    def room(self) -> memoryview:
        return self._room[: self.missing_bytes]

    def wrote(self, num_bytes: int) -> None:
        if self._left is not None:
            self._left -= num_bytes
