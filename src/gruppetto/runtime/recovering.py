"""The search for a state, rung by rung, on the network thread; whether a find fits, the training thread says.

The link to the syncer may come and go meanwhile: a state is a state whoever is connected.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from gruppetto.errors import GruppettoError, ProtocolError
from gruppetto.protocol.actions import Recover
from gruppetto.protocol.donors import Ladder, Source, covers
from gruppetto.protocol.messages import Donor
from gruppetto.protocol.units import Version
from gruppetto.runtime.clock import Clock
from gruppetto.runtime.joining import DonorBusy, Fetched, Visit
from gruppetto.runtime.wire import RecoveryNote

__all__ = ["Find", "Recovering"]

log = logging.getLogger("gruppetto.learner")

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 5.0
"""Before a busy donor is asked again; doubled each time."""
NEWS_S, LOOK_S = 2.0, 0.02
"""What the syncer has told the donor it tells us too: for so long we wait to hear it, and look so often."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Find:
    """What a rung has brought. A peer's state is here; a checkpoint is still to be read; the syncer has Θ only."""

    source: Source
    donor: str = ""
    state: Fetched | None = None


class Recovering:
    """One search. ``has_own``: there is a checkpoint to fall back on.

    ``published``: the newest versions of which the syncer has told. A state of newer ones is a lie.
    :attr:`find` is set when there is something to be looked at; the training thread calls :meth:`accept` or
    :meth:`decline`, and the search ends, or goes on. ``changed`` is called at every change, from the network thread.
    """

    def __init__(
        self,
        wanted: Recover,
        *,
        has_own: bool,
        visit: Callable[[Donor], Visit],
        identity: dict[str, str],
        published: Callable[[], Sequence[Version]],
        clock: Clock,
        changed: Callable[[], None],
    ) -> None:
        self.find: Find | None = None
        self._wanted, self._visit, self._identity = wanted, visit, identity
        self._published = published
        self._clock, self._changed = clock, changed
        self._began = clock.now()
        self._ladder = Ladder(wanted.donors, checkpoint=has_own)
        self._visiting: Visit | None = None
        self._moved_bytes = 0
        self._failures: list[str] = []
        self._verdict: asyncio.Future[str] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def waiting_for(self) -> str:
        """In words."""
        rung, visit = self._ladder.rung, self._visiting
        if rung.donor is None:
            return "a state to begin from"
        if visit is None or not visit.total_bytes:
            return f"the state of {rung.donor.learner}"
        return f"the state of {rung.donor.learner}, {visit.came_bytes >> 20} of {visit.total_bytes >> 20} MiB are here"

    async def search(self) -> None:
        """Down the ladder, until a find is accepted."""
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        while True:
            find = await self._look()
            if find is None:
                continue
            self._verdict = self._loop.create_future()
            self.find = find
            self._changed()
            why = await self._verdict
            if not why or find.source is Source.SYNCER:
                return
            self._fell(find.donor or find.source.value, why)
            self._ladder.failed()

    async def _look(self) -> Find | None:
        """What the present rung has; None when it has nothing, and the next one is up."""
        rung = self._ladder.rung
        if rung.donor is None:
            return Find(source=rung.source)
        if rung.again:
            await asyncio.sleep(min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** (rung.again - 1)))
        self._changed()
        try:
            self._visiting = self._visit(rung.donor)
        except GruppettoError as wrong:  # our own papers have gone
            self._fell(rung.donor.learner, str(wrong))
            self._ladder.failed()
            return None
        try:
            state = await self._visiting.fetch(self._wanted.versions, **self._identity)
            await self._hear_of(state.manifest.versions)
        except DonorBusy as wrong:
            log.log(logging.DEBUG if rung.again else logging.INFO, "%s is busy (%s)", rung.donor.learner, wrong)
            self._ladder.busy()
            return None
        except GruppettoError as wrong:
            self._fell(rung.donor.learner, str(wrong))
            self._ladder.failed()
            return None
        except Exception as wrong:  # no memory for it, or our mistake: this rung has not held, the next one may
            self._fell(rung.donor.learner, f"{type(wrong).__name__}: {wrong}")
            self._ladder.failed()
            return None
        finally:
            self._moved_bytes += self._visiting.came_bytes
        return Find(source=Source.PEER, donor=rung.donor.learner, state=state)

    async def _hear_of(self, versions: Sequence[Version]) -> None:
        """Until the syncer has told of these. Raises :class:`ProtocolError` if it does not."""
        until = self._clock.now() + NEWS_S
        while not covers(self._published(), versions):
            if self._clock.now() >= until:
                raise ProtocolError("its weights are newer than any that the syncer has told of")
            await asyncio.sleep(LOOK_S)

    def _fell(self, who: str, why: str) -> None:
        self._failures.append(f"{who}: {why}")
        log.warning("no state from %s: %s", who, why)

    # ── from the training thread ─────────────────────────────────────────────────────────────────────────────────

    def accept(self) -> RecoveryNote:
        """The find is in use; what there is to tell of the search."""
        find = self.find
        assert find is not None
        self._decide("")
        seconds = self._clock.now() - self._began
        note = RecoveryNote(
            source=find.source.value,
            donor=find.donor,
            seconds=seconds,
            payload_bytes=self._moved_bytes,
            text="; ".join(self._failures)[:1000],
        )
        where = {Source.PEER: f"the state of {find.donor}", Source.CHECKPOINT: "its own last checkpoint"}
        log.info("began from %s, found after %.1f s", where.get(find.source, "the syncer's weights alone"), seconds)
        return note

    def decline(self, why: str | GruppettoError) -> None:
        """The find does not fit."""
        self._decide(str(why) or "it does not fit")

    def give_up(self) -> bool:
        """No state is needed any more, wherever the search is; False if it has not begun yet."""
        if self._loop is None or self._task is None:
            return False
        with suppress(RuntimeError):  # the loop has just ended
            self._loop.call_soon_threadsafe(self._task.cancel)
        return True

    def _decide(self, verdict: str) -> None:
        future, self.find = self._verdict, None
        assert future is not None and self._loop is not None
        self._loop.call_soon_threadsafe(lambda: None if future.done() else future.set_result(verdict))
