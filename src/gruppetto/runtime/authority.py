"""Who may write into a state directory: one life of the syncer at a time, the one with the highest epoch.

::

    epochs/00006      made once, by whoever begins life 6; never by two (O_EXCL)

That one file is three things. It is the **lock**: its maker holds it (flock) for as long as it lives, so that whoever
finds the newest file unlocked knows that nobody is there. It is the **lease**: its maker writes a counter into it again
and again, so that a standby which sees the counter rest for ``lease_s`` of its own clock knows that its maker hangs, or
that its host is gone with the lock; no two clocks are compared. And it is the **fence**: whoever finds a newer file
than his own has lost his authority for ever, wherever he was stopped. Whoever finds only older ones has lost his file
to somebody's broom, and puts it back.

A life looks at the fence before a commit gets its name, before it publishes, and before it takes a learner in. Between
a look and the deed it may be stopped for as long as you like; then one commit can land late. It lands under the name of
its own epoch, where nobody looks for it any more, and the next life began with a round number beyond it
(:mod:`gruppetto.protocol.recovery`). So two lives never give one version two values, whatever the timing.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gruppetto.files import content_of
from gruppetto.protocol.units import Epoch, Round
from gruppetto.runtime.commits import MOST
from gruppetto.runtime.durable import force_directory, write_durably
from gruppetto.runtime.wire import checksum

__all__ = ["EPOCHS", "Authority", "Lease", "has_ended", "is_lived_in"]

EPOCHS = "epochs"
_NAME = re.compile(r"\d{5,}")
_LINE = "gruppetto epoch {epoch:05} reserve {reserve:07} beat {beat:012} commit {commit:09} until {until:012}"
_READ = re.compile(
    rb"(gruppetto epoch (\d{5,10}) reserve (\d{7,10}) beat (\d{12}) commit (\d{9,10}) until (\d{12}))"
    rb" check ([0-9a-f]{8})\n"
)
_OLDER = re.compile(rb"gruppetto epoch \d+( \w+ \d+)*\n?")
"""What a version without a check at its end has written."""
KEPT = 16
"""Files of past lives that stay. Whoever was stopped so many lives ago finds the newest one all the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """What a life says of itself in its file; not forced to the disk, so it may be gone after a power loss."""

    reserve: int
    """Rounds that it publishes at most between two commits."""
    beat: int
    commit: int
    """The number of its newest commit."""
    until: Round
    """The last round that may be published under that commit."""


