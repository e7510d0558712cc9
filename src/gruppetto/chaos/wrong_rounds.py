"""Syncers whose rounds go wrong, as their docstrings say; :mod:`gruppetto.chaos.canaries` says who must notice."""

from __future__ import annotations

import math
from dataclasses import replace

from gruppetto.protocol.actions import Persist, Publish, RoundClosed, SyncerAction, TakeOuterStep
from gruppetto.protocol.events import OuterStepped, Persisted, PersistFailed, Settle
from gruppetto.protocol.membership import Member
from gruppetto.protocol.messages import Hello
from gruppetto.protocol.quorum import Verdict
from gruppetto.protocol.round import OpenRound, Phase
from gruppetto.protocol.syncer import SyncerCore

__all__ = [
    "AsksOnlyOnce",
    "ComparesDifferences",
    "DoesNotWaitForFolds",
    "ForgetsTheQuorum",
    "ForgetsToVoid",
    "ForgetsWhenTheyAreDue",
    "PublishesBeforeItPersists",
    "SettlesNothing",
    "SkipsARound",
    "StepsOnAnEmptyRound",
    "TakesAFailedPersistForGood",
    "TellsOnlyContributors",
    "WantsMoreThanTheQuorum",
]


class PublishesBeforeItPersists(SyncerCore):
    """The new values are announced while they are still being written."""

    def _on_outer_stepped(self, now: float, event: OuterStepped) -> None:
        super()._on_outer_stepped(now, event)
        persist = next((action for action in self._out if isinstance(action, Persist)), None)
        if persist is not None and event.round == self.round:
            self._on_persisted(now, Persisted(round=persist.round))
            self._out.sort(key=lambda action: isinstance(action, Persist))


class TakesAFailedPersistForGood(SyncerCore):
    """A disk that says no is taken for one that says yes."""

    def _on_persist_failed(self, now: float, event: PersistFailed) -> None:
        self._on_persisted(now, Persisted(round=event.round))


class WantsMoreThanTheQuorum(SyncerCore):
    """``>`` where it must be ``>=``."""

    def _quorum(self, live: int) -> int:
        return super()._quorum(live) + 1


class ForgetsTheQuorum(SyncerCore):
    """One answer is enough."""

    def _closing_verdict(self, now: float, opened: OpenRound, live: list[Member]) -> Verdict:
        verdict = super()._closing_verdict(now, opened, live)
        return Verdict(close=True, why="one is enough") if opened.answers() else verdict


class DoesNotWaitForFolds(SyncerCore):
    """The outer step is taken while a contribution is still being folded in."""

    def _close_if_due(self, now: float) -> None:
        if self._open is not None and self._open.closing is not None:
            self._open.folding.clear()
        super()._close_if_due(now)
        if self.phase is Phase.GRACE and self._open is not None and self._open.closing is not None:
            self._open.folding.clear()
            super()._close_if_due(now)


class ComparesDifferences(SyncerCore):
    """``now - start >= length``: rounding may make it false at the very time that was asked for."""

    def _closing_verdict(self, now: float, opened: OpenRound, live: list[Member]) -> Verdict:
        assert opened.asked_at is not None
        end = opened.asked_at + opened.grace_s
        over = now - opened.asked_at >= opened.grace_s
        return super()._closing_verdict(now if over or now < end else math.nextafter(end, 0.0), opened, live)


class TellsOnlyContributors(SyncerCore):
    """Who missed the round does not get its result."""

    def _on_persisted(self, now: float, event: Persisted) -> None:
        told = self._open.participants() if self._open is not None else None
        super()._on_persisted(now, event)
        for i, action in enumerate(self._out):
            if isinstance(action, Publish) and told is not None:
                self._out[i] = replace(action, to=told)


class SkipsARound(SyncerCore):
    """After a persist that was slow, one round is left out."""

    def _on_persisted(self, now: float, event: Persisted) -> None:
        super()._on_persisted(now, event)
        if self._open is not None and self._open.closed_at is not None and now > self._open.closed_at + 1.0:
            self.round = type(self.round)(self.round + 1)


class AsksOnlyOnce(SyncerCore):
    """A refused contribution is never asked for again."""

    def _ask_again_if_short(self, member: Member) -> None:
        pass


class ForgetsToVoid(SyncerCore):
    """A merge that was thrown away stays in the books."""

    def _on_outer_stepped(self, now: float, event: OuterStepped) -> None:
        opened = self._open
        if opened is None:
            return
        admitted, opened.admitted = opened.admitted, {}
        super()._on_outer_stepped(now, event)
        opened.admitted = admitted


class ForgetsWhenTheyAreDue(SyncerCore):
    """A shard of the syncer counts its own fragments alone, and spreads them as if there were no others."""

    def _open_next_round(self, now: float) -> None:
        self.schedule = self.setting.schedule
        super()._open_next_round(now)


class SettlesNothing(SyncerCore):
    """A finished run is put away with its accounts open."""

    def _on_settle(self, now: float, event: Settle) -> None:
        self._out.append(Persist(round=self.round, fragments=(), state=self.snapshot()))


class StepsOnAnEmptyRound(SyncerCore):
    """A round that is short of answers is closed when somebody comes back."""

    def _on_hello(self, now: float, hello: Hello) -> None:
        super()._on_hello(now, hello)
        opened = self._open
        if self.phase is Phase.GRACE and opened is not None and opened.asked_at is not None and opened.due:
            self.phase = Phase.MERGING
            self._out += self._closed(opened)

    def _closed(self, opened: OpenRound) -> list[SyncerAction]:
        closed = RoundClosed(
            round=opened.round,
            why="somebody came back",
            participants=opened.participants(),
            live=len(self.members.live()),
            grace_spent_s=0.0,
        )
        opened.closed_at = opened.asked_at
        return [closed, TakeOuterStep(round=opened.round, fragments=opened.due)]
