"""What is found in a state directory that is opened: whose it is, its newest commit, and what is known of newer ones.

:class:`~gruppetto.runtime.store.Store` stands on it.
"""

from __future__ import annotations

import secrets
from pathlib import Path

from gruppetto.errors import StateError
from gruppetto.protocol.units import Epoch, Round
from gruppetto.runtime.authority import EPOCHS, KEPT, Authority
from gruppetto.runtime.commits import COMMITS, Commit, CommitName, DamagedError, Identity
from gruppetto.runtime.durable import TEMPORARY
from gruppetto.runtime.layout_files import LAYOUTS
from gruppetto.runtime.store_errors import damaged, in_use, other_format

__all__ = ["StoreOpening", "holds_commits"]

_HALF_WRITTEN = frozenset(name + TEMPORARY for name in (*LAYOUTS, "endpoint.json"))
_NOT_FOREIGN = _HALF_WRITTEN | {EPOCHS, COMMITS, *LAYOUTS, "endpoint.json", "lost+found"}
_DIARIES = frozenset({".jsonl", ".log"})
"""Traces and logs may be written beside the state, and are opened before it."""

_SET_BY = {
    "fragments_asked": "run.num_fragments",
    "fragmenter": "fragments.how",
    "merge": "merge.rules",
    "optimizer": "outer.optimizer, and whether there is an outer.average_share",
    "shard": "--shard, and shards as many",
}


