"""A directory of certificates, a syncer that asks for them, and hand-made peers who come with whatever papers."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from tests.steady import LoopClock, run

from gruppetto.chaos.handmade import LAYOUT, Peer, answer_of
from gruppetto.protocol import ProtocolSetting
from gruppetto.runtime.clock import wall_time_s
from gruppetto.runtime.security.identity import Identity, Role
from gruppetto.runtime.security.issuing import Authority
from gruppetto.runtime.security.places import Papers, papers_of
from gruppetto.runtime.serving import serve
from gruppetto.runtime.setting import SyncerSetting

__all__ = ["HOSTS", "LAYOUT", "House", "Peer", "Site", "answer_of", "learner", "run", "serving", "unharmed"]

HOSTS = ("localhost", "127.0.0.1", "::1")


def learner(name: str) -> Identity:
    return Identity(role=Role.LEARNER, name=name)


@dataclass
class House:
    """An authority with learners a and b, an operator and a viewer; and what its syncer said in its log."""

    place: Path
    certs: Path = field(init=False)

    def __post_init__(self) -> None:
        self.certs = self.place / "certs"
        self.authority.found(days=100)
        self.make(Identity(role=Role.SYNCER, name="syncer"))
        for one in (
            learner("a"),
            learner("b"),
            Identity(role=Role.OPERATOR, name="o"),
            Identity(role=Role.VIEWER, name="v"),
        ):
            self.make(one)

    @property
    def authority(self) -> Authority:
        return Authority(self.certs, now=wall_time_s())

    def make(self, identity: Identity, days: int = 50) -> None:
        self.authority.make(identity, days=days, hosts=HOSTS if identity.role is Role.SYNCER else ())

    def papers(self, identity: Identity) -> Papers:
        return papers_of(self.certs, identity)


@dataclass
class Site:
    """A running syncer, and who comes to it."""

    url: str
    house: House
    sessions: list[aiohttp.ClientSession] = field(default_factory=list)

    def with_papers(self, papers: Papers, name: str) -> Peer:
        headers = {} if papers.token is None else {"Authorization": f"Bearer {papers.token}"}
        session = aiohttp.ClientSession(headers=headers, connector=aiohttp.TCPConnector(ssl=papers.tls or True))
        self.sessions.append(session)
        return Peer(session, self.url, name)

    def peer(self, name: str, identity: Identity | None = None) -> Peer:
        """Somebody who says ``name``, with the papers of that learner or of another identity."""
        return self.with_papers(self.house.papers(identity or learner(name)), name)

    def stranger(self, name: str = "a") -> Peer:
        return self.with_papers(Papers(tls=self.house.papers(learner("a")).tls and self._bare()), name)

    def _bare(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=self.house.certs / "ca.pem")

    async def status(self) -> dict[str, Any]:
        who = self.peer("o", Identity(role=Role.OPERATOR, name="o"))
        async with who.http.get(f"{self.url}/v1/status") as reply:
            assert reply.status == 200
            found: dict[str, Any] = await reply.json()
            return found


@asynccontextmanager
async def serving(house: House, annex: Any = None, **protocol: Any) -> AsyncIterator[Site]:
    stop, ready = asyncio.Event(), asyncio.get_running_loop().create_future()
    setting = SyncerSetting(
        state=house.place / "syncer",
        identities=house.certs,
        listen="127.0.0.1:0",
        uplink="fp32",
        merge=((".*", "mean"),),
        outer="finetune",
    )
    rules = {"num_fragments": 1, "sync_period": 1, "overlap_steps": 0, "grace": False, "min_quorum": 1, **protocol}
    task = asyncio.create_task(
        serve(ProtocolSetting(**rules), setting, clock=LoopClock(), on_ready=ready.set_result, stop=stop, annex=annex)
    )
    await asyncio.wait({task, ready}, return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        task.result()
    site = Site(ready.result().url, house)
    try:
        yield site
    finally:
        for session in site.sessions:
            await session.close()
        stop.set()
        await task


async def unharmed(site: Any, good: Any) -> None:
    """The run goes on: one more round, and books that balance."""
    await good.ride()
    status = await site.status()
    tokens = dict(status["tokens"])
    assert status["round"] == good.round and tokens["merged"] == 10 * good.round
    assert tokens.pop("consumed") == sum(tokens.values()) == 10 * good.round
    assert set(status["learners"]) == {"a"} and status["security"]["identities"]
