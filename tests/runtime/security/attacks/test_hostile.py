"""An attacker who floods, drips, packs and lies: refused, bounded, told once. A good learner rides on meanwhile."""

from __future__ import annotations

import asyncio
import base64
import gzip
import logging
import random
import ssl
import zlib
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import aiohttp
import pytest
from tests.runtime.security.attacks.site_of_a_run import LAYOUT, House, Peer, Site, answer_of, learner, unharmed

from gruppetto.chaos.malformed import NAUGHTY_NAMES, malformed_frames
from gruppetto.protocol.messages import Deferred, Goodbye, Heartbeat, Hello, Marked, Progress
from gruppetto.runtime.clock import ManualClock
from gruppetto.runtime.security.allowance import Rate
from gruppetto.runtime.security.identity import Identity, Role
from gruppetto.runtime.security.porter import Porter, Shown
from gruppetto.runtime.security.strangers import Strangers
from gruppetto.runtime.wire import HelloFrame, ProgressFrame, checksum, encode_answer, encode_frame

Play = Callable[..., None]
BOMB = 64 << 20


def plain_tls(house: House) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=house.certs / "ca.pem")


async def raw(site: Site, tls: ssl.SSLContext) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = site.url.rpartition("//")[2].partition(":")
    return await asyncio.open_connection(host, int(port), ssl=tls)


async def closed_by_peer(reader: asyncio.StreamReader) -> None:
    with suppress(OSError):
        while await reader.read(1 << 16):
            pass


def test_who_drips_his_headers_or_says_nothing_is_cut_off_and_there_is_room_for_others(
    at_the_site: Play, house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gruppetto.runtime.serving.PATIENCE_S", 0.4)
    monkeypatch.setattr("gruppetto.runtime.security.watch.LOOK_EVERY_S", 0.05)

    async def test(site: Site) -> None:
        good = await site.peer("a").join()
        drippers = [await raw(site, plain_tls(house)) for _ in range(20)]

        async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, text: bytes) -> None:
            with suppress(OSError):
                for octet in text:
                    writer.write(bytes([octet]))
                    await writer.drain()
                    await asyncio.sleep(0.02)
            await closed_by_peer(reader)

        halves = [b"GET /v1/status HTTP/1.1\r\nHost: x\r\nX-A: " + b"a" * 10_000, b"", b"PUT /v1/seed/0 HTTP/1.1\r\n"]
        # A request that says nothing of who asks does not make its connection known.
        known = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
        async with asyncio.timeout(60):
            await asyncio.gather(*(drip(*one, [*halves, known][n % 4]) for n, one in enumerate(drippers)))
        host, port = site.url.rpartition("//")[2].split(":")
        reader, writer = await asyncio.open_connection(host, int(port))  # and no TLS at all
        async with asyncio.timeout(60):
            await closed_by_peer(reader)
        writer.close()
        await unharmed(site, good)

    at_the_site(test)


def test_of_too_many_strangers_the_oldest_goes_first() -> None:
    class Line(asyncio.Transport):
        aborted = False

        def abort(self) -> None:
            self.aborted = True

        def is_closing(self) -> bool:
            return self.aborted

    class Protocol(asyncio.Protocol):
        def __init__(self) -> None:
            self.transport = Line()

    clock = ManualClock()
    strangers = Strangers(now=clock.now, patience_s=10.0, most=3)
    make = strangers.watched(Protocol)
    first = [make() for _ in range(3)]
    strangers.known(first[0])
    fourth, fifth = make(), make()
    assert [p.transport.aborted for p in (*first, fourth, fifth)] == [False, True, False, False, False]
    clock.advance(10.5)
    last = make()
    strangers.sweep()
    assert first[2].transport.aborted and fourth.transport.aborted and fifth.transport.aborted
    assert not last.transport.aborted and not first[0].transport.aborted and len(strangers) == 1
    assert strangers.broken_off == 4


def test_nothing_is_unpacked(at_the_site: Play) -> None:
    """Neither bodies nor frames: a bomb stays as small as it came."""

    async def test(site: Site) -> None:
        good, bad = await site.peer("a").join(), site.peer("b")
        bomb = gzip.compress(bytes(BOMB))
        for encoding in ("gzip", "deflate", "br", "zstd", "GZIP", "gzip, gzip"):
            for path in ("/v1/heartbeat", "/v1/seed/0"):
                method = "POST" if path.endswith("beat") else "PUT"
                async with bad.http.request(
                    method, site.url + path, data=bomb, headers={"Content-Encoding": encoding}
                ) as reply:
                    assert reply.status == 415
        socket = await bad.http.ws_connect(f"{site.url}/v1/control", compress=15)
        assert not socket.compress, "it is not agreed to"
        deflated = zlib.compressobj(wbits=-15)
        packed = deflated.compress(bytes(BOMB)) + deflated.flush(zlib.Z_SYNC_FLUSH)
        frame = bytes([0xC2, 0xFE]) + len(packed[:60_000]).to_bytes(2, "big") + bytes(4) + packed[:60_000]
        transport = socket._response.connection.transport  # type: ignore[union-attr]
        transport.write(frame)  # the bit that says "packed", though nobody has agreed to it
        assert (await socket.receive()).type in (aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSED)
        await unharmed(site, good)

    at_the_site(test)


