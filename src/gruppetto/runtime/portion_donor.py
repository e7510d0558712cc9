"""A rank that follows gives its portions of cuts away: to whoever rank 0 has told where they lie.

Rank 0 admits guests, sends the others away, and says when a cut is needed no more; here whoever may speak to learners
of this run and knows a cut's name, which is as good as a secret, gets its bytes.
"""

from __future__ import annotations

from typing import Any

from aiohttp import web

from gruppetto.runtime.donation import Cut
from gruppetto.runtime.donor import DonationServer

__all__ = ["PortionServer"]


class PortionServer(DonationServer):
    """Serves portions. The training thread calls :meth:`hold`, and :meth:`drop` when rank 0 says so."""

    address = ""
    """Where it listens; "" before it does, and if it cannot."""

    def __init__(self, *place: Any, **how: Any) -> None:
        super().__init__(*place, **how)
        self._held: dict[str, Cut] = {}
        self._dropped: dict[str, Cut] = {}
        """... while somebody reads them."""

    async def open(self) -> str:
        self.address = await super().open()
        return self.address

    async def close(self) -> None:
        self.address = ""
        await super().close()
        for cut in (*self._held.values(), *self._dropped.values()):
            cut.release()
        self._held, self._dropped = {}, {}

    def hold(self, cut: Cut) -> None:
        """Serve this portion from now on."""
        self._soon(cut)

    def drop(self, name: str) -> None:
        """It is needed no more."""
        self._soon(name)

    def _soon(self, what: Cut | str) -> None:
        loop = self._loop
        try:
            if loop is None:
                raise RuntimeError("closed")
            loop.call_soon_threadsafe(self._do, what)
        except RuntimeError:  # the loop has just ended
            if isinstance(what, Cut):
                what.release()

    def _do(self, what: Cut | str) -> None:
        if isinstance(what, Cut):
            if self._loop is None:
                what.release()
            else:
                self._held[what.manifest.cut] = what
        elif (cut := self._held.pop(what, None)) is not None:
            self._dropped[what] = cut
            self._was_read(what)

    async def _manifest(self, request: web.Request) -> web.StreamResponse:
        return web.Response(status=404, text="ask rank 0 of this learner\n")

    def _cut_of(self, guest: str, name: str) -> Cut | None:
        return self._held.get(name) if guest else None

    def _was_read(self, name: str) -> None:
        if name in self._dropped and not self._readers.get(name):
            self._readers.pop(name, None)
            self._dropped.pop(name).release()
            if not (self._held or self._dropped):
                self.on_idle()

    def _heard(self, guest: str) -> None:
        """Rank 0 knows them."""
