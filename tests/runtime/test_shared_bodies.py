"""The road of bodies between neighbours: the real client and the real server, and what still passes their socket."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import numpy as np
import pytest
from tests import steady

from gruppetto.errors import ConnectionLost, ProtocolError
from gruppetto.numerics.runs import Runs
from gruppetto.protocol.messages import Answer
from gruppetto.protocol.units import Fragment, Version
from gruppetto.runtime import body_client, body_server
from gruppetto.runtime.address import SyncerAddress
from gruppetto.runtime.body_wire import COPIED, MEMORY_HEADER, UNSEEN, Reply, Request, encode
from gruppetto.runtime.headers import ANSWER_HEADER, CODEC_HEADER
from gruppetto.runtime.http_client import HttpSyncer
from gruppetto.runtime.http_server import HttpServer
from gruppetto.runtime.leases import LeasePool
from gruppetto.runtime.pacing import Bucket
from gruppetto.runtime.shared_memory import NotSeen, SharedMemory
from gruppetto.runtime.wire import checksum, encode_answer

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="nothing is shared on this system")

NUMEL = 300_000
BODY_BYTES = 4 * NUMEL
CONTROL_BYTES = 10_000
"""More than greetings and heads take."""


class Counter:
    """Passes bytes on, and counts them."""

    def __init__(self, port: int) -> None:
        self._upstream, self.passed = port, 0

    async def pair(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", self._upstream)

        async def pump(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
            with suppress(OSError):
                while data := await source.read(1 << 16):
                    self.passed += len(data)
                    target.write(data)
                    await target.drain()
            target.close()

        await asyncio.gather(pump(reader, back), pump(there, writer))


class Place:
    """A service with one learner, and a server before it."""

    def __init__(self, world: Any, server: HttpServer, port: int) -> None:
        self.world, self.server, self.port = world, server, port

    @asynccontextmanager
    async def client(self) -> AsyncIterator[tuple[HttpSyncer, Counter]]:
        counter = Counter(self.port)
        server = await asyncio.start_server(counter.pair, "127.0.0.1", 0)
        address = SyncerAddress.parse(f"127.0.0.1:{server.sockets[0].getsockname()[1]}")
        async with HttpSyncer(address, token="sesame", tls=None, stall_s=20.0) as client:
            yield client, counter
        server.close()

    def answer(self) -> tuple[Answer, np.ndarray]:
        answer, body = self.world.unsent()
        return answer, body.view(np.float32)

    async def fetch(self, client: HttpSyncer, runs: Runs | None = None) -> np.ndarray:
        numel = NUMEL if runs is None else runs.numel
        into = LeasePool().lend(numel)
        await client.fetch(Fragment(0), Version(0), self.world.layout.layout_hash, into, runs=runs)
        return into.values.copy()

    async def value(self) -> np.ndarray:
        """The newest, as soon as all its readers have given it back."""
        value = self.world.service.borrow(Fragment(0))
        assert value is not None
        while value.readers > 1:
            await asyncio.sleep(0)
        self.world.service.give_back(value)
        return value.theta.copy()


@pytest.fixture
def place(world: Any, tensors: Any) -> Callable[..., None]:
    """``place(test)`` runs the test in a place that shares memory, or does not (``shares=False``)."""

    def run(test: Callable[[Place], Awaitable[None]], *, shares: bool = True, **setting: Any) -> None:
        async def inside() -> None:
            memory = SharedMemory() if shares else None
            one = {"num_learners": 1, "num_fragments": 1, "sync_period": 1, "overlap_steps": 0}
            w = world(tensors(NUMEL), setting={"outer": "finetune", "memory": memory, **setting}, **one)
            start = np.random.default_rng(0).standard_normal(NUMEL)
            w.join(w.learner("a", start, lambda theta, cursor: theta + 1))
            async with w.served() as (server, port):
                await test(Place(w, server, port))

        steady.run(inside())

    return run


async def upload(client: HttpSyncer, answer: Answer, body: np.ndarray) -> tuple[bool, int]:
    """As a learner does: the body is written where the client wants it."""
    room = client.room(body.size)
    room[:] = body
    return await client.contribute(answer, "fp32", room.view(np.uint8).data)


@pytest.mark.parametrize("downlink", ["fp32", "bf16"])
def test_what_comes_of_a_round_is_the_same_and_nearly_nothing_passes_the_socket(
    place: Callable[..., None], downlink: str
) -> None:
    found, passed = {}, {}

    def through(shares: bool) -> Callable[[Place], Awaitable[None]]:
        async def test(at: Place) -> None:
            async with at.client() as (client, counter):
                before = await at.fetch(client)
                part = await at.fetch(client, Runs(bounds=((7, 50_000), (80_000, 200_001))))
                assert np.array_equal(part, np.concatenate([before[7:50_000], before[80_000:200_001]]))
                answer, body = at.answer()
                assert await upload(client, answer, body) == (True, 10)
                at.world.settle(at.world.learners)
                after = await at.fetch(client)
                assert client.bytes_up == BODY_BYTES and client.bytes_down > BODY_BYTES
                found[shares], passed[shares] = (before, after, await at.value()), counter.passed

        return test

    for shares in (False, True):
        place(through(shares), shares=shares, downlink=downlink)
    assert all(np.array_equal(one, other) for one, other in zip(found[True], found[False], strict=True))
    assert not np.array_equal(found[True][0], found[True][1])
    assert passed[False] > 2 * BODY_BYTES and passed[True] < CONTROL_BYTES


def test_a_value_stays_what_it_is_until_its_reader_has_it(place: Callable[..., None]) -> None:
    """Its buffer is used for the next values only when nobody reads it any more."""

    async def test(at: Place) -> None:
        async with at.client() as (client, _):
            before = await at.fetch(client)
            address, key = client.address, client._road._keys[client.address]
            stream = await client._road.open(address)
            assert stream is not None
            await stream.send(encode(Request(method="GET", path="/v1/fragment/0", headers={MEMORY_HEADER: key})))
            head = await stream.head(Reply)
            for _ in range(3):  # three more values, each in a buffer of its own or one that was given back
                answer, body = at.answer()
                assert await upload(client, answer, body) == (True, 10)
                at.world.settle(at.world.learners)
            room = client.room(NUMEL)
            sink = body_client.Bytes(head.length)
            await body_client.copy_from(head.headers[MEMORY_HEADER], sink, lambda: None)
            await stream.send(COPIED)
            assert bytes(sink.data) == before.tobytes() != (await at.fetch(client)).tobytes()
            assert room.size == NUMEL
        await at.value()

    place(test)


def test_a_reader_who_dies_over_it_leaves_the_value_free(place: Callable[..., None]) -> None:
    async def test(at: Place) -> None:
        async with at.client() as (client, _):
            await at.fetch(client)
            key = client._road._keys[client.address]
            stream = await client._road.open(client.address)
            assert stream is not None
            await stream.send(encode(Request(method="GET", path="/v1/fragment/0", headers={MEMORY_HEADER: key})))
            assert MEMORY_HEADER in (await stream.head(Reply)).headers
            stream.abort()
        await at.value()

    place(test)


def test_a_body_that_changes_after_its_checksum_was_taken_is_refused(
    place: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(at: Place) -> None:
        answer, body = at.answer()
        async with at.client() as (client, _):
            await at.fetch(client)
            room, before = client.room(NUMEL), await at.value()
            room[:] = body
            copy, taken, seen = body_server.copy_from, asyncio.Event(), [0]

            def noted(chunk: Any, crc: int = 0) -> int:
                seen[0] += len(memoryview(chunk).cast("B"))
                if seen[0] >= BODY_BYTES:
                    taken.set()
                return checksum(chunk, crc)

            async def late(places: str, sink: Any, moved: Callable[[], None]) -> None:
                await taken.wait()
                room[NUMEL // 2] += 1.0
                await copy(places, sink, moved)

            monkeypatch.setattr(body_client, "checksum", noted)
            monkeypatch.setattr(body_server, "copy_from", late)
            with pytest.raises(ProtocolError, match="the body has checksum"):
                await client.contribute(answer, "fp32", room.view(np.uint8).data)
            assert np.array_equal(await at.value(), before)
            monkeypatch.setattr(body_server, "copy_from", copy)
            assert await client.contribute(answer, "fp32", room.view(np.uint8).data, again=True) == (True, 10)

    place(test)


def test_a_syncer_that_cannot_read_ours_gets_the_body_itself(
    place: Callable[..., None], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def blind(places: str, sink: Any, moved: Callable[[], None]) -> None:
        raise NotSeen("it belongs to somebody else")

    async def test(at: Place) -> None:
        answer, body = at.answer()
        async with at.client() as (client, counter):
            await at.fetch(client)
            monkeypatch.setattr(body_server, "copy_from", blind)
            assert await upload(client, answer, body) == (True, 10)
            at.world.settle(at.world.learners)
            await at.fetch(client)
            assert 2 * BODY_BYTES < counter.passed < 2 * BODY_BYTES + CONTROL_BYTES
            assert at.world.service.seen.malformed == 0

    with caplog.at_level(logging.INFO, "gruppetto.learner"):
        place(test)
    said = [record.getMessage() for record in caplog.records if "through the socket" in record.getMessage()]
    assert len(said) == 1 and said[0].endswith("it belongs to somebody else")


@pytest.mark.parametrize("when", ["at the greeting", "at the first value"])
def test_who_cannot_read_the_syncers_memory_gets_everything_sent(
    place: Callable[..., None], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, when: str
) -> None:
    def no_key(offer: str) -> str:
        raise NotSeen("its process is gone, or in another container or machine")

    async def no_copy(places: str, sink: Any, moved: Callable[[], None]) -> None:
        raise NotSeen("its process is gone, or in another container or machine")

    async def test(at: Place) -> None:
        async with at.client() as (client, counter):
            if when == "at the greeting":
                monkeypatch.setattr(body_client, "read_key", no_key)
            else:
                monkeypatch.setattr(body_client, "copy_from", no_copy)
                with pytest.raises(ConnectionLost, match="memory cannot be read"):
                    await at.fetch(client)
            assert np.array_equal(await at.fetch(client), at.world.learners[0].theta.astype(np.float32))
            answer, body = at.answer()
            assert await upload(client, answer, body) == (True, 10)
            assert counter.passed > 2 * BODY_BYTES

    with caplog.at_level(logging.INFO, "gruppetto.learner"):
        place(test)
    assert sum("another container" in record.getMessage() for record in caplog.records) == 1


def test_nothing_is_read_or_named_for_who_does_not_show_the_key(place: Callable[..., None]) -> None:
    async def test(at: Place) -> None:
        answer, body = at.answer()
        async with at.client() as (client, _):
            await at.fetch(client)
            room = client.room(NUMEL)
            room[:] = body
            places = client._road._memory.places([room.view(np.uint8).data])
            key, wrong = client._road._keys[client.address], "0" * 64
            for shown in (places, wrong, f"{wrong} {places}", f" {places}"):
                stream = await client._road.open(client.address)
                assert stream is not None
                await stream.send(encode(Request(method="GET", path="/v1/fragment/0", headers={MEMORY_HEADER: shown})))
                assert MEMORY_HEADER not in (await stream.head(Reply)).headers
                stream.abort()
            said = {ANSWER_HEADER: encode_answer(answer), CODEC_HEADER: "fp32"}
            path = f"/v1/contribution/{answer.round}/0"
            for shown, resumes, status in (
                (f"{wrong} {places}", False, UNSEEN),
                (f"{key} {places}", True, UNSEEN),
                (f"{key} ../{places}", False, 400),
                (f"{key} {places},{places}", False, 400),
            ):
                stream = await client._road.open(client.address)
                assert stream is not None
                headers = said | {MEMORY_HEADER: shown}
                request = Request(
                    method="PUT", path=path, headers=headers, length=BODY_BYTES, trails=True, resumes=resumes
                )
                await stream.send(encode(request))
                assert (await stream.head(Reply)).status == status
                stream.abort()
            assert await client.contribute(answer, "fp32", room.view(np.uint8).data) == (True, 10)

    place(test)


def test_what_is_held_to_a_rate_goes_through_the_socket(place: Callable[..., None]) -> None:
    async def test(at: Place) -> None:
        answer, body = at.answer()
        async with at.client() as (client, counter):
            await at.fetch(client)
            assert counter.passed < CONTROL_BYTES
            client.pace = Bucket(1e9)
            assert await upload(client, answer, body) == (True, 10)
            assert BODY_BYTES < counter.passed < BODY_BYTES + CONTROL_BYTES
            at.server.bodies.pace = Bucket(1e9)
            at.world.settle(at.world.learners)
            await at.fetch(client)
            assert counter.passed > 2 * BODY_BYTES

    place(test)
