"""Who makes what: processes that share a directory, on one machine or on several, and never the same work twice.

::

    quality.claims/HASH.1      made by whoever begins, and by nobody else (O_EXCL); 2 when somebody takes over

Its maker holds the file (flock) and writes a rising number into it. Whoever finds it unlocked **on the same machine**
knows that its maker has ended, however it ended, and takes over at once. Of other machines no lock is believed, for not
every shared directory passes them on: there a number that rests for ``LEASE_S`` of the finder's own clock says that
nobody is there any more.

What is assumed of a shared directory: of two that make a name one succeeds (local disks, NFS since version 3), and what
one machine has forced to disk another reads when it opens the file anew, long before ``LEASE_S`` are over. No clocks of
two machines are compared. Whoever was stopped for longer than that, and goes on, does what somebody else does too: that
is all.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from gruppetto.files import open_file
from gruppetto.runtime.clock import Clock, MonotonicClock

__all__ = ["LEASE_S", "Claims", "this_machine"]

BEAT_S = 5.0
LEASE_S = 60.0
_MOST_BYTES = 4096


class _Word(msgspec.Struct, frozen=True, kw_only=True):
    """What stands in a claim."""

    machine: str
    host: str
    """For people."""
    pid: int
    locked: bool
    """False where the file system has no locks: then nothing follows from its being free."""
    beat: int = 0


@dataclass(slots=True)
class _Held:
    path: Path
    descriptor: int
    word: _Word


@dataclass(frozen=True, slots=True)
class _Seen:
    content: bytes
    since: float


class Claims:
    """Those of one process in one directory, which is made when it is needed. Any thread may call.

    ``machine`` and ``clock`` are for tests. Raises :class:`OSError` where nothing can be written.
    """

    def __init__(self, directory: Path, *, machine: str | None = None, clock: Clock | None = None) -> None:
        self._directory = directory
        self._machine = this_machine() if machine is None else machine
        self._clock = MonotonicClock() if clock is None else clock
        self._lock = threading.Lock()
        self._held: dict[str, _Held] = {}
        self._seen: dict[Path, _Seen] = {}

    def take(self, what: str) -> bool:
        """Whether it is ours from now on. False: somebody else does it."""
        with self._lock:
            numbers = self._numbers(what)
            if numbers and not self._is_over(self._path(what, numbers[-1])):
                return False
            path = self._path(what, numbers[-1] + 1 if numbers else 1)
            try:
                self._held[what] = self._made(path)
            except FileExistsError:
                return False
            for number in numbers:
                self._path(what, number).unlink(missing_ok=True)
            return True

    def release(self, what: str) -> None:
        """It is done, or left to others. Nothing, if it is not ours."""
        with self._lock:
            if (held := self._held.pop(what, None)) is not None:
                with suppress(OSError):  # unlocked it says nothing here, and nothing elsewhere once it rests
                    held.path.unlink()
                os.close(held.descriptor)

    def holder(self, what: str) -> str:
        """Who does it, in words; "" if nobody does."""
        for number in reversed(self._numbers(what)):
            content = _content(self._path(what, number))
            if content is not None:
                word = _read(content)
                if word is None:
                    return "another process"
                there = "" if word.machine == self._machine else f" on {word.host}"
                return f"process {word.pid}{there}"
        return ""

    def beat(self) -> None:
        """Say that what is ours is still being done."""
        with self._lock:
            for held in self._held.values():
                held.word = msgspec.structs.replace(held.word, beat=held.word.beat + 1)
                with suppress(OSError):  # a disk that is full for long costs work done twice, and nothing else
                    _write(held.descriptor, held.word)

    @contextmanager
    def kept(self) -> Iterator[None]:
        """A thread says it every ``BEAT_S`` until the end of the block; whatever is ours by then is let go."""
        over = threading.Event()

        def beat() -> None:
            while not over.wait(BEAT_S):
                self.beat()

        thread = threading.Thread(target=beat, name="claims", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
            for what in list(self._held):
                self.release(what)
            with suppress(OSError):
                self._directory.rmdir()  # of the last one to leave

    def _path(self, what: str, number: int) -> Path:
        return self._directory / f"{what}.{number}"

    def _numbers(self, what: str) -> list[int]:
        found = (path.name.rpartition(".")[2] for path in self._directory.glob(f"{what}.*"))
        return sorted(int(number) for number in found if number.isascii() and number.isdecimal())

    def _is_over(self, path: Path) -> bool:
        """Whether the maker of this claim has ended, or gives no sign of life any more."""
        content = _content(path)
        if content is None:
            return True
        word = _read(content)
        if word is not None and word.machine == self._machine and word.locked and _is_free(path):
            return True
        now = self._clock.now()
        seen = self._seen.get(path)
        if seen is None or seen.content != content:
            self._seen[path] = seen = _Seen(content, now)
        return now - seen.since >= LEASE_S

    def _made(self, path: Path) -> _Held:
        self._make_directory()
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        except FileNotFoundError:  # the last one to leave has removed the directory between the two calls
            self._make_directory()
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            locked = _is_locked_by(descriptor)
            word = _Word(machine=self._machine, host=socket.gethostname(), pid=os.getpid(), locked=locked)
            _write(descriptor, word)
        except OSError as error:
            os.close(descriptor)
            path.unlink(missing_ok=True)
            raise OSError(error.errno, error.strerror, str(path)) from error
        return _Held(path, descriptor, word)

    def _make_directory(self) -> None:
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
        except FileExistsError as error:  # of a claim it would mean that somebody else was first
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(self._directory)) from error


def this_machine() -> str:
    """The same for all processes here since the machine was started, in whatever container, and elsewhere another."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return socket.gethostname()


def _content(path: Path) -> bytes | None:
    """Opened anew each time, so that a network file system asks its server. None: it is gone."""
    try:
        with open_file(path) as file:
            return file.read(_MOST_BYTES)
    except FileNotFoundError:
        return None


def _read(content: bytes | None) -> _Word | None:
    try:
        return None if content is None else msgspec.json.decode(content, type=_Word)
    except (msgspec.MsgspecError, RecursionError):
        return None  # just being made, or somebody else's


def _write(descriptor: int, word: _Word) -> None:
    os.pwrite(descriptor, msgspec.json.encode(word) + b"\n", 0)  # it only grows: the number comes last
    os.fsync(descriptor)


def _is_locked_by(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _is_free(path: Path) -> bool:
    try:
        with path.open("rb+") as file:
            return _is_locked_by(file.fileno())
    except FileNotFoundError:
        return True
    except OSError:
        return False
