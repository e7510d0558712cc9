"""Does what the plan says, to real processes and real connections, and writes down what it did.

It stands outside: it starts no process of the run, knows them by what the riders say of themselves, and speaks to them
by signals and levers. Proxies and faults live in one event loop on one thread. Whatever it does is undone when the
fault ends, the run has reached its last round, or the block ends, however that comes.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from gruppetto.chaos.real.detours import Detours
from gruppetto.chaos.real.faults import Hands
from gruppetto.chaos.real.kinds import SYNCER
from gruppetto.chaos.real.levers import Places
from gruppetto.chaos.real.machine import SmallDisk
from gruppetto.chaos.real.plan import LiveFault, LivePlan
from gruppetto.chaos.real.reading import to_plan_toml
from gruppetto.errors import RunFailed
from gruppetto.runtime.clock import wall_time_s
from gruppetto.trace.log import TraceWriter

__all__ = ["Conductor"]

BEFORE_TRAINING = ("", "seeding", "starting")
START_S = 10.0


class Conductor:
    """Carries out ``plan`` on the run in ``directory``, between entering and leaving.

    Give :attr:`routes` to the launcher and every status of the syncer to :meth:`saw`.
    """

    def __init__(self, plan: LivePlan, directory: Path) -> None:
        self.plan, self.places = plan, Places(root=directory / "chaos")
        self._state = directory / plan.run.syncer.state
        self._hands = Hands(plan, self.places, self._state)
        self._ports: dict[str, int] = {}
        self._rejected: dict[int, dict[str, int]] = {}
        self._log: TraceWriter | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._begun, self._over = asyncio.Event(), asyncio.Event()
        self._ready = threading.Event()
        self._broken: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="chaos", daemon=True)

    # ── from the launcher's thread ───────────────────────────────────────────────────────────────────────────────

    def __enter__(self) -> Self:
        self.places.make()
        self.places.plan.write_text(to_plan_toml(self.plan), encoding="utf-8")
        self._log = TraceWriter(self.places.log, {"notes": "chaos"})
        self._thread.start()
        if not self._ready.wait(START_S):
            raise RunFailed(f"the conductor did not start within {START_S:g} s")
        self._check()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._in_loop(self._over)
        self._thread.join()
        assert self._log is not None
        for epoch, counts in sorted(self._rejected.items()):
            self._log.note(wall_time_s(), SYNCER, "rejected", epoch=epoch, counts=counts)
        self._log.close()
        if kind is None:
            self._check()

    @contextmanager
    def disk(self) -> Iterator[None]:
        """Around the whole run: a small disk under the syncer's state, if the plan has to fill it."""
        if not any(fault.kind == "disk-full" for fault in self.plan.faults):
            yield
            return
        with SmallDisk.mounted(self._state) as disk:
            self._hands.disk = disk
            yield

    @property
    def routes(self) -> Detours:
        return Detours(self.places, self._ports)

    def saw(self, status: Mapping[str, Any] | None, *, standby_waits: bool = False) -> None:
        """How the run stands. Training begins, and the plan with it; the run is finished, and all faults end.

        Raises :class:`RunFailed` if this conductor has failed, and with it the links of all learners.
        """
        self._check()
        self._hands.standby_waits = standby_waits
        if status is None:
            return
        self._rejected[int(status["epoch"])] = dict(status["rejected"])
        if status["phase"] == "finished":
            self._in_loop(self._over)
        elif status["phase"] not in BEFORE_TRAINING:
            self._in_loop(self._begun)

    def _check(self) -> None:
        if self._broken is not None:
            raise RunFailed(f"the conductor failed: {self._broken!r}") from self._broken

    def _in_loop(self, event: asyncio.Event) -> None:
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(event.set)

    # ── the thread ───────────────────────────────────────────────────────────────────────────────────────────────

    def _run(self) -> None:
        try:
            asyncio.run(self._conduct())
        except BaseException as wrong:  # for the launcher's thread to raise
            self._broken = wrong
        finally:
            self._ready.set()

    async def _conduct(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._ports = self._hands.start()
        self._ready.set()
        await _first(self._begun, self._over)
        if not self._over.is_set():
            began = self._loop.time()
            self._note(SYNCER, "training")
            faults = [
                asyncio.create_task(self._fault(number, fault, began)) for number, fault in enumerate(self.plan.faults)
            ]
            over = asyncio.create_task(self._over.wait())
            pending, failed = {over, *faults}, None
            while not over.done() and failed is None:
                done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                failed = next((task.exception() for task in done if task.exception() is not None), None)
            over.cancel()
            for task in faults:
                task.cancel()
            await asyncio.gather(*faults, return_exceptions=True)
            self._note(SYNCER, "calm")
            if failed is not None:
                raise failed
        await self._hands.stop()

    async def _fault(self, number: int, fault: LiveFault, began: float) -> None:
        await asyncio.sleep(max(0.0, began + fault.at_s - asyncio.get_running_loop().time()))
        lasts_s = None if math.isinf(fault.duration_s) else fault.duration_s
        told = {"number": number, "fault": fault.kind, "lasts_s": lasts_s, "way": fault.way, **fault.dials}
        if not await self._hands.can(fault):
            self._note(fault.who, "missed", **told)
            return
        self._note(fault.who, "began", **told)
        try:
            await self._hands.do(fault)
        finally:
            self._note(fault.who, "ended", **told)

    def _note(self, who: str, what: str, **fields: object) -> None:
        assert self._log is not None
        self._log.note(wall_time_s(), who, what, **fields)
        self._log.flush()


async def _first(*events: asyncio.Event) -> None:
    tasks = [asyncio.create_task(event.wait()) for event in events]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()
