"""Connections of a learner: names are asked anew, all their addresses are tried, and idle ones may be dropped."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests import steady

from gruppetto.errors import ConnectionLost
from gruppetto.protocol.units import Fragment, Incarnation, LearnerId
from gruppetto.runtime.address import SyncerAddress
from gruppetto.runtime.dialling import SMALL_BYTES, Segments, connected, connected_within
from gruppetto.runtime.http_client import HttpSyncer
from gruppetto.runtime.listening import listening


def info(host: str, port: int) -> tuple[Any, ...]:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return (family, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (host, port))


@given(stalls=st.lists(st.booleans(), max_size=20))
def test_segments_change_only_for_what_was_made_as_they_are_now(stalls: list[bool]) -> None:
    segments = Segments()
    for small in stalls:
        before = segments.small
        segments.stalled(small=small)
        assert segments.small == (not before if small == before else before)


def test_small_segments_are_agreed_on_by_both_ends() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        segments, port = Segments(), server.getsockname()[1]
        segments.stalled(small=False)
        with connected_within("127.0.0.1", port, segments, 10.0) as made, server.accept()[0] as other:
            for end in (made, other):
                assert end.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG) <= SMALL_BYTES


def test_a_thread_tries_every_address_of_a_name() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_server(("127.0.0.1", 0)) as gone:
        port, dead = server.getsockname()[1], gone.getsockname()[1]
        gone.close()
        names = {"both": [info("127.0.0.1", dead), info("127.0.0.1", port)], "none": [info("127.0.0.1", dead)]}

        def look_up(host: str, port: int, **how: object) -> list[tuple[Any, ...]]:
            return names[host]

        with connected_within("both", port, Segments(), 10.0, look_up) as made:
            assert made.getpeername()[1] == port
            assert made.gettimeout() == 10.0
        with pytest.raises(OSError):
            connected_within("none", port, Segments(), 10.0, look_up)


def with_names(names: Callable[[], list[tuple[Any, ...]]]) -> None:
    """In this loop every name has these addresses."""

    async def getaddrinfo(host: object, port: object, **how: object) -> list[tuple[Any, ...]]:
        return names()

    asyncio.get_running_loop().getaddrinfo = getaddrinfo  # type: ignore[assignment,method-assign]


def test_an_address_that_leads_nowhere_costs_a_quarter_of_a_second() -> None:
    steady.run(past_an_address_that_leads_nowhere())


async def past_an_address_that_leads_nowhere() -> None:
    """Whose queue is full does not answer, like a host that is not there."""
    server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    with socket.create_server(("127.0.0.2", port), backlog=0) as full, socket.create_connection(("127.0.0.2", port)):
        with_names(lambda: [info("127.0.0.2", port), info("127.0.0.1", port)])
        async with asyncio.timeout(20.0):  # Linux would ask for two minutes
            made = await connected("syncer.example", port, Segments())
        assert made.getpeername() == ("127.0.0.1", port)
        made.close()
        full.close()
    server.close()


def test_a_name_that_has_moved_is_asked_anew() -> None:
    """Each of two syncers says which it is; a cache of names would lead back to the first."""
    steady.run(after_a_name_that_has_moved())


async def after_a_name_that_has_moved() -> None:
    asked: list[int] = []

    def answers(number: int) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Any]:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with suppress(asyncio.IncompleteReadError):
                while await reader.readuntil(b"\r\n\r\n"):
                    asked.append(number)
                    writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
            writer.close()

        return serve

    first = await asyncio.start_server(answers(1), "127.0.0.1", 0)
    port = first.sockets[0].getsockname()[1]
    second = await asyncio.start_server(answers(2), "127.0.0.2", port)
    now = "127.0.0.1"
    with_names(lambda: [info(now, port)])
    async with HttpSyncer(SyncerAddress.parse(f"syncer.example:{port}"), token=None, tls=None, stall_s=20.0) as client:
        assert await client.directory() is None
        now = "127.0.0.2"
        assert await client.directory() is None
        assert asked == [1, 1]  # a connection is kept as long as it holds
        await client.forget()
        assert await client.directory() is None
        assert asked == [1, 1, 2]
    for server in (first, second):
        server.close()


def test_what_stands_still_is_tried_with_small_segments_and_then_with_usual_ones_again() -> None:
    steady.run(against_a_wall())


async def against_a_wall() -> None:
    """It takes connections, and says nothing."""
    over = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await over.wait()
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    address = SyncerAddress.parse(f"127.0.0.1:{server.sockets[0].getsockname()[1]}")
    async with HttpSyncer(address, token=None, tls=None, stall_s=0.1) as client:
        for small in (True, False):
            with pytest.raises(ConnectionLost, match="nothing moved for too long"):
                await client.seed(LearnerId("a"), Incarnation(1), Fragment(0), memoryview(bytes(4)))
            assert client.segments.small == small
        for small in (True, False):
            with pytest.raises(ConnectionLost, match="nothing moved for too long"):
                async with client.control():
                    pass
            assert client.segments.small == small
    over.set()
    server.close()


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="no IPv6 here, or not together with IPv4")
def test_everywhere_is_both_families() -> None:
    made = listening("::", 0)
    assert made is not None
    with made:
        port = made.getsockname()[1]
        for host in ("127.0.0.1", "::1"):
            with socket.create_connection((host, port), timeout=10.0), made.accept()[0]:
                pass
    assert listening("127.0.0.1", 0) is None
    assert listening("::1", 0) is None
