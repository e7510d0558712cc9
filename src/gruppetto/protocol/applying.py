"""What comes to a learner: which versions it pulls, and what becomes of its own work when it applies them."""

from __future__ import annotations

from gruppetto.protocol.actions import Apply, Pull
from gruppetto.protocol.events import Arrived, Recovered, Taken
from gruppetto.protocol.learner_standing import LearnerStanding, Moment
from gruppetto.protocol.maker import maker
from gruppetto.protocol.messages import Announcement, Applied, ApplyMode
from gruppetto.protocol.units import NEVER, Fragment, Round, Version

__all__ = ["Applying"]

new_applied, new_apply, new_pull = maker(Applied), maker(Apply), maker(Pull)
OVERWRITE, CARRY = ApplyMode.OVERWRITE, ApplyMode.CARRY
"""Looked at at every step."""
NEVER_SENT: tuple[int, Moment | None] = (-1, None)


class Applying(LearnerStanding):
    """From the news of a version to its place in the model, and to the rest that an encoding has left."""

    def _on_announcement(self, now: float, news: Announcement) -> None:
        if news.epoch != self.epoch:
            return
        self.newest_round = max(self.newest_round, news.round)
        self.finished = self.finished or news.finished
        for fragment, version in news.versions:
            self._want(fragment, version)
        self._settle_rests()

    def _on_arrived(self, now: float, event: Arrived) -> None:
        if not 0 <= event.fragment < len(self.fragments):
            return
        fragment, version = event.fragment, event.version
        if version > self._arrived.get(fragment, NEVER) and version > self.fragments[fragment].version:
            self._arrived[fragment] = version
        if self._wanted.get(fragment, NEVER) <= version:
            self._wanted.pop(fragment, None)
        self._settle_rests()

    def _on_recovered(self, now: float, event: Recovered) -> None:
        if not self.recovering:
            return
        self.recovering = False
        needed, self._held_back = self._held_back, {}
        for p, version in enumerate(event.versions):
            # What the run has gone beyond is no base to begin from.
            if version >= needed.get(Fragment(p), NEVER):
                self._on_arrived(now, Arrived(fragment=Fragment(p), version=version))
        if self.linked:
            for fragment in sorted(needed):
                self._want(fragment, needed[fragment])

    def _on_taken(self, now: float, event: Taken) -> None:
        if event.epoch == self.epoch and 0 <= event.fragment < len(self.fragments):
            self._rests.took(event)
            self._settle_rests()

    # ── pulled, applied ──────────────────────────────────────────────────────────────────────────────────────────

    def _want(self, fragment: Fragment, version: Version) -> None:
        """Pull a version unless it, or a newer one, is held, here, or already on its way."""
        if not 0 <= fragment < len(self.fragments):
            return
        if self.recovering:
            self._held_back[fragment] = max(version, self._held_back.get(fragment, NEVER))
            return
        held, here = self.fragments[fragment].version, self._arrived.get(fragment, NEVER)
        if version > held and version > here and version > self._wanted.get(fragment, NEVER):
            self._wanted[fragment] = version
            self._out.append(new_pull(fragment=fragment, version=version))

    def _apply_up_to(self, round: Round) -> tuple[Applied, ...]:
        """Apply what has arrived, but for what is newer than ``round``."""
        if not self._arrived:
            return ()
        return tuple([self._apply_arrived(p) for p in self._due(round)])

    def _apply_arrived(self, fragment: Fragment) -> Applied:
        version, state = self._arrived.pop(fragment), self.fragments[fragment]
        sent_round, then = self._sent.pop(fragment, NEVER_SENT)
        mode = self._apply
        if state.version == NEVER or (mode is CARRY and (then is None or sent_round != version)):
            mode = OVERWRITE  # nothing of ours is in flight
        if fragment in self._of_another_life:
            mode = OVERWRITE  # a new life begins at its bases, or at what is newer
            self._of_another_life.discard(fragment)
        kept_steps, kept_tokens = 0, 0
        if mode is CARRY and then is not None:
            kept_steps, kept_tokens = self.steps - then.steps, self.tokens - then.tokens
        state.version = version
        state.from_steps, state.from_tokens = self.steps - kept_steps, self.tokens - kept_tokens
        self._snapshots.discard(fragment)
        self._out.append(new_apply(fragment=fragment, version=version, mode=mode, blend_alpha=self._alpha))
        return new_applied(fragment=fragment, version=version, at_tokens=self.tokens, kept_tokens=kept_tokens)

    # ── what is left of contributions ────────────────────────────────────────────────────────────────────────────

    def _settle_rests(self, versions: tuple[Version, ...] = ()) -> None:
        """Keep what is left of contributions that have counted; ``versions`` are published by a Welcome's word."""
        if self._rests.empty:
            return
        for p in self._rests.open():
            newest = versions[p] if versions else self._newest_heard_of(p)
            keep = self._rests.settle(p, newest=newest, closed=self.newest_round, epoch=self.epoch)
            if keep is not None:
                self._has_rests = True
                self._out.append(keep)

    def _newest_heard_of(self, fragment: Fragment) -> Version:
        """The newest version of which it knows that it is published."""
        here = max(self.fragments[fragment].version, self._arrived.get(fragment, NEVER))
        return max(here, self._wanted.get(fragment, NEVER), self._held_back.get(fragment, NEVER))
