"""A learner made by hand, frame by frame: for who says what no client of ours would, and for who looks on meanwhile."""

from __future__ import annotations

from typing import Any

import aiohttp
import numpy as np

from gruppetto.numerics import Layout, TensorSpec
from gruppetto.protocol.messages import Announcement, Answer, Applied, Ask, Begin, Heartbeat, Hello, Progress
from gruppetto.protocol.units import FIRST_EPOCH, Fragment, Incarnation, LearnerId, Version
from gruppetto.runtime.wire import (
    FROM_SYNCER,
    Frame,
    HelloFrame,
    ProgressFrame,
    WelcomeFrame,
    checksum,
    decode_frame,
    encode_answer,
    encode_frame,
)

__all__ = ["LAYOUT", "Peer", "answer_of"]

LAYOUT = Layout(tensors=(TensorSpec(name="a", shape=(7,), dtype="float32"),))
"""Of a model of one fragment, whose contributions come as fp32."""
FIRST = Incarnation(1)


class Peer:
    """A hand-made learner that speaks the wire with the papers it is given, in whatever name it likes."""

    layout = LAYOUT

    def __init__(self, http: aiohttp.ClientSession, url: str, name: str) -> None:
        self.http, self.url, self.name = http, url, LearnerId(name)
        self.round = 0

    async def dial(self, **change: Any) -> Peer:
        self.socket = await self.http.ws_connect(f"{self.url}/v1/control", max_msg_size=0)
        known_by = self.layout.layout_hash
        hello: dict[str, Any] = {"learner": self.name, "session": f"{self.name}-1", "layout_hash": known_by}
        await self.socket.send_bytes(encode_frame(HelloFrame.of(Hello(**{**hello, **change}), self.layout)))
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

    async def beat(self) -> int:
        beat = encode_frame(Heartbeat(learner=self.name, incarnation=FIRST))
        async with self.http.post(f"{self.url}/v1/heartbeat", data=beat) as reply:
            return reply.status

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
            learner=self.name, incarnation=FIRST, epoch=FIRST_EPOCH, clock=clock, step_s=0.1, steps=clock,
            tokens=10 * clock, cursor=clock, applied=applied,
        )  # fmt: skip
        await self.socket.send_bytes(encode_frame(ProgressFrame(progress=news)))

    async def join(self) -> Peer:
        """Give the first weights of a run, and be there until it begins."""
        await self.dial()
        await self.until(WelcomeFrame)
        assert (await self.seed())[0] == 200
        await self.progress(0, (Applied(fragment=Fragment(0), version=Version(0), at_tokens=0),))
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
            applied = Applied(fragment=Fragment(0), version=Version(self.round), at_tokens=10 * self.round)
            await self.progress(self.round, (applied,))
        return self


def answer_of(name: str, round: int, **change: Any) -> Answer:
    """What a learner says with its contribution to a round."""
    given: dict[str, Any] = {
        "learner": name, "incarnation": 1, "epoch": 1, "round": round, "fragment": 0, "base_version": round - 1,
        "steps": 1, "tokens": 10, "total_tokens": 10 * round, "cursor": round, "layout_hash": LAYOUT.layout_hash,
    }  # fmt: skip
    return Answer(**{**given, **change})
