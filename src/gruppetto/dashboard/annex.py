"""The page at a syncer, on its own port."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from aiohttp import web

from gruppetto.dashboard.book import Book
from gruppetto.dashboard.desk import Desk
from gruppetto.dashboard.door import Door
from gruppetto.dashboard.metrics import exposition
from gruppetto.dashboard.pages import Pages
from gruppetto.dashboard.tap import Tap, begin_from
from gruppetto.runtime.clock import Clock, MonotonicClock
from gruppetto.runtime.security.porter import Porter
from gruppetto.runtime.service import SyncerService
from gruppetto.trace.log import TraceWriter

__all__ = ["annex"]


def annex(app: web.Application, service: SyncerService, porter: Porter | None = None) -> None:
    """Let ``app``, the syncer's, answer for the page and for /metrics too, with the syncer's own token, or for whom its
    ``porter`` knows.

    Nothing is read and nothing is kept before somebody looks. The page reads the trace that the syncer records; if it
    records none, the page begins when it is first looked at.
    """
    clock, trace = MonotonicClock(), service.trace
    at_hand = _Hand(service, trace, clock)
    desk = Desk(at_hand.book, clock, before=at_hand.reach, gentle=True)
    door = Door(service.setting.token, porter=porter)
    metrics = lambda: exposition(service.status())  # noqa: E731
    shard = "" if service.setting.shard.is_whole else str(service.setting.shard)
    Pages(desk, door=door, metrics=metrics, shard=shard, shards=lambda: _others(service)).join(app)
    app.on_cleanup.append(at_hand.let_go)


def _others(service: SyncerService) -> dict[str, str]:
    """The syncers that serve the run beside this one, where they are known."""
    where, own = service.directory.map(), service.setting.shard
    return {f"shard {k}/{own.of}": url for k, url in sorted(where.addresses.items()) if k != own.number}


class _Hand:
    """Gets hold of what the syncer records."""

    def __init__(self, service: SyncerService, trace: TraceWriter, clock: Clock) -> None:
        self._service, self._trace = service, trace
        self._tap = Tap() if trace.path is None else None
        self._tapped = False
        self.book = Book(trace.path, clock, always_live=True, source=self._tap)
        self.reach: Callable[[], None] = trace.flush if self._tap is None else self._open_tap

    def _open_tap(self) -> None:
        engine = self._service.engine
        if self._tap is None or self._tapped or engine is None:
            return
        self._tapped = True
        setting = msgspec.to_builtins(engine.protocol)
        begin_from(self.book.picture, self._service.status(), setting, engine.layout.numel)
        self._trace.tap = self._tap.put

    async def let_go(self, app: web.Application) -> None:
        self._trace.tap = None
