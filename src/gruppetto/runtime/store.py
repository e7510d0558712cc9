"""The durable state of a syncer, in one directory (section 9).

::

    DIR/
      epochs/       one file per life: lock, lease and fence            (gruppetto.runtime.authority)
      commits/      one file per commit: values and control record      (gruppetto.runtime.commits)
      layout.json   the model's tensors, and a copy in layout.copy.json

A commit is a new file. Kept are the newest one, the one before, some older ones as snapshots, at least H rounds apart,
and all files in which a value lies that one of these names: so there are two values of every fragment, and older ones.
What is damaged or missing is replaced by the newest good thing before it, and the new life is told what it may not know
(:mod:`gruppetto.protocol.recovery`). What was found is said, and where nothing good is left nothing starts.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

from gruppetto.errors import StateError, SteppedDown
from gruppetto.numerics.downlink import Kept
from gruppetto.numerics.kernels import Float32
from gruppetto.numerics.layout import Layout
from gruppetto.protocol.recovery import unseen_rounds
from gruppetto.protocol.state import OlderValue, SyncerState
from gruppetto.protocol.units import Epoch, Fragment, Round, Version
from gruppetto.runtime.authority import EPOCHS, Authority
from gruppetto.runtime.commits import (
    COMMITS,
    Commit,
    CommitName,
    DamagedError,
    Identity,
    Place,
    pieces_of,
)
from gruppetto.runtime.durable import TEMPORARY, force_directory, write_durably
from gruppetto.runtime.layout_files import LAYOUTS, read_layout, write_layout
from gruppetto.runtime.store_errors import StoreInUse, cannot_write, damaged, in_use
from gruppetto.runtime.store_opening import StoreOpening, holds_commits

__all__ = ["LAYOUTS", "Identity", "Store", "StoreInUse", "Values", "cannot_write", "holds_commits"]

_log = logging.getLogger("gruppetto.store")

PAST_CACHE_BYTES = 4 << 20
"""A commit of so much is written past the page cache: for less it is not worth a thread."""
Values = Mapping[Place, tuple[Float32, Kept]]
"""Values that have been read and checked already."""


class Store(StoreOpening):
    """One syncer's directory, open and locked.

    Without an ``identity`` it is opened to be looked at, and begun by nobody. With ``over`` the lock is passed over:
    whoever holds it has not renewed his lease. ``reserve``: rounds that this life publishes at most between two
    commits; ``apart`` and ``snapshots_kept``: how many rounds lie between two snapshots, and how many there are.

    Raises :class:`StateError` when the directory is in use, belongs to another run, or nothing in it is good.
    """

    def __init__(
        self,
        path: Path,
        *,
        identity: Identity | None,
        run_id: str = "",
        over: bool = False,
        reserve: int = 0,
        apart: int = 1,
        snapshots_kept: int = 2,
        known: Values | None = None,
    ) -> None:
        """Open ``path``, or begin it. ``run_id`` names the run; "" takes what is there, or makes a name up."""
        super().__init__(path, identity=identity, run_id=run_id, over=over)
        self.unseen = 0
        """Rounds after the state that may have been published."""
        self.damaged: tuple[OlderValue, ...] = ()
        """Fragments whose value at hand is older than the state says."""
        self._reserve, self._apart, self._snapshots_kept = reserve, apart, snapshots_kept
        self._known: Values = known or {}
        self._values: dict[Fragment, tuple[Float32, Kept]] = {}
        self._unneeded: set[str] = set()
        """Files that the commits before the newest needed."""
        try:
            self._check_that_it_is_ours()
            self._commits.mkdir(parents=True, exist_ok=True)
            for directory in (path, path.parent):
                force_directory(directory)
            if not over and not self._seat.take_lock():
                raise in_use(path)
            self._commit = self._open()
        except OSError as wrong:
            self.close()
            raise StateError(
                f"cannot be used as a state directory ({wrong.strerror})", where=str(path), fix="name another"
            ) from wrong
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the directory."""
        self._seat.close()

    @property
    def run_id(self) -> str:
        return self._commit.run_id

    @property
    def identity(self) -> Identity:
        return self._commit.identity

    @property
    def epoch(self) -> Epoch:
        """Ours, once claimed; 0 before."""
        return self._seat.epoch

    @property
    def newest_epoch(self) -> Epoch:
        """The newest that was ever claimed here."""
        return self._seat.newest()

    @property
    def reserve(self) -> int:
        """Rounds after the state that may have been published by whoever was here."""
        return 0 if self.state is None else unseen_rounds(self.state.round, until=self._may_be_known)

    @property
    def state(self) -> SyncerState | None:
        """What is durable; None before the run has weights."""
        return self._commit.state

    # ── a new life ───────────────────────────────────────────────────────────────────────────────────────────────

    def claim_epoch(self) -> Epoch:
        """Begin a new life: its epoch is durable when this returns, no other life will ever have it, and whatever the
        life before still writes is nobody's from now on.

        Raises :class:`StateError` if it cannot be written, or if another process was quicker.
        """
        before = max(self._seat.newest(), self._named)
        try:
            if self._seat.claim(self._reserve, above=before) is None:
                raise in_use(self.path)
            if self._over:
                self._commit = self._open()  # behind the fence nothing that counts is added any more
            is_last_word = not self._over and not self._word_is_lost and self._commit.epoch == before
            self._adopt(is_last_word=is_last_word)
        except OSError as wrong:
            raise cannot_write(self.path / EPOCHS, wrong) from wrong
        return self.epoch

    def _adopt(self, *, is_last_word: bool) -> None:
        """Make what is good of the last commit our own first one."""
        commit = self._commit
        state, places = commit.state, commit.places
        if state is not None:
            in_flight = None if is_last_word else self._most_reserve()
            self.unseen = unseen_rounds(state.round, until=(state.round, *self._may_be_known), in_flight=in_flight)
            places = tuple(self._good_and_beat(Fragment(p), of_fragment) for p, of_fragment in enumerate(places))
            self.damaged = tuple(
                OlderValue(fragment=Fragment(p), version=newest.version, merged=newest.merged)
                for p, (newest, *_) in enumerate(places)
                if newest.version != state.versions[p]
            )
            state = replace(state, reserve=self.unseen)
        # Also of a life that leaves nothing: its name is in the record.
        self._write(replace(commit, epoch=self.epoch, number=0, state=state, places=places), {})
        self._sweep(path.name for path in self._commits.iterdir())

    def _most_reserve(self) -> int:
        """The largest that is known: of the setting, the leases and the commits. A life's first commit is not asked;
        what stands there is how much its author did not know."""
        commits = [self._commit, *self._snapshots]
        if self._before is not None:
            commits.append(self._before)
        known = [commit.state.reserve for commit in commits if commit.state is not None and commit.number]
        return max([self._reserve, self._seat.most_reserve(), *known])

    def _good_and_beat(self, p: Fragment, of_fragment: tuple[Place, ...]) -> tuple[Place, ...]:
        """To read a large model takes longer than a lease lasts."""
        self._seat.beat()
        return self._good(p, of_fragment)

    def _good(self, p: Fragment, of_fragment: tuple[Place, ...]) -> tuple[Place, ...]:
        """The places of a fragment from the newest good one on. Its value is kept for :meth:`load`."""
        older = [place for snapshot in self._snapshots for place in snapshot.places[p]]
        candidates = sorted({*of_fragment, *older}, key=lambda place: -place.version)
        first = candidates[0]
        for i, place in enumerate(candidates):
            try:
                self._values[p] = self._known.get(place) or place.read(self._commits)
            except DamagedError as wrong:
                self.found.append(f"{COMMITS}/{place.file}: fragment {p}, version {place.version}, is damaged: {wrong}")
            else:
                return tuple(candidates[i : i + 2])
        raise damaged(self._commits / first.file, f"no good value of fragment {p} is left")

    # ── commits ──────────────────────────────────────────────────────────────────────────────────────────────────

    def commit(
        self,
        state: SyncerState,
        fragments: Mapping[Fragment, tuple[Float32, Kept]],
        layout: Layout,
        *,
        sweeps: bool = True,
    ) -> None:
        """Make ``state`` and these fragments durable, all or nothing. Those not given stay as they are. ``sweeps``:
        remove what nothing needs any more; else :meth:`sweep` has to, when there is time.

        Raises OSError, and then the commit before is still the one that counts; :class:`SteppedDown` when another life
        has the authority.
        """
        assert state.run_id == self.run_id and state.epoch == self.epoch
        self._values.clear()  # of another commit
        if self.state is None:
            write_layout(self.path, layout)
        self._write(replace(self._commit, number=self._commit.number + 1, state=state), fragments)
        if sweeps:
            self.sweep()

    def sweep(self) -> None:
        """Remove those of our own files that nothing needs any more. What cannot be removed is tried again at the next
        start."""
        unneeded, self._unneeded = self._unneeded, set()
        self._sweep(unneeded)

    def copy_to(self, place: Path, state: SyncerState, epoch: Epoch) -> None:
        """Make ``place`` a state directory of the newest commit, with ``state`` in place of its own, which has to name
        the same versions. ``epoch`` is the newest that is claimed there: the next life is the one after it.

        Files are linked where that is possible: no file is ever changed once it is written. Raises OSError.
        """
        assert self.state is not None and state.versions == self.state.versions
        look = self.check_authority if self.epoch else lambda: None
        (place / COMMITS).mkdir(parents=True, exist_ok=True)
        for file in sorted({where.file for of_fragment in self._commit.places for where in of_fragment}):
            _link(self._commits / file, place / COMMITS / file)
        write_layout(place, self.layout())
        draft = replace(self._commit, epoch=epoch, number=self._commit.number + 1, state=state, snapshots=())
        Authority(place).leave_word(epoch, commit=draft.number, until=draft.name.until)
        written: list[Commit] = []
        write_durably(place / COMMITS / draft.name.file, pieces_of(draft, {}, written), look=look)
        for directory in (place / COMMITS, place, place.parent):
            force_directory(directory)

    def check_authority(self) -> None:
        """Look at the fence, and mend it where a piece of it was removed. Raises :class:`SteppedDown`."""
        newest = self._seat.newest()
        if newest < self.epoch:
            self._put_back()
            newest = self._seat.newest()
        if newest != self.epoch:
            raise SteppedDown(
                f"{self.path}: another syncer has taken over (epoch {newest}, this one had {self.epoch}); "
                "this one serves no more"
            )

    def _put_back(self) -> None:
        """An older epoch is no successor: our own file has been removed."""
        gone = f"{self.path / EPOCHS}/{self.epoch:05}"
        try:
            if self._seat.put_back():
                _log.warning("%s was removed while this syncer served; it has been put back", gone)
        except OSError as wrong:
            raise SteppedDown(
                f"{gone}: was removed while this syncer served, and cannot be put back ({wrong.strerror}); "
                "nothing keeps another one out, so this one serves no more"
            ) from wrong

    def beat(self) -> None:
        """Renew the lease. Raises :class:`SteppedDown`, or OSError."""
        self.check_authority()
        self._seat.beat()

    def _write(self, draft: Commit, values: Mapping[Fragment, tuple[Float32, Kept]]) -> None:
        old = set(self._needed())
        snapshots, state = self._snapshots, draft.state
        is_snapshot = state is not None and (not snapshots or state.round >= _round_of(snapshots[0]) + self._apart)
        kept = tuple(snapshot.name.file for snapshot in snapshots)
        if is_snapshot:
            kept = (draft.name.file, *kept)[: 1 + self._snapshots_kept]
        draft = replace(draft, snapshots=kept)
        written: list[Commit] = []
        path = self._commits / draft.name.file
        size_bytes = sum(array.nbytes for theta, rest in values.values() for array in (theta, *rest))
        past_cache = size_bytes >= PAST_CACHE_BYTES
        write_durably(path, pieces_of(draft, values, written), look=self.check_authority, past_cache=past_cache)
        force_directory(self._commits)
        (commit,) = written
        self._before, self._commit = self._commit, commit
        if is_snapshot:
            self._snapshots = (commit, *snapshots)[: len(kept)]
        with suppress(OSError):  # it is done; a lease that cannot be renewed is found out by the next beat
            self._seat.beat(commit=commit.number, until=commit.name.until)
        self._unneeded |= old

    def _needed(self) -> Iterator[str]:
        """The files that are kept, and why: the newest two commits and the snapshots, and what they name."""
        for commit in (self._commit, self._before):
            if commit is not None:
                yield commit.name.file
                yield from (place.file for of_fragment in commit.places for place in of_fragment)
        for commit in self._snapshots:
            yield commit.name.file
            yield from (of_fragment[0].file for of_fragment in commit.places)

    def _sweep(self, files: Iterable[str]) -> None:
        """Remove those of our own files that nothing needs any more."""
        needed = set(self._needed())
        for file in files:
            if file not in needed and CommitName.parse(file.removesuffix(TEMPORARY)):
                with suppress(OSError):  # it is tried again at the next start
                    (self._commits / file).unlink()

    # ── reading ──────────────────────────────────────────────────────────────────────────────────────────────────

    def load(self) -> Iterator[tuple[Fragment, Version, Float32, Kept]]:
        """The newest good value of every fragment, checked."""
        for p, of_fragment in enumerate(self._commit.places):
            places = of_fragment if Fragment(p) in self._values else self._good(Fragment(p), of_fragment)
            yield Fragment(p), places[0].version, *self._values.pop(Fragment(p))

    def layout(self) -> Layout:
        """The run's layout. Only after a commit."""
        assert self.state is not None
        first: StateError | None = None
        for path in (self.path / name for name in LAYOUTS):
            try:
                return read_layout(path, self.state.layout_hash)
            except StateError as wrong:
                self.found.append(str(wrong.where) + " " + wrong.what)
                first = first or wrong
        assert first is not None
        raise first


def _round_of(commit: Commit) -> Round:
    assert commit.state is not None
    return commit.state.round


def _link(source: Path, target: Path) -> None:
    with suppress(FileExistsError):
        try:
            target.hardlink_to(source)
        except OSError as wrong:
            if isinstance(wrong, FileExistsError) or wrong.errno not in (errno.EXDEV, errno.EPERM, errno.EMLINK):
                raise
            write_durably(target, [source.read_bytes()])
