"""A directory of certificates, a syncer that asks for them, and hand-made peers who come with whatever papers."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np

from gruppetto.numerics import Layout, TensorSpec
from gruppetto.protocol import ProtocolSetting
from gruppetto.protocol.messages import Announcement, Answer, Applied, Ask, Begin, Hello, Progress
from gruppetto.runtime.clock import wall_time_s
from gruppetto.runtime.security.identity import Identity, Role
from gruppetto.runtime.security.issuing import Authority
from gruppetto.runtime.security.places import Papers, papers_of
from gruppetto.runtime.serving import serve
from gruppetto.runtime.setting import SyncerSetting
from gruppetto.runtime.wire import (
    FROM_SYNCER,
    Frame,
    HelloFrame,
    ProgressFrame,
    checksum,
    decode_frame,
    encode_answer,
    encode_frame,
)

LAYOUT = Layout(tensors=(TensorSpec(name="a", shape=(7,), dtype="float32"),))
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


class Peer:
    """A hand-made learner that speaks the wire with the papers it is given, in whatever name it likes."""

    def __init__(self, http: aiohttp.ClientSession, url: str, name: str) -> None:
        self.http, self.url, self.name = http, url, name
        self.round = 0

    async def dial(self, **change: Any) -> Peer:
        self.socket = await self.http.ws_connect(f"{self.url}/v1/control", max_msg_size=0)
        hello: dict[str, Any] = {"learner": self.name, "session": f"{self.name}-1", "layout_hash": LAYOUT.layout_hash}
        await self.socket.send_bytes(encode_frame(HelloFrame.of(Hello(**{**hello, **change}), LAYOUT)))
        return self

    async def next(self) -> Frame | aiohttp.WSMessage:
        message = await self.socket.receive()
        return decode_frame(message.data, FROM_SYNCER) if message.type is aiohttp.WSMsgType.BINARY else message

    async def until(self, kind: type[Any]) -> Any:
        while not isinstance(frame := await self.next(), kind):
            assert not isinstance(frame, aiohttp.WSMessage), frame
        return frame

    async def until_closed(self) -> Any:
        while not isinstance(frame := await self.next(), aiohttp.WSMessage):
            pass
        return frame

    async def get(self, path: str, **headers: str) -> int:
        async with self.http.get(f"{self.url}{path}", headers=headers) as reply:
            await reply.read()
            return reply.status

    async def put(self, path: str, body: Any, **headers: str) -> tuple[int, str]:
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        async with self.http.put(f"{self.url}{path}", data=body, headers=names) as reply:
            return reply.status, (await reply.read()).decode("utf-8", "replace")

    async def seed(self, **change: str) -> tuple[int, str]:
        body = np.arange(7, dtype=np.float32).tobytes()
        given = {"Gruppetto_Learner": self.name, "Gruppetto_Incarnation": "1"}
        return await self.put("/v1/seed/0", body, **{**given, "Gruppetto_Checksum": f"{checksum(body):08x}", **change})

    async def progress(self, clock: int, applied: tuple[Applied, ...] = ()) -> None:
        news = Progress(
            learner=self.name, incarnation=1, epoch=1, clock=clock, step_s=0.1, steps=clock, tokens=10 * clock,
            cursor=clock, applied=applied,
        )  # fmt: skip
        await self.socket.send_bytes(encode_frame(ProgressFrame(progress=news)))

    async def join(self) -> Peer:
        await self.dial()
        assert (await self.seed())[0] == 200
        await self.progress(0, (Applied(fragment=0, version=0, at_tokens=0),))
        await self.until(Begin)
        return self

    def answer(self, round: int, **change: Any) -> Answer:
        return answer_of(self.name, round, **change)

    async def contribute(self, answer: Answer, body: bytes | None = None, **headers: str) -> tuple[int, str]:
        data = np.ones(7, np.float32).tobytes() if body is None else body
        given = {
            "Gruppetto_Answer": encode_answer(answer),
            "Gruppetto_Codec": "fp32",
            "Gruppetto_Checksum": f"{checksum(data):08x}",
        }
        return await self.put(f"/v1/contribution/{answer.round}/0", data, **{**given, **headers})

    async def ride(self, rounds: int = 1) -> Peer:
        """A good learner's rounds: each asked for, given, merged and applied."""
        for _ in range(rounds):
            self.round += 1
            await self.progress(self.round)
            await self.until(Ask)
            assert (await self.contribute(self.answer(self.round)))[1].endswith("taken")
            assert dict((await self.until(Announcement)).versions) == {0: self.round}
            await self.progress(self.round, (Applied(fragment=0, version=self.round, at_tokens=10 * self.round),))
        return self


def answer_of(name: str, round: int, **change: Any) -> Answer:
    """What a learner says with its contribution to a round."""
    given: dict[str, Any] = {
        "learner": name, "incarnation": 1, "epoch": 1, "round": round, "fragment": 0, "base_version": round - 1,
        "steps": 1, "tokens": 10, "total_tokens": 10 * round, "cursor": round, "layout_hash": LAYOUT.layout_hash,
    }  # fmt: skip
    return Answer(**{**given, **change})


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
        serve(ProtocolSetting(**rules), setting, on_ready=ready.set_result, stop=stop, annex=annex)
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


def run(test: Awaitable[None]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(test, 60)

    asyncio.run(bounded())


async def unharmed(site: Any, good: Any) -> None:
    """The run goes on: one more round, and books that balance."""
    await good.ride()
    status = await site.status()
    tokens = dict(status["tokens"])
    assert status["round"] == good.round and tokens["merged"] == 10 * good.round
    assert tokens.pop("consumed") == sum(tokens.values()) == 10 * good.round
    assert set(status["learners"]) == {"a"} and status["security"]["identities"]
