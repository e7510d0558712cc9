"""The conductor's hands: one fault after the other, done to real processes and connections, and undone."""

from __future__ import annotations

import asyncio
import json
import math
import random
import signal
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from gruppetto.chaos.real.kinds import LINK_KINDS, SYNCER
from gruppetto.chaos.real.levers import Lever, Life, Places, read_lines
from gruppetto.chaos.real.link import combined
from gruppetto.chaos.real.machine import SmallDisk, is_alive, send
from gruppetto.chaos.real.plan import LiveFault, LivePlan
from gruppetto.chaos.real.proxy import Proxy
from gruppetto.errors import AddressError
from gruppetto.runtime.address import SyncerAddress
from gruppetto.runtime.clock import wall_time_s

__all__ = ["Hands"]

STANDBY_PATIENCE_S = 60.0
"""How long a takeover waits for a standby that starts; a busy machine takes its time to start a Python."""
TURN_S = 0.2
"""A slowed process is stopped and goes on once in so long."""


class Hands:
    """Holds the proxies, the levers and the disk of one run. Everything but the constructor is for the loop."""

    def __init__(self, plan: LivePlan, places: Places, state: Path) -> None:
        self._places, self._state = places, state
        self._seed = plan.chaos.seed
        self._learners = [entry.name for entry in plan.run.learners]
        self._proxies: dict[str, Proxy] = {}
        self._active: dict[str, list[LiveFault]] = {name: [] for name in (SYNCER, *self._learners)}
        self._clock_at: dict[str, float] = {}
        self._holding: Counter[int] = Counter()
        """How many faults hold a process stopped."""
        self._levers: dict[str, Lever] = {}
        self._has_standby = plan.run.launch.standby
        self.standby_waits = False
        """Somebody would take over from the syncer. Said from outside, at any moment."""
        self.disk: SmallDisk | None = None

    def start(self) -> dict[str, int]:
        """Open a link for each learner; its port by name."""
        for name in self._learners:
            proxy = Proxy(self._upstream, random.Random(f"{self._seed}:{name}"))
            proxy.start()
            self._proxies[name] = proxy
        return {name: proxy.port for name, proxy in self._proxies.items()}

    async def stop(self) -> None:
        """Close the links when the learners have left: the last weights still have to get to them."""
        while any((life := self.life(name)) is not None and is_alive(life.pid) for name in self._learners):
            await asyncio.sleep(TURN_S)
        for proxy in self._proxies.values():
            await proxy.stop()

    async def can(self, fault: LiveFault) -> bool:
        """There is somebody to do it to. A takeover waits for the standby that is to take over, for a while."""
        if fault.kind == "takeover":
            with suppress(TimeoutError):
                async with asyncio.timeout(STANDBY_PATIENCE_S):
                    while not self.standby_waits:
                        await asyncio.sleep(TURN_S)
            if not self.standby_waits:
                return False
            self.standby_waits = False  # until it is said anew, by somebody who knows of this death
        if fault.kind in ("kill", "stop", "takeover"):
            life = self.life(fault.who)
            return life is not None and is_alive(life.pid)
        return True

    async def do(self, fault: LiveFault) -> None:
        """From beginning to end; undoes it also when it is cancelled. Faults may overlap in any way."""
        with self._active_on(self._victims(fault), fault):
            match fault.kind:
                case "kill" | "takeover":
                    life = self.life(fault.who)
                    assert life is not None
                    send(life.pid, signal.SIGKILL)
                case "stop":
                    with self._frozen(fault.who):
                        await _lasting(fault)
                case "slow":
                    await self._slow(fault)
                case "disk-full":
                    assert self.disk is not None
                    try:
                        await asyncio.to_thread(self.disk.fill)
                        await _lasting(fault)
                    finally:
                        self.disk.free()
                case "cut":
                    await asyncio.gather(*(self._proxies[name].cut() for name in self._victims(fault)))
                    await _lasting(fault)
                case "half-open":
                    assert fault.way is not None
                    for name in self._victims(fault):
                        self._proxies[name].swallow(fault.way)
                case _:
                    await _lasting(fault)

    def _victims(self, fault: LiveFault) -> list[str]:
        return self._learners if fault.kind in LINK_KINDS and fault.who == SYNCER else [fault.who]

    @contextmanager
    def _active_on(self, names: Sequence[str], fault: LiveFault) -> Iterator[None]:
        """Links and levers stand as all that is active together says, until the end of the block."""
        if fault.kind == "clock":
            self._clock_at[fault.who] = wall_time_s()
        for name in names:
            self._active[name].append(fault)
            self._apply(name)
        try:
            yield
        finally:
            for name in names:
                self._active[name].remove(fault)
                self._apply(name)

    def _apply(self, name: str) -> None:
        active = self._active[name]
        if name in self._proxies:
            proxy = self._proxies[name]
            proxy.refusing = any(fault.kind == "cut" and fault.duration_s > 0 for fault in active)
            proxy.set(up=combined(active, "up"), down=combined(active, "down"))
        lever = Lever(
            nan=any(fault.kind == "nan" for fault in active),
            factor=math.prod(fault.dials["factor"] for fault in active if fault.kind == "scale"),
            clock_by_s=sum(fault.dials["by_s"] for fault in active if fault.kind == "clock"),
            clock_at=self._clock_at.get(name, 0.0),
        )
        if lever != self._levers.get(name, Lever()):
            self._levers[name] = lever
            lever.write(self._places.lever(name))

    @contextmanager
    def _frozen(self, name: str) -> Iterator[None]:
        """The present process of that name is stopped, and goes on when nobody else holds it any more."""
        life = self.life(name)
        pid = -1 if life is None else life.pid
        self._holding[pid] += 1
        send(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            self._holding[pid] -= 1
            if not self._holding[pid]:
                send(pid, signal.SIGCONT)

    async def _slow(self, fault: LiveFault) -> None:
        share = fault.dials["share"]
        with suppress(TimeoutError):
            async with asyncio.timeout(None if math.isinf(fault.duration_s) else fault.duration_s):
                while True:
                    with self._frozen(fault.who):
                        await asyncio.sleep((1 - share) * TURN_S)
                    await asyncio.sleep(share * TURN_S)

    def life(self, name: str) -> Life | None:
        """The newest process of that name; of a syncer and its standby the one in charge."""
        lives = [Life(**said) for said in read_lines(self._places.lives) if said.get("who") == name]
        if name == SYNCER and self._has_standby and (endpoint := self._endpoint()) is not None:
            lives = [life for life in lives if life.pid == endpoint[1]]
        return lives[-1] if lives else None

    def _upstream(self) -> tuple[str, int] | None:
        endpoint = self._endpoint()
        return None if endpoint is None else (endpoint[0].host, endpoint[0].port)

    def _endpoint(self) -> tuple[SyncerAddress, int] | None:
        """Where the syncer in charge says that it listens, and its process id."""
        try:
            said = json.loads((self._state / "endpoint.json").read_bytes())
            return SyncerAddress.parse(said["url"]), int(said["pid"])
        except (OSError, ValueError, KeyError, TypeError, AddressError):
            return None


async def _lasting(fault: LiveFault) -> None:
    if math.isinf(fault.duration_s):
        await asyncio.Event().wait()
    await asyncio.sleep(fault.duration_s)
