"""The road of bodies: the real client and the real server with something between them that cuts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests import steady

from gruppetto.errors import ConnectionLost, ProtocolError
from gruppetto.numerics import CODECS, Layout, TensorSpec
from gruppetto.protocol.messages import Answer
from gruppetto.protocol.units import Fragment, Version
from gruppetto.runtime import body_server
from gruppetto.runtime.address import SyncerAddress
from gruppetto.runtime.body_wire import MAX_HEAD_BYTES, TRAILER_BYTES, Reply, Request, decode, encode
from gruppetto.runtime.cut import cut
from gruppetto.runtime.headers import ANSWER_HEADER, CODEC_HEADER
from gruppetto.runtime.http_client import HttpSyncer
from gruppetto.runtime.http_server import HttpServer
from gruppetto.runtime.intake import Intake
from gruppetto.runtime.landing import Landing
from gruppetto.runtime.leases import LeasePool
from gruppetto.runtime.pacing import Bucket
from gruppetto.runtime.parking import Parking
from gruppetto.runtime.steps import Held
from gruppetto.runtime.wire import checksum, encode_answer

NUMEL = 300_000
BODY_BYTES = 4 * NUMEL
SENT_BYTES = BODY_BYTES + TRAILER_BYTES
OVERHEAD_BYTES = 20_000
"""Greetings and heads of all connections of a test."""


class Cutter:
    """Passes bytes on; the k-th connection that carries bodies is reset after ``limits[k]`` bytes, either way. What
    comes at ``damages_at`` is damaged."""

    def __init__(self, port: int, *limits: int) -> None:
        self.upstream, self.limits = port, list(limits)
        self.passed = self.connections = 0
        self.damages_at = 1 << 60

    async def __aenter__(self) -> Cutter:
        self.server = await asyncio.start_server(self._pair, "127.0.0.1", 0)
        self.port = self.server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self.server.close()

    async def _pair(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        there, back = await asyncio.open_connection("127.0.0.1", self.upstream)
        left = [self.limits.pop(0) if self.limits else 1 << 60]

        async def pump(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
            while left[0] > 0 and (data := await source.read(min(left[0], 4096))):
                left[0] -= len(data)
                if self.passed <= self.damages_at < self.passed + len(data):
                    data = bytes([data[0] ^ 1]) + data[1:]
                self.passed += len(data)
                target.write(data)
                await target.drain()

        pumps = [asyncio.create_task(pump(reader, back)), asyncio.create_task(pump(there, writer))]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in pumps:
                task.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            for end in (writer, back):
                with suppress(OSError):
                    end.close()


class Place:
    """A service with one learner, a server before it, and a client that reaches it through a cutter."""

    def __init__(self, world: Any, server: HttpServer, port: int) -> None:
        self.world, self.server, self.port = world, server, port

    @asynccontextmanager
    async def client(self, *limits: int) -> AsyncIterator[tuple[HttpSyncer, Cutter]]:
        async with Cutter(self.port, *limits) as cutter:
            address = SyncerAddress.parse(f"127.0.0.1:{cutter.port}")
            async with HttpSyncer(address, token="sesame", tls=None, stall_s=20.0) as client:
                yield client, cutter


@pytest.fixture
def place(world: Any, tensors: Any) -> Callable[..., None]:
    """``place(test)`` runs the test in a place; ``setting`` for the syncer's own dials."""

    def run(test: Callable[[Place], Awaitable[None]], **setting: Any) -> None:
        async def inside() -> None:
            setting.setdefault("outer", "finetune")
            one = {"num_learners": 1, "num_fragments": 1, "sync_period": 1, "overlap_steps": 0}
            w = world(tensors(NUMEL), setting=setting, **one)
            w.join(w.learner("a", np.zeros(NUMEL), lambda theta, cursor: theta + 1))
            async with w.served() as (server, port):
                await test(Place(w, server, port))

        steady.run(inside())

    return run