def test_what_is_too_long_is_not_read(at_the_site: Play) -> None:
    async def test(site: Site) -> None:
        good, bad = await site.peer("a").join(), site.peer("b")
        huge = {"Content-Length": str(10**15)}

        async def never() -> Any:
            yield b"x"
            await asyncio.sleep(30)

        for path, headers, code in (
            ("/v1/heartbeat", huge, 400),
            ("/v1/heartbeat", {}, 411),  # in chunks without end
            ("/v1/seed/0", {**huge, "Gruppetto-Learner": "b", "Gruppetto-Incarnation": "1"}, 409),
            ("/v1/contribution/1/0", {**huge, "Gruppetto-Answer": encode_answer(bad.answer(1))}, 400),
        ):
            given = {"Gruppetto-Checksum": "00000000", "Gruppetto-Codec": "fp32", **headers}
            method = "POST" if path.endswith("beat") else "PUT"
            async with bad.http.request(method, site.url + path, data=never(), headers=given) as reply:
                assert reply.status == code, (path, await reply.text())
        async with bad.http.get(f"{site.url}/v1/status", headers={"X-Long": "x" * (1 << 17)}) as reply:
            assert reply.status == 400
        with suppress(aiohttp.ClientError):
            async with bad.http.get(f"{site.url}/v1/status?{'x' * (1 << 17)}") as reply:
                assert reply.status in (400, 414)
        socket = await bad.http.ws_connect(f"{site.url}/v1/control")
        await socket.send_bytes(bytes(17 << 20))
        assert (await socket.receive()).type in (aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSED)
        await unharmed(site, good)

    at_the_site(test)


def test_names_that_would_be_paths_touch_no_file(at_the_site: Play, house: House) -> None:
    def files() -> set[str]:
        there = (path.relative_to(house.place) for path in house.place.rglob("*"))
        return {str(path) for path in there if path.parts[0] != "syncer"}

    before = files()

    async def test(site: Site) -> None:
        good, bad = await site.peer("a").join(), site.peer("b")
        operator = site.peer("o", Identity(role=Role.OPERATOR, name="o"))
        kept = {str(path.relative_to(house.place)) for path in house.place.rglob("*") if path.is_dir()}
        for name in NAUGHTY_NAMES:
            socket = await bad.http.ws_connect(f"{site.url}/v1/control")
            hello = HelloFrame.of(Hello(learner=name, session=name, layout_hash=LAYOUT.layout_hash), LAYOUT)
            await socket.send_bytes(encode_frame(hello))
            assert (await socket.receive()).type is aiohttp.WSMsgType.CLOSE
            await socket.close()
            if name and name != "CON":  # which is a name here
                async with operator.http.post(f"{site.url}/v1/checkpoint", params={"name": name}) as reply:
                    assert reply.status in (400, 409, 431), (name, await reply.text())
        for path in ("/v1/fragment/../../etc/passwd", "/v1/fragment/%2e%2e", "/v1/fragment/0%00", "/v1/fragment/-1"):
            assert await bad.get(path) in (400, 404)
        for fragment in ("9" * 9, "9" * 10, "0" * 400, "٣", "1e3"):
            assert await bad.get(f"/v1/fragment/{fragment}") in (400, 404)
            assert (await bad.put(f"/v1/contribution/1/{fragment}", b""))[0] in (400, 404)
        for path in (
            "/dashboard/../../etc/passwd",
            "/dashboard/%2e%2e%2fpages.py",
            "/dashboard/..%5c",
            "/dashboard//etc",
        ):
            assert await operator.get(path) == 404
        now = {str(path.relative_to(house.place)) for path in house.place.rglob("*") if path.is_dir()}
        assert now == kept
        await unharmed(site, good)

    at_the_site(test)
    assert files() == before


def frames_of(name: str) -> list[bytes]:
    """Valid ones of every kind that a learner says, of an incarnation that nobody has."""
    who: dict[str, Any] = {"learner": name, "incarnation": 9}
    news = Progress(**who, epoch=1, clock=1, step_s=0.1, steps=1, tokens=1, cursor=1)
    frames = [
        HelloFrame.of(Hello(learner=name, session="s", layout_hash=LAYOUT.layout_hash), LAYOUT),
        ProgressFrame(progress=news, metrics={"loss": 1.0}),
        Deferred(**who, epoch=1, round=1, expected_s=1.0),
        Marked(**who, epoch=1, mark="m", ok=True, text=""),
        Goodbye(**who),
        Heartbeat(**who),
        answer_of(name, 1),
    ]
    return [encode_frame(frame) for frame in frames]


