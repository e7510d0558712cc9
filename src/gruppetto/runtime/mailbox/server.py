"""The syncer's end of a mailbox: what :mod:`gruppetto.runtime.http_server` is over HTTP, at the same service and desk.

One listing finds everything: new boxes, letters, and what lies unread. Between two of them there is a pause that grows
while nothing comes (:mod:`.rhythm`). While the store is away nobody is heard, and nobody is taken for dead.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable

from gruppetto.errors import AddressError, ConnectionLost, StateError, SteppedDown
from gruppetto.runtime.clock import Clock
from gruppetto.runtime.complaints import Complaints
from gruppetto.runtime.desk import Desk
from gruppetto.runtime.mailbox.box import Box
from gruppetto.runtime.mailbox.bucket import MAX_LISTED, Bucket, Found
from gruppetto.runtime.mailbox.endurance import Endurance
from gruppetto.runtime.mailbox.letters import box_name, parse_name, term_folder
from gruppetto.runtime.mailbox.rhythm import REST, Rhythm
from gruppetto.runtime.mailbox.shelf import Shelf
from gruppetto.runtime.mailbox.tenure import LOOKS_A_LEASE, Tenure
from gruppetto.runtime.service import SyncerService

__all__ = ["MailServer"]

_log = logging.getLogger("gruppetto.syncer")

MAX_BOXES = 4096
LETTERS_AT_A_TIME = 8
"""Each may have the length of a HelloFrame."""
SWEEP_S = 600.0
"""From one look for what older terms have left to the next."""
FAREWELL_S = 2.0
"""How long letters that are being written may take when the syncer stops."""
LOOKS_A_STALL = 6.0
"""Times a pause is shorter than the time after which a silent learner is dead, at least."""


class MailServer:
    """:meth:`claim`, then :meth:`run` beside everything else, then :meth:`close`. ``stall_s``: as over HTTP."""

    def __init__(
        self,
        bucket: Bucket,
        service: SyncerService,
        desk: Desk,
        *,
        poll_s: float,
        stall_s: float,
        lease_s: float,
        clock: Clock,
    ) -> None:
        self.bucket, self._service, self._desk = bucket, service, desk
        self._poll_s, self._stall_s, self._lease_s = poll_s, stall_s, lease_s
        self._tenure = Tenure(bucket, run_id=service.run_id, epoch=service.epoch, lease_s=lease_s, clock=clock)
        self._endurance, self._complaints = Endurance(_log), Complaints(_log)
        self._rhythm = Rhythm(poll_s, min(REST * poll_s, stall_s / LOOKS_A_STALL))
        self._boxes: dict[str, tuple[Box, asyncio.Task[None]]] = {}
        self._left: dict[str, float] = {}
        """Boxes that nobody uses, and since when; what still lies in them is deleted after a while."""
        self._used: list[str] = []
        self._shelf: Shelf | None = None
        self._reading = asyncio.Semaphore(LETTERS_AT_A_TIME)

    async def claim(self, stopping: asyncio.Event) -> bool:
        """Wait until it is this syncer that serves; False if it is to stop first."""
        if not await self._tenure.claim(stopping):
            return False
        term = self._tenure.term
        self._shelf = Shelf(self.bucket, self._service, self._desk, self._endurance, term=term)
        _log.info("serving through %s, term %d", self.bucket.where, term)
        return True

    async def run(self) -> None:
        """Until it is cancelled, or another syncer has the seat: then the service steps down."""
        tasks = [asyncio.create_task(loop()) for loop in (self._renew, self._look, self._sweep)]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        except SteppedDown as error:
            self._service.step_down(error)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def close(self) -> None:
        """The connections are closed: see their last letters go, and leave the seat."""
        tasks = [task for _, task in self._boxes.values()]
        if tasks:
            await asyncio.wait(tasks, timeout=FAREWELL_S)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        _log.info("asked of %s: %s", self.bucket.where, self.bucket.account())
        if isinstance(self._service.failure, SteppedDown):
            return
        try:
            async with asyncio.timeout(FAREWELL_S):
                await self._tenure.end(begun=self._begun, over=self._service.over)
                if self._service.over:
                    await self._clear(term_folder(self._tenure.term))
        except (TimeoutError, ConnectionLost, AddressError) as wrong:
            _log.info("the store does not hear that the syncer stops (%s)", wrong)

    @property
    def _begun(self) -> bool:
        engine = self._service.engine
        return engine is not None and engine.parameters.seeded

    # ── loops ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _renew(self) -> None:
        while True:
            try:
                await self._tenure.renew(begun=self._begun, over=self._service.over)
            except (ConnectionLost, AddressError) as wrong:
                self._endurance.missed(wrong)
            except StateError as wrong:
                raise SteppedDown(str(wrong)) from wrong
            await asyncio.sleep(self._lease_s / LOOKS_A_LEASE)

    async def _look(self) -> None:
        folder = f"{term_folder(self._tenure.term)}/box"
        while True:
            try:
                if self._used:
                    names, self._used = self._used, []
                    await self.bucket.delete(names)
                found = await self.bucket.listing(folder)
            except (ConnectionLost, AddressError) as wrong:
                self._endurance.missed(wrong)
                for box, _ in self._boxes.values():
                    box.excuse()
            else:
                self._endurance.answered()
                if len(found) >= MAX_LISTED:
                    self._complaints.note(("crowd",), f"{self.bucket.where}: {MAX_LISTED} objects and more lie there")
                if self._sort(found):
                    self._rhythm.news()
            await asyncio.sleep(self._rhythm.pause_s())

    async def _sweep(self) -> None:
        """Older terms have ended, whatever lies there; whoever writes there writes to nobody."""
        while True:
            try:
                for folder in await self.bucket.folders():
                    if folder.isascii() and folder.isdigit() and len(folder) == 8 and int(folder) < self._tenure.term:
                        await self._clear(folder)
            except (ConnectionLost, AddressError) as wrong:
                self._endurance.missed(wrong)
            await asyncio.sleep(SWEEP_S)

    async def _clear(self, folder: str) -> None:
        while found := await self.bucket.listing(folder):
            await self.bucket.delete([one.name for one in found])

    # ── inside ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _sort(self, found: list[Found]) -> bool:
        """What a listing says of each box; whether there is news."""
        up: dict[str, dict[int, int]] = defaultdict(dict)
        down: dict[str, list[int]] = defaultdict(list)
        bodies: dict[str, set[int]] = defaultdict(set)
        for one in found:
            name = parse_name(one.name, self._tenure.term)
            if name is None:
                self._complaints.note(("stray",), f"{self.bucket.where}/{one.name[:200]} is nothing of a mailbox")
            elif name.way == "up":
                up[name.box][name.number] = one.num_bytes
            elif name.way == "down":
                down[name.box].append(name.number)
            else:
                bodies[name.box].add(name.number)
        listed, news = up.keys() | down.keys() | bodies.keys(), False
        for box in sorted(listed - self._boxes.keys() - self._left.keys()):
            if 0 in up[box] and len(self._boxes) < MAX_BOXES:
                self._open(box)
            else:
                self._left[box] = asyncio.get_running_loop().time()
        for box, (seen_by, _) in self._boxes.items():
            news |= seen_by.seen(up[box], len(down[box]), bodies[box])
        self._forget(listed, up, down, bodies)
        return news

    def _open(self, name: str) -> None:
        assert self._shelf is not None
        box = Box(
            name,
            self._tenure.term,
            bucket=self.bucket,
            service=self._service,
            desk=self._desk,
            shelf=self._shelf,
            endurance=self._endurance,
            complaints=self._complaints,
            poll_s=self._poll_s,
            stall_s=self._stall_s,
            reading=self._reading,
            used=lambda name: self._used.append(name),  # the list is another one now and then
        )
        task = asyncio.create_task(box.run())
        self._boxes[name] = box, task
        task.add_done_callback(self._closed(name))

    def _closed(self, name: str) -> Callable[[asyncio.Task[None]], None]:
        def note(task: asyncio.Task[None]) -> None:
            self._boxes.pop(name, None)
            self._left[name] = task.get_loop().time()
            if not task.cancelled() and (wrong := task.exception()) is not None:
                _log.error("box %s ended by a defect", name, exc_info=wrong)

        return note

    def _forget(
        self, listed: set[str], up: dict[str, dict[int, int]], down: dict[str, list[int]], bodies: dict[str, set[int]]
    ) -> None:
        """Of boxes that nobody uses: delete what is left after ``stall_s``, in which a last letter may be read."""
        now = asyncio.get_running_loop().time()
        for box, since in list(self._left.items()):
            if now < since + self._stall_s:
                continue
            if box not in listed:
                del self._left[box]
                continue
            for way, numbers in (("up", up[box]), ("down", down[box]), ("body", bodies[box])):
                self._used += [box_name(self._tenure.term, box, way, number) for number in numbers]