async def until_done(client: HttpSyncer, answer: Answer, body: np.ndarray) -> tuple[int, tuple[bool, int]]:
    """Tries, as a learner does; how many, and what came of the last."""
    for attempt in range(20):
        with suppress(ConnectionLost, ProtocolError):
            return attempt, await client.contribute(answer, "fp32", body.data, again=attempt > 0)
        await asyncio.sleep(0.01)
    raise AssertionError("it never got there")


def test_an_upload_that_is_cut_goes_on_where_it_stopped(place: Callable[..., None]) -> None:
    async def test(at: Place) -> None:
        answer, body = at.world.unsent()
        async with at.client(500_000, 300_000) as (client, cutter):
            attempt, said = await until_done(client, answer, body)
            assert (attempt, said) == (2, (True, 10))
            assert BODY_BYTES <= cutter.passed < BODY_BYTES + OVERHEAD_BYTES
        assert len(at.server.desk.parking) == 0
        at.world.settle(at.world.learners)
        value = at.world.service.borrow(Fragment(0))
        assert value is not None and value.version == 1 and np.array_equal(value.theta, np.ones(NUMEL, np.float32))
        at.world.service.give_back(value)

    place(test)


def test_an_upload_that_is_cut_within_the_checksum_behind_it_lacks_only_that(place: Callable[..., None]) -> None:
    text = msgspec.msgpack.encode({"tokens": 10, "status": "taken"})
    reply_bytes, passed = len(encode(Reply(status=200, length=len(text))) + text), [0]

    async def whole(at: Place) -> None:
        answer, body = at.world.unsent()
        async with at.client() as (client, cutter):
            assert await client.contribute(answer, "fp32", body.data) == (True, 10)
            passed[0] = cutter.passed

    async def cut_off(at: Place) -> None:
        answer, body = at.world.unsent()
        async with at.client(passed[0] - reply_bytes - 2) as (client, cutter):
            with pytest.raises(ConnectionLost):
                await client.contribute(answer, "fp32", body.data)
            while not len(at.server.desk.parking):
                await asyncio.sleep(0.01)
            assert await client.contribute(answer, "fp32", body.data, again=True) == (True, 10)
            assert cutter.passed < BODY_BYTES + OVERHEAD_BYTES

    place(whole)
    place(cut_off)


def test_what_is_damaged_on_its_way_is_known_by_the_checksum_behind_it(place: Callable[..., None]) -> None:
    async def test(at: Place) -> None:
        answer, body = at.world.unsent()
        async with at.client() as (client, cutter):
            cutter.damages_at = BODY_BYTES // 2
            with pytest.raises(ProtocolError, match="the body has checksum"):
                await client.contribute(answer, "fp32", body.data)
            assert await client.contribute(answer, "fp32", body.data, again=True) == (True, 10)

    place(test)


def test_a_body_of_which_nobody_says_the_checksum_is_refused(place: Callable[..., None]) -> None:
    async def test(at: Place) -> None:
        answer, body = at.world.unsent()
        headers = {ANSWER_HEADER: encode_answer(answer), CODEC_HEADER: "fp32"}
        async with at.client() as (client, _):
            stream = await client._road.open(client.address)
            assert stream is not None
            path = f"/v1/contribution/{answer.round}/{answer.fragment}"
            await stream.send(encode(Request(method="PUT", path=path, headers=headers, length=body.size)))
            assert (await stream.head(Reply)).status == 400
            stream.abort()


