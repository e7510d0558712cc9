"""A state that lies in portions at several ranks, taken whole or in part: whoever wants whatever gets it, once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests import steady

from gruppetto.errors import ConnectionLost, GruppettoError, ProtocolError
from gruppetto.numerics.runs import Runs
from gruppetto.protocol.messages import Donor
from gruppetto.protocol.units import Version
from gruppetto.runtime import spans as spans_module
from gruppetto.runtime.companions import Companions, Errand, lacking
from gruppetto.runtime.donation import (
    ALIGN_BYTES,
    Cut,
    Manifest,
    NamedTensor,
    Portion,
    decode_manifest,
    encode_manifest,
)
from gruppetto.runtime.donor import DonationServer
from gruppetto.runtime.joining import Fetched, Others, Visit
from gruppetto.runtime.orders import Fetch, RankOrder, decode_order, encode_order
from gruppetto.runtime.portion_donor import PortionServer
from gruppetto.runtime.spans import Needs, everything, places_of, requests_for

WHO = {"run_id": "r", "layout_hash": "l", "fragmentation_hash": "f"}
HELD = (Version(7),)


def manifest_of(sizes: list[int], chunk_bytes: int = 300) -> Manifest:
    tensors, end = [], 0
    for n, size in enumerate(sizes):
        tensors.append(NamedTensor(part="buffer", name=f"t{n}", dtype="uint8", shape=(size,), offset=end))
        end = -(-(end + size) // ALIGN_BYTES) * ALIGN_BYTES
    return Manifest(
        cut="c0", versions=HELD, optimizer="", tensors=tuple(tensors), total_bytes=end, chunk_bytes=chunk_bytes, **WHO
    )


def dealt(manifest: Manifest, ranks: int, width: int) -> Manifest:
    """Every tensor in pieces of ``width`` bytes, rank by rank."""
    given: list[list[tuple[int, int]]] = [[] for _ in range(ranks)]
    for tensor in manifest.tensors:
        for turn, start in enumerate(range(0, tensor.payload_bytes, width)):
            stop = min(start + width, tensor.payload_bytes)
            given[turn % ranks].append((tensor.offset + start, tensor.offset + stop))
    addresses = ["", *(f"127.0.0.1:{port}" for port in range(1, ranks))]
    portions = (Portion(address=a, spans=tuple(s)) for a, s in zip(addresses, given, strict=True) if s)
    return replace(manifest, portions=tuple(portions))


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 700), min_size=1, max_size=6),
    ranks=st.integers(1, 4),
    width=st.integers(1, 400),
    gap=st.sampled_from([0, 30, 1 << 16]),
    data=st.data(),
)
def test_every_byte_that_is_wanted_comes_once_and_goes_where_it_belongs(
    sizes: list[int], ranks: int, width: int, gap: int, data: st.DataObject
) -> None:
    """Against the state itself, with nonsense at each rank where the others have theirs."""
    plain = manifest_of(sizes)
    manifest = decode_manifest(encode_manifest(dealt(plain, ranks, width) if ranks > 1 else plain))
    state = np.random.default_rng(0).integers(0, 256, plain.total_bytes, np.uint8)
    here = {
        portion.address: np.concatenate([np.arange(plain.total_bytes)[a:b] for a, b in portion.spans])
        for portion in manifest.portions
    }
    needs = []
    for size in sizes:
        cuts = sorted(data.draw(st.lists(st.integers(0, size), max_size=4)))
        needs.append(Runs.of([*pairwise(cuts)][::2]) if data.draw(st.booleans()) else Runs.of([(0, size)]))
    body, came = np.full(places_of(needs)[-1], 255, np.uint8), 0
    before = spans_module.GAP_BYTES
    spans_module.GAP_BYTES = gap
    try:
        requests = requests_for(manifest, needs)
    finally:
        spans_module.GAP_BYTES = before
    for request in requests:
        assert 0 < request.stop - request.start <= manifest.chunk_bytes
        answer = np.full(plain.total_bytes, 99, np.uint8)
        if manifest.portions:
            answer[here[request.address]] = state[here[request.address]]
        else:
            answer = state
        if request.goes_to is not None:
            body[request.goes_to : request.goes_to + request.stop - request.start] = answer[
                request.start : request.stop
            ]
        for start, stop, place in request.spans:
            came += stop - start
            if request.goes_to is None:
                body[place : place + stop - start] = answer[start:stop]
    assert came == sum(runs.numel for runs in needs)
    fetched = Fetched(manifest, body, needs)
    for tensor, runs in zip(manifest.tensors, needs, strict=True):
        wanted = [state[tensor.offset + a : tensor.offset + b] for a, b in runs]
        assert np.array_equal(fetched.octets(tensor), np.concatenate([*wanted, np.empty(0, np.uint8)]))


def test_portions_that_are_none_are_refused() -> None:
    good = dealt(manifest_of([500, 20]), 2, 100)
    first, second = good.portions
    for wrong in (
        (first,),
        (first, second, second),
        (first, replace(second, spans=((*second.spans[0][:1], second.spans[0][1] + 1), *second.spans[1:]))),
        (first, replace(second, spans=(*second.spans, (good.total_bytes, good.total_bytes + 5)))),
        (first, replace(second, spans=second.spans[::-1])),
        (first, replace(second, address="nowhere")),
    ):
        with pytest.raises(ProtocolError):
            decode_manifest(encode_manifest(replace(good, portions=wrong)))


# ── over loopback ────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(slots=True)
class Core:
    linked: bool = True
    step_s: float = 0.01
    held: tuple[Version, ...] = HELD


class House:
    """A donor of two ranks, and its state."""

    def __init__(self) -> None:
        self.manifest, self.released = manifest_of([900, 40, 333]), list[str]()
        self.state = np.random.default_rng(1).integers(0, 256, self.manifest.total_bytes, np.uint8)
        how: dict[str, Any] = {"token": "t", "stall_s": 1.0, "core": Core()}
        self.first, self.second = DonationServer("127.0.0.1", 0, **how), PortionServer("127.0.0.1", 0, **how)
        self.second.on_idle = lambda: self.released.append("idle")

    def cut(self, address: str, spans: tuple[tuple[int, int], ...]) -> Cut:
        def release() -> None:
            self.released.append(address)
            if not address:
                self.second.drop("c0")

        return Cut(self.manifest, [(a, self.state[a:b].data) for a, b in spans], release=release)

    def give(self) -> None:
        self.manifest = dealt(self.manifest, 2, 70)
        own, other = self.manifest.portions
        self.manifest = replace(self.manifest, portions=(own, replace(other, address=self.second.address)))
        self.second.hold(self.cut(self.second.address, other.spans))
        self.first.give(self.cut("", own.spans))

    def visit(self, needs: Callable[[Manifest], Needs] = everything, others: Others | None = None) -> Visit:
        return Visit(self.at, learner="n", session="s", token="t", stall_s=1.0, needs=needs, others=others)

    def live(self, story: Callable[[House], Awaitable[None]]) -> None:
        async def main() -> None:
            self.at = await self.first.open()
            await self.second.open()

            async def train() -> None:
                while not self.first.wants_cut():
                    await asyncio.sleep(0.002)
                self.give()

            training = asyncio.create_task(train())
            try:
                await story(self)
                async with asyncio.timeout(60.0):
                    while "idle" not in self.released:
                        await asyncio.sleep(0.002)
                assert self.released[:2] == ["", self.second.address], "both ranks let go of it"
            finally:
                training.cancel()
                await self.first.close()
                await self.second.close()

        steady.run(main())

    def same(self, came: Fetched, needs: Needs) -> None:
        for tensor, runs in zip(came.manifest.tensors, needs, strict=True):
            wanted = [self.state[tensor.offset + a : tensor.offset + b] for a, b in runs]
            assert np.array_equal(came.octets(tensor), np.concatenate([*wanted, np.empty(0, np.uint8)]))


def some(manifest: Manifest) -> Needs:
    return [Runs.of([(t.payload_bytes // 3, t.payload_bytes // 2)]) for t in manifest.tensors]


@pytest.mark.parametrize("needs", [everything, some])
def test_one_guest_takes_from_both_ranks(needs: Callable[[Manifest], Needs]) -> None:
    async def story(house: House) -> None:
        visit = house.visit(needs)
        house.same(await visit.fetch(HELD, **WHO), needs(house.manifest))
        assert visit.came_bytes == visit.total_bytes == sum(runs.numel for runs in needs(house.manifest))

    House().live(story)


@contextmanager
def companions() -> Iterator[tuple[Companions, list[Fetch]]]:
    orders: list[Fetch] = []

    def order(one: RankOrder) -> None:
        again = decode_order(encode_order(one))
        assert isinstance(again, Fetch)
        orders.append(again)

    yield Companions(order, threading.Condition()), orders


@pytest.mark.parametrize("fails", [False, True])
def test_ranks_take_a_state_together_or_not_at_all(fails: bool) -> None:
    async def story(house: House) -> None:
        with companions() as (others, orders):
            others.heard(0, lacking(7, 3))  # of an errand long ago
            visit = house.visit(some, Errand(others, Donor(learner="d", address=house.at)))
            own = asyncio.create_task(visit.fetch(HELD, **WHO))
            while not orders:
                await asyncio.sleep(0.002)
            (order,) = orders
            assert order.number == 1 and order.donor.learner == "d"
            came = await house.visit().fetch_part(decode_manifest(order.manifest))
            house.same(came, everything(came.manifest))
            assert not own.done() and not house.released, "rank 0 stays until all have theirs"
            others.heard(0, lacking(1, 4)) if fails else others.heard(1, 0)
            if fails:
                with pytest.raises(ConnectionLost, match="rank 4 has not got its part"):
                    await own
            else:
                house.same(await own, some(came.manifest))

    House().live(story)


@pytest.mark.parametrize("gone", ["at once", "on the way"])
def test_a_rank_that_has_gone_costs_the_donor(gone: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In bounded time, and the rank that is still there lets go of its cut."""
    served: list[str] = []
    serve = PortionServer._cut_of

    def goes(self: PortionServer, guest: str, name: str) -> Cut | None:
        served.append(name)
        if gone == "at once" or len(served) > 1:
            raise ConnectionResetError
        return serve(self, guest, name)

    monkeypatch.setattr(PortionServer, "_cut_of", goes)

    async def story(house: House) -> None:
        visit = house.visit()
        with pytest.raises(GruppettoError, match=r"HTTP 500|Connection|disconnected"):
            await visit.fetch(HELD, **WHO)
        assert visit.came_bytes < visit.total_bytes

    House().live(story)


def test_a_portion_is_for_who_knows_its_name_and_shows_the_token() -> None:
    async def story(house: House) -> None:
        await house.visit().fetch(HELD, **WHO)
        late = replace(house.manifest, cut="c0")
        with pytest.raises(ProtocolError, match="404"):
            await house.visit().fetch_part(late)
        house.second.hold(house.cut("again", ()))
        await asyncio.sleep(0.01)
        visit = Visit(house.second.address, learner="n", session="s", token="other", stall_s=1.0)
        with pytest.raises(GruppettoError, match="401"):
            await visit.fetch_part(replace(late, portions=()))
        with pytest.raises(GruppettoError, match="ask rank 0"):
            await Visit(house.second.address, learner="n", session="s", token="t", stall_s=1.0).fetch(HELD, **WHO)

    House().live(story)