class Authority:
    """A seat in a state directory; whoever takes it has looked whether it is free. Raises OSError."""

    def __init__(self, path: Path) -> None:
        self._directory = path / EPOCHS
        self._held = -1
        self.epoch = Epoch(0)
        """Our own; 0 until claimed."""
        self._lease = Lease(reserve=0, beat=0, commit=0, until=Round(0))
        self._locked_at: Epoch | None = None
        """The newest epoch when the lock was taken."""

    def newest(self) -> Epoch:
        """The newest epoch that was claimed; 0 in a new directory."""
        return max(self.claimed(), default=Epoch(0))

    def claimed(self) -> list[Epoch]:
        """Those whose files are there, the newest first."""
        return sorted((epoch for name in self._names() if (epoch := _epoch_of(name)) is not None), reverse=True)

    def absurd(self) -> list[str]:
        """Names that look like epochs, and that no life can have."""
        return sorted(name for name in self._names() if _NAME.fullmatch(name) and _epoch_of(name) is None)

    def _names(self) -> list[str]:
        try:
            return os.listdir(self._directory)  # noqa: PTH208
        except FileNotFoundError:
            return []

    def lease(self, epoch: Epoch) -> Lease | None:
        """What that life last said; None if it cannot be read, or is not what was written."""
        try:
            found = _READ.fullmatch(content_of(self._file(epoch)))
        except OSError:
            return None
        if found is None or f"{checksum(found.group(1)):08x}".encode() != found.group(7):
            return None
        whose, reserve, beat, commit, until = map(int, found.groups()[1:6])
        if whose != epoch or max(reserve, commit, until) > MOST:
            return None
        return Lease(reserve=reserve, beat=beat, commit=commit, until=Round(until))

    def is_of_an_older_version(self, epoch: Epoch) -> bool:
        """That life left a word of another format: nothing is damaged, though nobody can vouch for it."""
        try:
            return _OLDER.fullmatch(content_of(self._file(epoch))) is not None
        except OSError:
            return False

    def take_lock(self) -> bool:
        """Hold the file of the newest life, if nobody holds it: then that life has ended. True in a new directory."""
        newest = self.newest()
        self._locked_at = newest
        if not newest:
            return True
        file = os.open(self._file(newest), os.O_RDWR | os.O_CLOEXEC)
        if not _locked(file) or self.newest() != newest:
            os.close(file)
            return False
        self._let_go()
        self._held = file
        return True

    def claim(self, reserve: int, *, above: Epoch = Epoch(0)) -> Epoch | None:  # noqa: B008
        """Begin a new life: its epoch is durable when this returns. None: another process was quicker.

        ``above``: the highest epoch that is known from elsewhere, should its file be gone.
        """
        if not self._directory.exists():
            self._directory.mkdir()
            force_directory(self._directory.parent)
        newest = self.newest()
        if self._locked_at not in (None, newest):
            return None  # whoever is there has put back the file that was missing when we looked for its lock
        epoch = Epoch(max(newest, above) + 1)
        if epoch > MOST:
            raise OSError(errno.EOVERFLOW, "no epoch is left above those that are named there")
        try:
            file = os.open(self._file(epoch), os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            return None
        try:
            if not _locked(file):
                raise BlockingIOError(errno.EWOULDBLOCK, "somebody else holds it")
            lease = Lease(reserve=reserve, beat=0, commit=0, until=Round(0))
            os.write(file, _text(epoch, lease))
            os.fsync(file)
            force_directory(self._directory)
        except BaseException as wrong:
            os.close(file)
            if isinstance(wrong, BlockingIOError):
                return None
            if isinstance(wrong, OSError):
                with suppress(OSError):
                    self._file(epoch).unlink()
            raise
        self._let_go()
        self._held, self.epoch, self._lease = file, epoch, lease
        self._sweep()
        return epoch

    def beat(self, *, commit: int | None = None, until: Round | None = None) -> None:
        """Renew the lease; say with it which commit is the newest."""
        old = self._lease
        self._lease = Lease(
            reserve=old.reserve,
            beat=old.beat + 1,
            commit=old.commit if commit is None else commit,
            until=old.until if until is None else until,
        )
        if self._held >= 0 and self.epoch:
            os.pwrite(self._held, _text(self.epoch, self._lease), 0)

    def leave_word(self, epoch: Epoch, *, commit: int, until: Round) -> None:
        """Begin the file of a life that never was, in a directory of nobody's: the next life is the one after it."""
        self._directory.mkdir(parents=True, exist_ok=True)
        lease = Lease(reserve=0, beat=0, commit=commit, until=until)
        write_durably(self._file(epoch), [_text(epoch, lease)])
        force_directory(self._directory)

    def put_back(self) -> bool:
        """Make our own file again, which somebody has removed, and hold it. False: there is a newer one by now.

        Whoever began meanwhile has an epoch above those in the names of our commits, so the fence stands.
        """
        self._directory.mkdir(exist_ok=True)
        with suppress(FileExistsError):  # another thread was quicker
            file = os.open(self._file(self.epoch), os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                if not _locked(file):
                    raise BlockingIOError(errno.EWOULDBLOCK, "somebody else holds it")
                os.write(file, _text(self.epoch, self._lease))
                os.fsync(file)
                os.dup2(file, self._held, inheritable=False)  # the lock stays with what is held
            finally:
                os.close(file)
            for directory in (self._directory, self._directory.parent):
                force_directory(directory)
        return self.newest() == self.epoch

    def most_reserve(self) -> int:
        """Of all lives that have left word, and ours."""
        leases = [self.lease(epoch) for epoch in self.claimed()[: KEPT + 1]]
        return max([self._lease.reserve, *(lease.reserve for lease in leases if lease is not None)])

    def close(self) -> None:
        """Leave the seat."""
        self._let_go()

    def _file(self, epoch: Epoch) -> Path:
        return self._directory / f"{epoch:05}"

    def _let_go(self) -> None:
        if self._held >= 0:
            os.close(self._held)
            self._held = -1

    def _sweep(self) -> None:
        for path in self._directory.iterdir():
            epoch = _epoch_of(path.name)
            if epoch is not None and epoch <= self.epoch - KEPT:
                with suppress(OSError):
                    path.unlink()


def is_lived_in(path: Path) -> bool:
    """Whether a life goes on in a state directory, listening or not. What cannot be looked at is nobody's."""
    return _is_free(path) is False


def has_ended(path: Path) -> bool:
    """Whether nobody lives in a state directory any more. Of what cannot be looked at, that is not said."""
    return _is_free(path) is True


def _is_free(path: Path) -> bool | None:
    """Whether its lock can be had; None where it cannot be looked at."""
    authority = Authority(path)
    try:
        return authority.take_lock()
    except OSError:
        return None
    finally:
        authority.close()


def _epoch_of(name: str) -> Epoch | None:
    """By the name of its file; None for a name that no life gives."""
    if not _NAME.fullmatch(name) or int(name) > MOST or f"{int(name):05}" != name:
        return None
    return Epoch(int(name))


def _locked(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _text(epoch: Epoch, lease: Lease) -> bytes:
    line = _LINE.format(
        epoch=epoch, reserve=lease.reserve, beat=lease.beat, commit=lease.commit, until=lease.until
    ).encode()
    return line + f" check {checksum(line):08x}\n".encode()