class StoreOpening:
    """A directory that is being opened. Whoever has read :attr:`found` and :attr:`notices` knows what was wrong."""

    def __init__(self, path: Path, *, identity: Identity | None, run_id: str, over: bool) -> None:
        self.path = path
        self.found: list[str] = []
        """What was damaged or missing, in words."""
        self.notices: list[str] = []
        """What is no damage and has to be said all the same."""
        self._identity, self._asked_run_id, self._over = identity, run_id, over
        self._before: Commit | None = None
        self._snapshots: tuple[Commit, ...] = ()
        self._may_be_known: list[Round] = []
        """The last rounds that may be published under the newest commits, though they cannot be read."""
        self._named = Epoch(0)
        """The newest epoch in the names of the commits."""
        self._word_is_lost = False
        """What the newest life said of its commits cannot be read: there may have been one more."""
        self._commits = path / COMMITS
        self._seat = Authority(path)

    def _open(self) -> Commit:
        """The newest commit that can be read, and what is known of newer ones."""
        parsed = (CommitName.parse(path.name) for path in self._commits.iterdir())
        names = sorted((name for name in parsed if name is not None), reverse=True)
        self._named = names[0].epoch if names else Epoch(0)
        self.found, self._may_be_known, self._before, self._snapshots = [], [], None, ()
        newest: Commit | None = None
        for name in names:
            commit = self._read(name)
            self._may_be_known.append(name.until)
            if commit is not None:
                newest = commit
                break
        self._look_for_missing(newest)
        unread = self._look_for_word(newest)
        absurd = [f"{EPOCHS}/{name}" for name in self._seat.absurd()]
        absurd += sorted(f"{COMMITS}/{f.name}" for f in self._commits.iterdir() if CommitName.is_absurd(f.name))
        also = [*unread, *(f"{file} is passed over: no syncer gives a number like this" for file in absurd)]
        if newest is None or (newest.state is None and self.found):
            self._refuse_if_there_was_more(names)
            self.found += also
            return self._begin()
        if self._over and newest.state is None:
            # Version 0 has no number before it that could be left out.
            raise in_use(self.path)
        if newest.state is None and self._word_is_lost and (self.path / LAYOUTS[0]).exists():
            # The layout is written just before the first weights are.
            raise damaged(self.path, f"{[*unread, *self.notices][0]}, and the first weights are missing")
        self._compare(newest)
        self.found += also
        rest = names[names.index(newest.name) + 1 :]
        self._before = self._read(rest[0]) if rest else None
        kept = [CommitName.parse(file) for file in newest.snapshots]
        snapshots = [self._read(name) for name in kept if name is not None and name != newest.name]
        own = [newest] if newest.name.file in newest.snapshots else []
        self._snapshots = (*own, *(commit for commit in snapshots if commit is not None and commit.state is not None))
        return newest

    def _read(self, name: CommitName) -> Commit | None:
        path = self._commits / name.file
        try:
            return Commit.read(path)
        except DamagedError as wrong:
            self.found.append(f"{COMMITS}/{name.file} is damaged: {wrong}")
            return None
        except NotImplementedError as other:
            raise other_format(path, str(other)) from None

    def _look_for_word(self, newest: Commit | None) -> list[str]:
        """Of the life that wrote the newest commit and of those after it: what they said of their commits, if that
        cannot be read."""
        claimed, since = self._seat.claimed(), newest.epoch if newest is not None else Epoch(1)
        lost = [epoch for epoch in claimed if epoch >= max(since, 1) and self._seat.lease(epoch) is None]
        older = [epoch for epoch in lost if self._seat.is_of_an_older_version(epoch)]
        self.notices = [
            f"{EPOCHS}/{epoch:05} was written by an older version, once: one more commit may have been published"
            for epoch in older
        ]
        unread = [f"{EPOCHS}/{epoch:05} cannot be read" for epoch in lost if epoch not in older]
        if since not in claimed and newest is not None and since and max(claimed, default=0) - since < KEPT:
            unread.append(f"{EPOCHS}/{since:05} is missing")
        self._word_is_lost = bool(unread or older)
        return [f"{text}: one more commit may have been published" for text in unread]

    def _look_for_missing(self, newest: Commit | None) -> None:
        """Every life leaves word of its newest commit."""
        for epoch in self._seat.claimed():
            self._look_for_missing_of(epoch, newest)

    def _look_for_missing_of(self, epoch: Epoch, newest: Commit | None) -> None:
        lease = self._seat.lease(epoch)
        if lease is None or not lease.commit:
            return
        if newest is None or (newest.epoch, newest.number) < (epoch, lease.commit):
            name = CommitName(epoch=epoch, number=lease.commit, until=lease.until)
            self._may_be_known.append(lease.until)
            if not any(name.file in text for text in self.found):
                self.found.append(f"{COMMITS}/{name.file} is missing")

    def _refuse_if_there_was_more(self, names: list[CommitName]) -> None:
        """Never start silently from nothing."""
        if (self.path / "state.msgpack").exists():
            raise other_format(self.path / "state.msgpack", "1")
        if self.found:
            raise damaged(self._commits, f"no commit can be read ({self.found[0]})")
        if names or (self.path / LAYOUTS[0]).exists():
            raise damaged(self._commits, "all commits are missing, though there are other parts of a run")

    def _begin(self) -> Commit:
        if self._identity is None:
            raise StateError("holds no run", where=str(self.path), fix="name the directory of one")
        name = self._asked_run_id or f"run-{secrets.token_hex(4)}"
        return Commit(run_id=name, epoch=Epoch(0), number=0, identity=self._identity, state=None)

    def _compare(self, commit: Commit) -> None:
        if self._asked_run_id and self._asked_run_id != commit.run_id:
            raise StateError(
                f"holds run {commit.run_id!r}, not {self._asked_run_id!r}",
                where=str(self.path),
                fix="name the state directory of this run, or a new one",
            )
        for name in () if self._identity is None else Identity.__slots__:
            then, now = getattr(commit.identity, name), getattr(self._identity, name)
            if then != now:
                raise StateError(
                    f"this run was begun with {name} = {then!r}, now it is {now!r}",
                    where=str(self.path),
                    fix=f"take the old value ({_SET_BY[name]}), or a new state directory",
                )

    def _check_that_it_is_ours(self) -> None:
        """A directory full of something else is most likely a slip of the pen."""
        if not self.path.exists() or holds_commits(self.path) or (self.path / "state.msgpack").exists():
            return
        found = [*self.path.iterdir(), *(self._commits.iterdir() if self._commits.is_dir() else ())]
        for path in sorted(found):
            ours = CommitName.parse(path.name.removesuffix(TEMPORARY)) is not None
            if not (path.name in _NOT_FOREIGN or path.suffix in _DIARIES or ours):
                raise StateError(
                    f"is not a state directory: it holds {str(path.relative_to(self.path))!r} and no commits",
                    where=str(self.path),
                    fix="name an empty or a new directory",
                )


def holds_commits(path: Path) -> bool:
    """Whether a run was ever committed into this directory."""
    directory = path / COMMITS
    return directory.is_dir() and any(CommitName.parse(file.name) for file in directory.iterdir())