@pytest.mark.parametrize(("reads_on_bytes", "connections"), [(SENT_BYTES, 1), (SENT_BYTES - 1, 3)])
def test_a_late_body_costs_a_connection_only_if_it_is_long(
    place: Callable[..., None], monkeypatch: pytest.MonkeyPatch, reads_on_bytes: int, connections: int
) -> None:
    """What is read to its end leaves the connection in order: the next exchange is understood."""
    monkeypatch.setattr(body_server, "READ_ON_BYTES", reads_on_bytes)

    async def test(at: Place) -> None:
        answer, body = at.world.unsent()
        assert at.world.learners[0].link.contribute(answer, "fp32", body.data) == "taken"
        at.world.settle(at.world.learners)
        late = replace(answer, cursor=answer.cursor + 1)
        room, layout_hash = LeasePool().lend(NUMEL), at.world.layout.layout_hash
        async with at.client() as (client, cutter):
            for _ in range(2):
                taken, _ = await client.contribute(late, "fp32", (body + 1).data)
                assert not taken
            assert await client.fetch(Fragment(0), Version(1), layout_hash, room) == Version(1)
            assert (room.values == 1).all()
            assert cutter.connections == connections

    place(test)


def test_another_body_under_the_same_name_begins_anew(place: Callable[..., None]) -> None:
    async def test(at: Place) -> None:
        answer, body = at.world.unsent()
        async with at.client(500_000) as (client, cutter):
            with pytest.raises(ConnectionLost):
                await client.contribute(answer, "fp32", (body + 1).data)
            while not len(at.server.desk.parking):
                await asyncio.sleep(0.01)
            assert (await client.contribute(answer, "fp32", body.data, again=True))[0]
            assert cutter.passed > BODY_BYTES + 400_000
        assert len(at.server.desk.parking) == 0

    place(test)


def test_what_is_parked_makes_room_for_others(place: Callable[..., None]) -> None:
    async def test(at: Place) -> None:
        answer, body = at.world.unsent()
        parking = at.server.desk.parking
        async with at.client(500_000) as (client, _):
            with pytest.raises(ConnectionLost):
                await client.contribute(replace(answer, cursor=answer.cursor + 1), "fp32", body.data)
            while not len(parking):
                await asyncio.sleep(0.01)
            intake = at.world.service.room_for(answer, "fp32", BODY_BYTES).intake
            assert not intake.has_room()  # the only buffer
            assert (await client.contribute(answer, "fp32", body.data))[0]
            assert not len(parking) and intake.has_room()

    place(test, max_bodies=1)


def test_what_is_parked_goes_when_nobody_wants_it(place: Callable[..., None]) -> None:
    async def test(at: Place) -> None:
        answer, body = at.world.unsent()
        async with at.client(500_000) as (client, _):
            with pytest.raises(ConnectionLost):
                await client.contribute(answer, "fp32", body.data)
            while not len(at.server.desk.parking):
                await asyncio.sleep(0.01)
            assert at.world.learners[0].link.contribute(answer, "fp32", body.data) == "taken"
            assert len(at.server.desk.parking) == 0

    place(test)


def test_a_download_that_is_cut_goes_on_and_another_version_comes_whole(place: Callable[..., None]) -> None:
    async def test(at: Place) -> None:
        at.world.step_all()
        room = LeasePool().lend(NUMEL)
        landing, layout_hash = Landing(room), at.world.layout.layout_hash

        async def fetch(client: HttpSyncer) -> Version:
            return await client.fetch(Fragment(0), Version(0), layout_hash, room, landing=landing)

        async with at.client(500_000, 300_000) as (client, cutter):
            for _ in range(2):
                with pytest.raises(ConnectionLost):
                    await fetch(client)
            assert landing.at > 750_000
            assert await fetch(client) == 1 and np.array_equal(room.values, np.ones(NUMEL, np.float32))
            assert BODY_BYTES <= cutter.passed < BODY_BYTES + OVERHEAD_BYTES
        async with at.client(500_000) as (client, cutter):
            with pytest.raises(ConnectionLost):
                await fetch(client)
            at.world.step_all()
            assert await fetch(client) == 2 and np.array_equal(room.values, np.full(NUMEL, 2, np.float32))

    place(test)


