"""The search for a state to begin from, as a task of the client's loop (:mod:`~gruppetto.runtime.recovering`)."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable

from gruppetto.errors import ConnectionLost, GruppettoError
from gruppetto.protocol.actions import Recover
from gruppetto.protocol.learner import LearnerCore
from gruppetto.protocol.messages import Donor
from gruppetto.protocol.units import Version
from gruppetto.runtime.clock import Clock
from gruppetto.runtime.companions import Companions, Errand
from gruppetto.runtime.donation import Manifest
from gruppetto.runtime.joining import Visit
from gruppetto.runtime.recovering import Recovering
from gruppetto.runtime.security.fresh import PeerTls
from gruppetto.runtime.spans import Needs, everything
from gruppetto.runtime.wire import WelcomeFrame

__all__ = ["Seeking"]

log = logging.getLogger("gruppetto.learner")


class Seeking:
    """At most one search in the life of a process.

    ``has_own``: it has saved a state itself, should nobody give one. ``fits``: raises for a state that is of no use
    here. ``peers``: what is shown to a donor, and asked of it. ``fail``: told when the search cannot go on.
    ``needs``: what of a peer's state is wanted here; ``companions``: this learner's other ranks, which fetch theirs.
    """

    def __init__(
        self,
        core: LearnerCore,
        news: threading.Condition,
        clock: Clock,
        *,
        has_own: bool,
        token: str | None,
        fits: Callable[[Manifest], None],
        peers: PeerTls | None,
        fail: Callable[[GruppettoError], None],
        needs: Callable[[Manifest], Needs] = everything,
        companions: Companions | None = None,
    ) -> None:
        self._core, self._news, self._clock = core, news, clock
        self._has_own, self._token, self._fits, self._peers, self._fail = has_own, token, fits, peers, fail
        self._needs, self._companions = needs, companions
        self.recovering: Recovering | None = None
        """None until it begins."""
        self._search: asyncio.Task[None] | None = None

    def begin(self, wanted: Recover, frame: WelcomeFrame, *, stall_s: float) -> None:
        """In the loop of this thread: the Welcome in ``frame`` has brought it about."""
        assert self.recovering is None
        core = self._core

        def visit(donor: Donor) -> Visit:
            peers = self._peers
            return Visit(
                donor.address,
                learner=core.learner,
                session=core.session,
                token=self._token,
                stall_s=stall_s,
                fits=self._fits,
                tls=None if peers is None else peers.as_guest_of(donor.learner),
                needs=self._needs,
                others=None if self._companions is None else Errand(self._companions, donor),
            )

        def published() -> tuple[Version, ...]:
            with self._news:
                return core.published

        self.recovering = Recovering(
            wanted,
            has_own=self._has_own,
            visit=visit,
            identity={
                "run_id": frame.welcome.run_id,
                "layout_hash": core.layout_hash,
                "fragmentation_hash": frame.fragmentation_hash,
            },
            published=published,
            clock=self._clock,
            changed=self._tell,
        )
        self._search = asyncio.create_task(self._recovering_to_its_end(self.recovering))

    async def stop(self) -> None:
        """Wherever it is."""
        if self._search is not None:
            self._search.cancel()
            await asyncio.gather(self._search, return_exceptions=True)

    async def _recovering_to_its_end(self, recovering: Recovering) -> None:
        try:
            await recovering.search()
        except Exception as wrong:  # our mistake: the learner would wait for ever
            log.exception("the search for a state ended by a defect")
            self._fail(ConnectionLost(f"the search for a state ended by a defect ({type(wrong).__name__}: {wrong})"))

    def _tell(self) -> None:
        with self._news:
            self._news.notify_all()