async def pelt(site: Site, bad: Peer, count: int, seed: int) -> None:
    """Say ``count`` malformed things on every route that takes a message, with good papers; most of them where it
    takes no new connection."""
    made = malformed_frames([*frames_of("b"), *frames_of("a")], random.Random(seed))
    for n in range(count):
        frame = next(made)
        if n % 20 == 0:
            async with bad.http.ws_connect(f"{site.url}/v1/control", max_msg_size=0) as socket:
                for one in (frame, next(made)):
                    with suppress(ConnectionError, aiohttp.ClientError):
                        await socket.send_bytes(one)
        elif n % 3:
            async with bad.http.post(f"{site.url}/v1/heartbeat", data=frame) as reply:
                assert reply.status in (204, 400, 403), await reply.text()
        else:
            header = base64.urlsafe_b64encode(frame[:3000]).decode()
            body = frame[:28].ljust(28)
            given = {"Gruppetto-Codec": "fp32", "Gruppetto-Checksum": f"{checksum(body):08x}"}
            async with bad.http.put(
                f"{site.url}/v1/contribution/1/0", data=body, headers={**given, "Gruppetto-Answer": header}
            ) as reply:
                assert reply.status in (200, 400, 403), await reply.text()


def test_malformed_messages_by_the_thousand_change_nothing(
    at_the_site: Play, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for kind in ("control", "heartbeat"):
        monkeypatch.setitem(RATES, kind, Rate(per_s=1e6, at_once=1e6))
    monkeypatch.setattr("gruppetto.runtime.security.porter.REQUESTS", RATES)

    async def test(site: Site) -> None:
        good = await site.peer("a").join()
        pelting = asyncio.gather(*(pelt(site, site.peer("b"), 200, seed) for seed in range(3)))
        while not pelting.done():
            await good.ride()
        await pelting
        await unharmed(site, good)
        assert (await site.status())["rejected"]["malformed"] > 200

    with caplog.at_level(logging.WARNING):
        at_the_site(test)
    assert len(caplog.records) < 400, "what is said of it stays short"
    assert all(len(record.getMessage()) < 2000 for record in caplog.records)
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


RATES = {kind: Rate(per_s=1e5, at_once=1e5) for kind in ("control", "heartbeat", "tensors", "looks")}


def test_who_asks_too_often_is_told_to_come_again_and_takes_nobody_elses_turn(
    at_the_site: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Nothing is granted anew while the test lasts: how long it takes is nobody's promise.
    rates = {**RATES, "looks": Rate(per_s=1e-3, at_once=10.0), "control": Rate(per_s=1e-3, at_once=2.0)}
    monkeypatch.setattr("gruppetto.runtime.security.porter.REQUESTS", rates)

    async def test(site: Site) -> None:
        good, bad = await site.peer("a").join(), site.peer("b")
        codes = await asyncio.gather(*(bad.get("/v1/status") for _ in range(60)))
        assert codes.count(200) == 10 and codes.count(429) == 50
        async with bad.http.get(f"{site.url}/v1/status") as reply:
            assert reply.status == 429 and int(reply.headers["Retry-After"]) >= 1
        for _ in range(2):
            await bad.http.ws_connect(f"{site.url}/v1/control")
        with pytest.raises(aiohttp.WSServerHandshakeError, match="429"):
            await bad.http.ws_connect(f"{site.url}/v1/control")
        await unharmed(site, good)

    at_the_site(test)


def test_one_learner_has_so_many_control_connections_and_no_more(at_the_site: Play) -> None:
    async def test(site: Site) -> None:
        good, bad = await site.peer("a").join(), site.peer("b")
        open_ones = [await bad.http.ws_connect(f"{site.url}/v1/control") for _ in range(4)]
        with pytest.raises(aiohttp.WSServerHandshakeError, match="503"):
            await bad.http.ws_connect(f"{site.url}/v1/control")
        await open_ones[0].close()
        while True:  # until the syncer has let it go
            with suppress(aiohttp.WSServerHandshakeError):
                await bad.http.ws_connect(f"{site.url}/v1/control")
                break
        await unharmed(site, good)

    at_the_site(test)


def test_allowances_of_those_who_are_gone_are_forgotten(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gruppetto.runtime.security.porter.MAX_ALLOWANCES", 10)
    porter = Porter(house.certs, clock=ManualClock())
    for n in range(1000):
        assert porter.wait_s(Shown(identity=learner(f"l{n}"), serial="1"), "looks") == 0.0
    assert len(porter._allowances) == 10
    assert "secret" not in repr(Shown(identity=learner("a"), token="secret"))


def test_a_flood_of_good_frames_is_read_at_a_walk(at_the_site: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gruppetto.runtime.control_server.FRAMES", Rate(per_s=100.0, at_once=10.0))

    async def test(site: Site) -> None:
        good = await site.peer("a").join()
        bad = await site.peer("b").dial()
        frame = frames_of("b")[1]
        loop = asyncio.get_running_loop()
        began = loop.time()
        for _ in range(60):
            await bad.socket.send_bytes(frame)
        await bad.socket.send_bytes(encode_frame(Goodbye(learner="a", incarnation=1)))  # closes it, when it is read
        await bad.until_closed()
        assert loop.time() - began > 0.4
        await good.ride()

    at_the_site(test)