def test_a_step_that_is_cut_is_not_gone_on_with_but_asked_for_anew_and_whole(place: Callable[..., None]) -> None:
    async def test(at: Place) -> None:
        at.world.step_all()
        layout_hash, pool = at.world.layout.layout_hash, LeasePool()

        async def follow(client: HttpSyncer, held: Held | None, landing: Landing, room: Any) -> tuple[Version, str]:
            return await client.fetch_from(held, Fragment(0), Version(0), layout_hash, room, landing=landing)

        async with at.client() as (client, _):
            first = pool.lend(NUMEL)
            version, name = await follow(client, None, Landing(first), first)
            held = Held(values=first, name=name)
            at.world.step_all()
            room = pool.lend(NUMEL)
            before = client.bytes_down
            newer, name = await follow(client, held, Landing(room), room)
            assert (version, newer) == (1, 2) and client.bytes_down - before < BODY_BYTES / 3
            value = at.world.service.borrow(Fragment(0))
            assert value is not None and np.array_equal(room.values, value.theta) and name == f"{value.checksum:08x}"
            at.world.service.give_back(value)
        async with at.client(200_000) as (client, _):
            again = pool.lend(NUMEL)
            landing = Landing(again)
            with pytest.raises(ConnectionLost):
                await follow(client, held, landing, again)
            assert landing.at and not landing.goes_on and not landing.said()
            assert await follow(client, None, landing, again) == (2, name)
            assert np.array_equal(again.values, room.values)

    place(test, downlink="delta")


def test_a_body_that_is_not_wanted_any_more_is_given_up_in_the_middle(place: Callable[..., None]) -> None:
    async def test(at: Place) -> None:
        answer, body = at.world.unsent()
        service = at.world.service
        async with at.client() as (client, _):
            sending = asyncio.create_task(client.contribute(answer, "fp32", np.concatenate([body]).data))
            service.wants = lambda answer: False  # type: ignore[method-assign]
            at.server.review()
            assert (await sending)[0] is False

    place(test)


@pytest.mark.parametrize(
    "said",
    [
        b"\0\0\0\4nope",
        (MAX_HEAD_BYTES + 1).to_bytes(4, "big"),
        encode(Reply(status=200)),
        encode(Request(method="GET", path="/", headers={})),
    ],
)
def test_nonsense_on_the_road_ends_the_connection_or_is_refused(place: Callable[..., None], said: bytes) -> None:
    async def test(at: Place) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", at.port)
        opening = "GET /v1/bodies HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: gruppetto-bodies\r\n"
        writer.write((opening + "Authorization: Bearer sesame\r\n\r\n").encode())
        assert b" 101 " in await reader.readuntil(b"\r\n\r\n")
        writer.write(said)
        if b"GET" in said:
            length = int.from_bytes(await reader.readexactly(4), "big")
            assert decode(await reader.readexactly(length), Reply).status == 404
        else:
            assert await reader.read() == b""
        writer.close()

    place(test)


def test_who_may_use_the_road(place: Callable[..., None]) -> None:
    async def test(at: Place) -> None:
        for headers, status in (("", 401), ("Authorization: Bearer sesame\r\n", 426)):
            reader, writer = await asyncio.open_connection("127.0.0.1", at.port)
            writer.write(f"GET /v1/bodies HTTP/1.1\r\nHost: x\r\n{headers}\r\n".encode())
            assert f" {status} ".encode() in await reader.readuntil(b"\r\n\r\n")
            writer.close()

    place(test)


# ── the parts ────────────────────────────────────────────────────────────────────────────────────────────────────


LAYOUT = Layout(tensors=tuple(TensorSpec(name=n, shape=(s,), dtype="float32") for n, s in (("a", 600), ("b", 400))))
SPEC = cut(LAYOUT, 1, "balanced", ()).fragments[0]
VALUES = np.random.default_rng(0).standard_normal(1000).astype(np.float32)


