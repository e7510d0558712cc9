"""One control connection of a learner's client, from Hello to its end."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

from gruppetto.errors import ConnectionLost, ProtocolError, Refused
from gruppetto.numerics.codec import CODECS
from gruppetto.numerics.downlink import DOWNLINKS
from gruppetto.protocol.events import LinkDown
from gruppetto.protocol.messages import (
    Announcement,
    Ask,
    Begin,
    Clipping,
    Marker,
    Refusal,
    RefusalReason,
    Rejection,
    Welcome,
)
from gruppetto.runtime.client_standing import ClientStanding
from gruppetto.runtime.control_socket import NotAccepted
from gruppetto.runtime.line import Control
from gruppetto.runtime.orders import Welcomed
from gruppetto.runtime.transfers import next_stir
from gruppetto.runtime.until_one_ends import until_one_ends
from gruppetto.runtime.verdicts import note_verdict
from gruppetto.runtime.wire import FROM_SYNCER, Frame, HelloFrame, WelcomeFrame

__all__ = ["Session"]

log = logging.getLogger("gruppetto.learner")

HEARTBEATS_A_LEASE = 4
HELLO_S = 10.0
"""For the answer to a Hello, which takes the syncer a second at most. A connection made while the syncer, or something
on the way, stood still may never get one: then another is made, soon."""

_HELLO_REPLIES = frozenset({"WelcomeFrame", "Refusal"})


class Session(ClientStanding):
    """Says Hello, then what there is to say; hears the syncer, and goes on with transfers, until one of them ends."""

    async def _session(self) -> None:
        """One connection, from Hello to its end."""
        async with self._http.control() as socket:
            with self.news:
                hello, may_seed = self.core.hello(), self._may_seed()
            if not may_seed:
                hello = replace(hello, can_seed=False)
            await socket.send(HelloFrame.of(hello, self._layout, self._library))
            reply = await self._answer_to_hello(socket)
            said = reply.welcome if isinstance(reply, WelcomeFrame) else reply
            assert isinstance(said, Welcome | Refusal)
            if self.core.knows_newer(said):
                raise ConnectionLost(
                    f"split brain: {self.address} serves epoch {said.epoch} of this run, which was in epoch "
                    f"{self.core.epoch} already; it is not believed"
                )
            if isinstance(reply, Refusal):
                if reply.reason is RefusalReason.CANNOT_SEED and not may_seed:
                    raise ConnectionLost(f"shard {self.shard} waits for the first weights of the run")
                self._refused(reply)
                return
            assert isinstance(reply, WelcomeFrame)
            self.transfers.stirs.forget()
            self._silence.clear()
            self._welcomed(reply, opens=True)
            try:
                await until_one_ends(
                    self._listen(socket),
                    self._speak(socket),
                    self._notice_silence(),
                    *self.transfers.loops(),
                )
            finally:
                with self.news:
                    self._step(LinkDown())
                    self.backlog.link_down()
                    self._also(LinkDown())

    async def _answer_to_hello(self, socket: Control) -> Frame:
        try:
            async with asyncio.timeout(min(HELLO_S, self._http.stall_s)):
                return await socket.receive(_HELLO_REPLIES)
        except TimeoutError as wrong:
            socket.stalled()
            raise ConnectionLost(f"{self.address} took the connection but does not answer the hello") from wrong

    def _welcomed(self, frame: WelcomeFrame, *, opens: bool) -> None:
        """``opens``: it opens a connection. Another on the same one asks this learner for its initial weights now."""
        for way, codec, known in (("uplink", frame.uplink, CODECS), ("downlink", frame.downlink, DOWNLINKS)):
            if codec not in known:
                raise ProtocolError(f"the syncer's {way} encoding is {codec!r}, which this version does not know")
        if frame.shard != str(self.shard):
            raise ProtocolError(
                f"{self.address} is shard {frame.shard}, not {self.shard}; start all shards of a run with one RUN.toml"
            )
        if self.welcome is None:
            parts = frame.to_fragmentation(self._layout)
            self.transfers.cut(parts, CODECS[frame.uplink], DOWNLINKS[frame.downlink])
            with self.news:
                self._tensors.cut(parts, frame.welcome.apply)
        elif frame.fragmentation_hash != self.welcome.fragmentation_hash:
            raise ProtocolError(f"{self.address} now cuts the model differently; start this learner again")
        with self.news:
            first = self.welcome is None
            self.welcome, self.trouble, self._knows_shards = frame, "", True
            self.seed_wanted = False  # an older Welcome may have asked, and nobody have looked since
            if self.core.is_newborn(frame.welcome):
                self.backlog.new_life()
            self.reconnects += opens and not first
            self._also(Welcomed(frame=frame, address=str(self.address)))
            self._step(frame.welcome)
        if first:
            self._heartbeats = self._dial_heart(period_s=frame.liveness_s / HEARTBEATS_A_LEASE)
            self._heartbeats.start()
        elif opens:
            log.info("connected to %s again, at round %d", self.address, frame.welcome.round)

    def _refused(self, refusal: Refusal) -> None:
        with self.news:
            self._step(refusal)
        self._fail(Refused(refusal.reason.value, refusal.text))

    # ── while it lasts ───────────────────────────────────────────────────────────────────────────────────────────

    async def _listen(self, socket: Control) -> None:
        while True:
            try:
                frame = await socket.receive(FROM_SYNCER)
            except ConnectionLost:
                if self._closing:
                    await asyncio.Event().wait()  # the session ends when the goodbye has arrived
                raise
            except NotAccepted as wrong:
                self._fail(wrong)
                raise
            match frame:
                case WelcomeFrame():
                    # The learner that was to give the first weights has gone, or the like.
                    self._welcomed(frame, opens=False)
                case Refusal():
                    self._refused(frame)
                    return
                case Begin() | Ask() | Rejection() | Clipping() | Announcement() | Marker():
                    note_verdict(self._complaints, frame)
                    with self.news:
                        self._step(frame)
                case _:
                    raise AssertionError(frame)

    async def _speak(self, socket: Control) -> None:
        stirred = self.transfers.stirs.new()
        while True:
            with self.news:
                frames, closing = self.backlog.take_frames(), self._closing
                goodbye = self.core.goodbye(self._last_words)
            for frame in frames:
                await socket.send(frame)
            if frames:
                self._stir()  # an offer may have waited for this
            if closing:
                await socket.send(goodbye)
                await socket.close()
                return
            await next_stir(stirred)

    async def _notice_silence(self) -> None:
        await self._silence.wait()
        raise ConnectionLost(f"{self.address} does not answer heartbeats any more")
