"""The syncer's disk: commits that are there whole or not at all, what can become bad of them, and the fence."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gruppetto.chaos.truth import Content
from gruppetto.protocol.recovery import unseen_rounds
from gruppetto.protocol.state import OlderValue, SyncerState
from gruppetto.protocol.units import Epoch, Fragment, Round

if TYPE_CHECKING:
    from gruppetto.chaos.cut import Cut

__all__ = ["Commit", "Disk", "Legacy"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """What a restart begins from."""

    epoch: Epoch
    """Whose it is."""
    state: SyncerState
    contents: tuple[Content, ...]
    """Θ, by fragment."""

    @property
    def until(self) -> Round:
        """The last round that may be published under it."""
        return Round(self.state.round + self.state.reserve)


@dataclass(frozen=True, slots=True, kw_only=True)
class Legacy:
    """What a new life is left with."""

    epoch: Epoch
    commit: Commit | None
    unseen: int = 0
    damaged: tuple[OlderValue, ...] = ()


class Disk:
    """Survives every crash. A commit that is under way when the syncer dies never happened; one that is under way when
    another life takes over may still land, under the name of the old life, where nobody looks for it."""

    def __init__(self, sync_period: int, most_reserve: int) -> None:
        self.commits: list[Commit] = []
        """Those that count, oldest first; the last one is what a new life begins from."""
        self.epoch = Epoch(0)
        """The newest that was claimed."""
        self.failing_until = 0.0
        self.lost_commits = 0
        """So many of the newest commits cannot be read at the next start; 2: down to the newest snapshot."""
        self.bad_copies = 0
        """So many of the newest values of a fragment cannot be read at the next start."""
        self.newest_cut: Cut | None = None
        """The newest checkpoint of the whole run that is complete."""
        self._sync_period, self._most_reserve = sync_period, most_reserve
        self._until: list[Round] = []
        """Of commits that cannot be read any more, or landed late: the last round that may be published under each. The
        newest one that can be read says it for all before it."""

    @property
    def commit(self) -> Commit | None:
        """The newest."""
        return self.commits[-1] if self.commits else None

    def claim(self, *, alone: bool) -> Legacy:
        """A new life begins; no other will ever have its epoch. ``alone``: whoever was here before is dead."""
        before, self.epoch = self.epoch, Epoch(self.epoch + 1)
        self._lose_commits()
        newest = self.commit
        if newest is None:
            return Legacy(epoch=self.epoch, commit=None)
        is_last_word = alone and newest.epoch == before
        in_flight = None if is_last_word else self._most_reserve
        unseen = unseen_rounds(newest.state.round, until=[newest.until, *self._until], in_flight=in_flight)
        contents = self._readable(newest)
        damaged = tuple(
            OlderValue(fragment=c.fragment, version=c.version, merged=c.merged)
            for c, version in zip(contents, newest.state.versions, strict=True)
            if c.version != version
        )
        # Adopted at once: what a life of before still writes is nobody's from now on.
        state, self._until = replace(newest.state, reserve=unseen), []
        self.commits.append(Commit(epoch=self.epoch, state=state, contents=contents))
        return Legacy(epoch=self.epoch, commit=self.commit, unseen=unseen, damaged=damaged)

    def go_back(self, state: SyncerState, contents: tuple[Content, ...]) -> None:
        """A run is resumed here: what was durable is put aside, and the fence stays."""
        self.lost_commits = self.bad_copies = 0
        self.commits, self._until = [], []
        self.commits.append(Commit(epoch=self.epoch, state=state, contents=contents))

    def claim_for_nobody(self) -> Epoch:
        """An epoch between all lives so far and those to come."""
        self.epoch = Epoch(self.epoch + 1)
        return self.epoch

    def has_authority(self, epoch: Epoch) -> bool:
        """The fence: nobody has claimed a newer epoch."""
        return epoch == self.epoch

    def write(self, now: float, commit: Commit) -> bool:
        """The end of a commit; False if the disk refuses it."""
        if now < self.failing_until:
            return False
        if commit.epoch == self.epoch:
            self.commits.append(commit)
        else:
            self._until.append(commit.until)
        return True

    def _lose_commits(self) -> None:
        """The commit before is kept, and a snapshot that is at least H rounds older than what came after it."""
        lost, self.lost_commits = self.lost_commits, 0
        if lost and len(self.commits) > 1:
            newest = self.commits.pop()
            self._until.append(newest.until)
            while (
                lost > 1
                and len(self.commits) > 1
                and self.commits[-1].state.round > newest.state.round - self._sync_period
            ):
                self._until.append(self.commits.pop().until)

    def _readable(self, newest: Commit) -> tuple[Content, ...]:
        """The contents of a commit, one of them replaced by an older one if its newest copies are bad."""
        bad, self.bad_copies = self.bad_copies, 0
        contents = list(newest.contents)
        p = Fragment(max(contents, key=lambda c: (c.version, c.fragment)).fragment)
        while bad and (older := self._before(contents[p])) is not None:
            contents[p], bad = older, bad - 1
        return tuple(contents)

    def _before(self, content: Content) -> Content | None:
        """The copy before this one."""
        older = [
            c.contents[content.fragment] for c in self.commits if c.contents[content.fragment].version < content.version
        ]
        return max(older, key=lambda c: c.version, default=None)