@given(stops=st.lists(st.integers(1, 4000), max_size=5), codec=st.sampled_from(["fp32", "bf16"]))
def test_an_upload_in_pieces_is_the_same_to_the_last_bit(stops: list[int], codec: str) -> None:
    async def run() -> None:
        data = CODECS[codec].encode(VALUES).view(np.uint8)
        crc, intake, parking = checksum(data), Intake(CODECS[codec], 1000, 1), Parking(60.0)
        with intake.open(SPEC, data.size, crc) as once:
            once.write(data)
            expected = once.finish()
        expected.release()
        upload = intake.open(SPEC, data.size, crc)
        for stop in [*sorted(min(stop, data.size) for stop in stops), data.size]:
            with upload:
                upload.write(data[upload.arrived : stop])
                assert upload.crc == checksum(data[:stop])
                parking.park("a", upload, lambda: True)
            assert not intake.has_room()
            assert parking.fetch("a") is upload
        with upload:
            body = upload.finish()
        assert bytes(body.payload) == data.tobytes()
        assert np.array_equal(body.inspection.norm_sq, expected.inspection.norm_sq)

    asyncio.run(run())


@given(tries=st.lists(st.tuples(st.integers(1, 3), st.integers(0, 40), st.booleans()), max_size=8))
def test_a_landing_never_mixes_versions(tries: list[tuple[int, int, bool]]) -> None:
    """Against the plain story: the newest version's bytes, as many as came of it without a gap."""
    room = LeasePool().lend(10)
    landing, codec, story = Landing(room), CODECS["fp32"], (0, 0)
    for version, count, goes_on in tries:
        whole = np.full(10, version, np.float32).view(np.uint8)
        held = int(landing.said().get("Gruppetto-Have", "0:0").partition(":")[2])
        assert (story[1] == 0 and not landing.said()) or landing.said() == {"Gruppetto-Have": f"{story[0]}:{story[1]}"}
        offset = held if goes_on else 0
        if offset and version != story[0]:
            with pytest.raises(ProtocolError, match="another body"):
                landing.begin(Version(version), codec, offset)
            story = (0, 0)
            continue
        landing.begin(Version(version), codec, offset)
        taken = min(count, landing.missing_bytes)
        landing.room()[:taken] = whole[offset : offset + taken].data
        landing.wrote(taken)
        story = (version, offset + taken)
        assert landing.crc == checksum(whole[: story[1]])


def test_parking_is_bounded_in_number_and_in_time() -> None:
    async def run() -> None:
        intake, parking = Intake(CODECS["fp32"], 1000, 8), Parking(0.0)
        for k in range(6):
            upload = intake.open(SPEC, 4000)
            upload.write(bytes(8))
            parking.park(k, upload, lambda: True)
        assert len(parking) == 4 and 0 not in parking and 5 in parking
        for _ in range(3):
            await asyncio.sleep(0)
        await asyncio.sleep(0.001)
        assert len(parking) == 0

    asyncio.run(run())


def test_where_there_is_no_road_bodies_keep_the_same_pace_by_http(place: Callable[..., None]) -> None:
    class Noting(Bucket):
        def __init__(self) -> None:
            super().__init__(1e9 / 300)
            self.taken: list[int] = []

        async def take(self, num_bytes: int) -> None:
            assert num_bytes <= self.burst_bytes < BODY_BYTES // 50
            self.taken.append(num_bytes)

    async def test(at: Place) -> None:
        answer, body = at.world.unsent()
        at.server.bodies.pace = down = Noting()
        async with at.client() as (client, _):
            client._road._none_at.add(client.address)
            client.pace = up = Noting()
            assert (await client.contribute(answer, "fp32", body.data))[0]
            assert sum(up.taken) == BODY_BYTES and not down.taken
            await client.fetch(Fragment(0), Version(0), at.world.layout.layout_hash, LeasePool().lend(NUMEL))
            assert sum(down.taken) == sum(up.taken) == BODY_BYTES

    place(test)
