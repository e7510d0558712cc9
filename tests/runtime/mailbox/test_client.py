"""A learner's end of a mailbox: a bucket is believed no more than a network."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import numpy as np
import pytest
from obstore.store import MemoryStore
from tests import steady

from gruppetto.errors import ConnectionLost, ProtocolError
from gruppetto.protocol.messages import Goodbye
from gruppetto.protocol.units import Fragment, Version
from gruppetto.runtime.leases import LeasePool
from gruppetto.runtime.mailbox.address import MailboxAddress
from gruppetto.runtime.mailbox.bucket import Bucket
from gruppetto.runtime.mailbox.client import MailSyncer
from gruppetto.runtime.mailbox.label import Label, fragment_name, write_label
from gruppetto.runtime.mailbox.letters import Letter, box_name, decode_letter, encode_letter
from gruppetto.runtime.mailbox.post import Post
from gruppetto.runtime.mailbox.tenure import LEASE, Lease
from gruppetto.runtime.wire import FROM_SYNCER, checksum

BODY = np.arange(7, dtype=np.float32)
GOOD = {"version": 3, "codec": "fp32", "layout": "layout", "checksum": f"{checksum(BODY.tobytes()):08x}", "length": 28}
ADDRESS = MailboxAddress.parse("s3://lab/tour?poll=0.02")


class Place:
    def __init__(self) -> None:
        self.bucket = Bucket(MemoryStore(), "s3://lab/tour", limit_s=5.0)
        self.client = MailSyncer(ADDRESS, stall_s=0.4, bucket=self.bucket)

    async def serve(self, **change: Any) -> None:
        lease = Lease(**{"term": 1, "holder": "x", "run_id": "tour", "epoch": 1, "lease_s": 5.0, **change})
        await self.bucket.put_over(LEASE, msgspec.json.encode(lease))

    async def fetch(self, version: int = 3) -> tuple[Version, np.ndarray[Any, Any]]:
        room = LeasePool().lend(7)
        came, _ = await self.client.fetch_from(None, Fragment(0), Version(version), "layout", room)
        return came, room.values.copy()

    async def box(self) -> str:
        return next(one.name for one in await self.bucket.listing("00000001/box")).split("/")[2]


def run(test: Callable[[Place], Awaitable[None]]) -> None:
    async def inside() -> None:
        await test(Place())

    steady.run(inside())


@pytest.mark.parametrize(
    ("data", "error", "says"),
    [
        (b"", ConnectionLost, "damaged"),
        (b"\xff" * 40, ProtocolError, "a label of"),
        (b"\x00\x00\x00\x04abcd" + bytes(30), ProtocolError, "malformed label"),
        ({"layout": "another"}, ProtocolError, "another layout"),
        ({"codec": "int4"}, ProtocolError, "no known encoding"),
        ({"length": 32}, ProtocolError, "no known encoding"),
        ({"checksum": "00000000"}, ConnectionLost, "damaged"),
        ({"version": 2}, ConnectionLost, "in version 2, not yet 3"),
        (BODY.tobytes()[:20], ConnectionLost, "damaged"),
        (BODY.tobytes() + b"more", ProtocolError, "longer than it says"),
        (bytes(10_000), ProtocolError, "has .* bytes, where 4124 may be"),
    ],
)
def test_a_fragment_that_is_none(data: Any, error: type[Exception], says: str) -> None:
    async def test(here: Place) -> None:
        await here.serve()
        good = write_label(Label(**GOOD))  # type: ignore[arg-type]
        name = fragment_name(1, 0)
        await here.bucket.put_over(name, good + BODY.tobytes())
        async with here.client.control():
            came, values = await here.fetch()
            assert came == 3 and np.array_equal(values, BODY)
            if isinstance(data, dict):
                wrong = write_label(Label(**{**GOOD, **data})) + BODY.tobytes()  # type: ignore[arg-type]
            else:
                wrong = data if len(data) in (0, 40, 38) else good + data
            await here.bucket.put_over(name, wrong)
            with pytest.raises(error, match=says):
                await here.fetch()

    run(test)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"term": 2}, "another syncer serves the run now"),
        ({"ended": True}, "the syncer has stopped"),
        (None, "has not renewed its lease"),
    ],
)
def test_a_box_whose_syncer_has_gone_is_closed(change: dict[str, Any] | None, says: str) -> None:
    async def test(here: Place) -> None:
        lease_s = 0.1 if change is None else 2.0
        await here.serve(lease_s=lease_s)
        async with here.client.control() as post:
            if change is not None:
                await here.serve(lease_s=lease_s, **change)
            with pytest.raises(ConnectionLost, match=says):
                await post.receive(FROM_SYNCER)
            with pytest.raises(ConnectionLost, match=says):
                await post.hand_in(b"x", lambda number: pytest.fail("nothing is handed in any more"))
        with pytest.raises(ConnectionLost, match="does not renew its lease" if change is None else "lab/tour"):
            if change == {"term": 2}:
                raise ConnectionLost("s3://lab/tour")
            async with here.client.control():
                pass

    run(test)


def test_who_was_never_answered_leaves_nothing_behind() -> None:
    async def test(here: Place) -> None:
        await here.serve()
        async with here.client.control() as post:
            await post.send(Goodbye(learner="a", incarnation=1))
            while not await here.bucket.listing("00000001/box"):
                await asyncio.sleep(0.005)
        assert not await here.bucket.listing("00000001/box")

    run(test)


def test_nonsense_from_the_bucket_ends_the_connection_and_somebody_elses_letter_too() -> None:
    @asynccontextmanager
    async def opened(here: Place) -> AsyncIterator[tuple[Post, str]]:
        await here.serve()
        async with here.client.control() as post:
            await post.send(Goodbye(learner="a", incarnation=1))
            while not await here.bucket.listing("00000001/box"):
                await asyncio.sleep(0.005)
            yield post, await here.box()

    async def nonsense(here: Place) -> None:
        async with opened(here) as (post, box):
            await here.bucket.put_new(box_name(1, box, "down", 0), b"nonsense")
            with pytest.raises(ConnectionLost, match="not a letter"):
                await post.receive(FROM_SYNCER)

    async def usurper(here: Place) -> None:
        async with opened(here) as (post, box):
            await here.bucket.put_new(box_name(1, box, "up", 1), encode_letter(Letter(bye=True)))
            await post.send(Goodbye(learner="a", incarnation=2))
            with pytest.raises(ConnectionLost, match="somebody else writes into this learner's box"):
                await post.receive(FROM_SYNCER)
        found = await here.bucket.get(box_name(1, box, "up", 1), 1000)
        assert found is not None and decode_letter(found[0]).bye, "what was there is there still"

    run(nonsense)
    run(usurper)
