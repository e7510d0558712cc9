"""The same attackers on the road of bodies, with the real client: it is no way around what HTTP refuses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest
from tests.runtime.security.attacks.site_of_a_run import LAYOUT, answer_of, learner, run, unharmed

from gruppetto.errors import ConnectionLost, ProtocolError
from gruppetto.protocol.units import Fragment, Incarnation, LearnerId, Version
from gruppetto.runtime.address import SyncerAddress
from gruppetto.runtime.body_stream import BodyStream
from gruppetto.runtime.body_wire import UPGRADE
from gruppetto.runtime.http_client import HttpSyncer
from gruppetto.runtime.leases import LeasePool
from gruppetto.runtime.security.allowance import Rate
from gruppetto.runtime.security.identity import Identity, Role
from gruppetto.runtime.security.places import Papers

BODY = memoryview(np.ones(7, np.float32)).cast("B")
Play = Callable[..., None]


@asynccontextmanager
async def on_the_road(site: Any, papers: Papers) -> AsyncIterator[HttpSyncer]:
    address = SyncerAddress.parse(site.url)
    async with HttpSyncer(address, token=papers.token, tls=papers.tls, stall_s=10.0) as client:
        yield client
        assert not client._road._none_at, "it went by HTTP"


async def fetch(client: HttpSyncer) -> Version:
    return await client.fetch(Fragment(0), Version(0), LAYOUT.layout_hash, LeasePool().lend(7))


def idle(client: HttpSyncer) -> list[BodyStream]:
    return [stream for streams in client._road._idle.values() for stream in streams]


def test_nobody_speaks_for_another_or_does_what_his_role_may_not(at_the_site: Play) -> None:
    async def test(site: Any) -> None:
        good = await site.peer("a").join()
        for who, why in (
            (learner("b"), "b may not speak for a"),
            (Identity(role=Role.OPERATOR, name="o"), "not train"),
        ):
            async with on_the_road(site, site.house.papers(who)) as client:
                for _ in range(2):
                    assert await fetch(client) == 0 and len(idle(client)) == 1
                    with pytest.raises(ProtocolError, match=f"HTTP 403, .*{why}"):
                        await client.contribute(answer_of("a", 1), "fp32", BODY)
                    with pytest.raises(ProtocolError, match=f"HTTP 403, .*{why}"):
                        await client.contribute(answer_of("a", 1), "fp32", BODY, again=True)
                    with pytest.raises(ProtocolError, match=f"HTTP 403, .*{why}"):
                        await client.seed(LearnerId("a"), Incarnation(1), Fragment(0), BODY)
        assert (await site.status())["rejected"].get("malformed", 0) == 0
        opening = {"Connection": "Upgrade", "Upgrade": UPGRADE}
        viewer = site.peer("v", Identity(role=Role.VIEWER, name="v"))
        assert await viewer.get("/v1/bodies", **opening) == 403
        assert await site.stranger().get("/v1/bodies", **opening) == 401
        assert await site.stranger().get("/v1/bodies", **opening, Authorization="Bearer gt-x") == 401
        await unharmed(site, good)

    at_the_site(test)


def test_who_is_revoked_loses_his_connections(at_the_site: Play, house: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gruppetto.runtime.security.watch.LOOK_EVERY_S", 0.05)

    async def test(site: Any) -> None:
        good, papers = await site.peer("a").join(), house.papers(learner("b"))
        async with on_the_road(site, papers) as gone, on_the_road(site, house.papers(learner("a"))) as stays:
            assert await fetch(gone) == await fetch(stays) == 0
            (stream,), (other,) = idle(gone), idle(stays)
            assert house.authority.revoke(learner("b")) == 1
            async with asyncio.timeout(60):
                while stream.is_open:
                    await asyncio.sleep(0.01)
            with pytest.raises(ProtocolError, match="HTTP 401"):
                await fetch(gone)
            assert other.is_open and await fetch(stays) == 0
        await unharmed(site, good)

    at_the_site(test)


def test_what_is_asked_on_one_connection_counts_and_an_identity_has_so_many(
    at_the_site: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    rates = dict.fromkeys(("control", "heartbeat", "tensors", "looks"), Rate(per_s=1e5, at_once=1e5))
    rates["tensors"] = Rate(per_s=0.001, at_once=20.0)
    monkeypatch.setattr("gruppetto.runtime.security.porter.REQUESTS", rates)
    monkeypatch.setattr("gruppetto.runtime.body_server.MAX_CONNECTIONS_AN_IDENTITY", 1)

    async def test(site: Any) -> None:
        good = await site.peer("a").join()
        async with on_the_road(site, site.house.papers(learner("b"))) as client:
            await fetch(client)
            opening = {"Connection": "Upgrade", "Upgrade": UPGRADE}
            assert await site.peer("b").get("/v1/bodies", **opening) == 503
            for _ in range(17):  # and the two that opened connections
                await fetch(client)
            assert len(idle(client)) == 1
            with pytest.raises(ConnectionLost, match="429, learner b asks too often"):
                await fetch(client)
        await unharmed(site, good)

    at_the_site(test)


def test_whoever_sends_hears_of_an_abort_however_slowly_the_other_reads() -> None:
    async def test() -> None:
        streams: list[BodyStream] = []

        def made() -> BodyStream:
            streams.append(BodyStream())
            return streams[-1]

        server = await asyncio.get_running_loop().create_server(made, "127.0.0.1", 0)
        _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        while not (streams and streams[0].is_open):
            await asyncio.sleep(0.01)
        sending = asyncio.create_task(streams[0].send(bytes(64 << 20)))
        await asyncio.sleep(0.05)
        streams[0].abort()
        async with asyncio.timeout(60):
            with pytest.raises(ConnectionLost):
                await sending
        writer.close()
        server.close()

    run(test())
