"""One learner gives its state to another, over loopback: whole, in order, and however often it breaks off."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from aiohttp import ClientSession, web
from hypothesis import given
from hypothesis import strategies as st
from tests import steady

from gruppetto.errors import ConnectionLost, GruppettoError, ProtocolError, StateError
from gruppetto.protocol.actions import Recover
from gruppetto.protocol.donors import Source
from gruppetto.protocol.messages import Donor as Address
from gruppetto.protocol.units import Version
from gruppetto.runtime import donor as donor_module
from gruppetto.runtime.clock import MonotonicClock
from gruppetto.runtime.donation import (
    Cut,
    Manifest,
    NamedNumber,
    NamedTensor,
    decode_manifest,
    digest_of,
    encode_manifest,
)
from gruppetto.runtime.donor import MAX_GUESTS, DonationServer
from gruppetto.runtime.joining import DonorBusy, Fetched, Visit
from gruppetto.runtime.pacing import Bucket
from gruppetto.runtime.recovering import Recovering

WHO = {"run_id": "r", "layout_hash": "l", "fragmentation_hash": "f"}
CHUNK = 1000


@dataclass(slots=True, kw_only=True)
class Core:
    """What the server sees of a learner."""

    linked: bool = True
    step_s: float = 0.01
    held: tuple[Version, ...] = (Version(7), Version(6))


@dataclass(slots=True, kw_only=True)
class Donor:
    """A server, and the training loop that would answer it: a boundary every few milliseconds."""

    core: Core = field(default_factory=Core)
    token: str | None = None
    payload: np.ndarray = field(default_factory=lambda: np.arange(10_500, dtype=np.int64).astype(np.uint8))
    pace: Bucket | None = None
    server: DonationServer = None  # type: ignore[assignment]
    address: str = ""
    made: int = 0
    released: int = 0

    def cut(self) -> Cut:
        self.made += 1
        tensor = NamedTensor(
            part="optimizer", name="w", key="exp_avg", dtype="uint8", shape=(self.payload.size,), offset=0
        )
        manifest = Manifest(
            cut=f"{self.made:x}",
            versions=self.core.held,
            optimizer="AdamW",
            tensors=(tensor,),
            numbers=(NamedNumber(name="w", key="step", value=3),),
            total_bytes=self.payload.size,
            chunk_bytes=CHUNK,
            **WHO,
        )

        def release() -> None:
            self.released += 1

        return Cut(manifest, [(0, self.payload.data)], release=release)

    async def train(self) -> None:
        while True:
            await asyncio.sleep(0.002)
            if self.server.wants_cut():
                self.server.give(self.cut())

    def visit(self, name: str = "new", token: str | None = None, stall_s: float = 5.0) -> Visit:
        return Visit(self.address, learner=name, session=f"{name}-1", token=token or self.token, stall_s=stall_s)


def at(donor: Donor, story: Callable[[Donor], Awaitable[Any]]) -> Any:
    """Let the donor live while the story is told."""

    async def main() -> Any:
        donor.server = DonationServer("127.0.0.1", 0, token=donor.token, stall_s=1.0, core=donor.core, pace=donor.pace)
        donor.address = await donor.server.open()
        training = asyncio.create_task(donor.train())
        try:
            return await story(donor)
        finally:
            training.cancel()
            await donor.server.close()

    return steady.run(main())


async def fetch(donor: Donor, *versions: int, **how: Any) -> Fetched:
    return await donor.visit(**how).fetch([Version(v) for v in versions or (7, 6)], **WHO)


def body(fetched: Fetched) -> np.ndarray:
    return fetched.octets(fetched.manifest.tensors[0])


def test_what_is_given_is_held_to_the_pace_of_all_that_goes_up() -> None:
    class Noting(Bucket):
        taken = 0

        async def take(self, num_bytes: int) -> None:
            self.taken += num_bytes

    async def story(donor: Donor) -> None:
        came = await fetch(donor)
        assert np.array_equal(body(came), donor.payload)

    pace = Noting(65_536.0)
    at(donor := Donor(pace=pace), story)
    assert pace.taken == donor.payload.size == donor.server.given_bytes


def test_a_state_arrives_bit_for_bit_and_nothing_is_kept() -> None:
    async def story(donor: Donor) -> None:
        came = await fetch(donor)
        assert np.array_equal(body(came), donor.payload)
        assert came.manifest.numbers[0].value == 3 and body(came).ctypes.data % 64 == 0
        assert (donor.made, donor.released, donor.server.given_bytes) == (1, 1, donor.payload.size)

    at(Donor(), story)


def test_guests_share_a_cut_that_is_new_enough_for_both() -> None:
    async def story(donor: Donor) -> None:
        several = await asyncio.gather(*(fetch(donor, name=f"n{i}") for i in range(MAX_GUESTS)))
        assert all(np.array_equal(body(one), donor.payload) for one in several)
        assert donor.made == donor.released <= MAX_GUESTS

    at(Donor(), story)


def test_a_donor_waits_for_its_boundary_until_it_is_new_enough() -> None:
    async def story(donor: Donor) -> None:
        waiting = asyncio.create_task(fetch(donor, 8, 6))
        await asyncio.sleep(0.05)
        assert donor.made == 0
        donor.core.held = (Version(8), Version(6))
        assert (await waiting).manifest.versions == (8, 6)

    at(Donor(), story)


@pytest.mark.parametrize("linked", [True, False])
def test_a_donor_that_stays_behind_says_so(linked: bool) -> None:
    async def story(donor: Donor) -> None:
        donor.server._stall_s = 0.2
        with pytest.raises(ProtocolError, match="behind"):
            await fetch(donor, 9, 9)
        assert donor.made == 0 and not donor.server._guests

    at(Donor(core=Core(linked=linked)), story)


def test_a_learner_with_nothing_to_give_says_so_at_once() -> None:
    async def story(donor: Donor) -> None:
        donor.server.give(None)
        await asyncio.sleep(0)
        with pytest.raises(ProtocolError, match="nothing to give"):
            await fetch(donor)

    at(Donor(), story)


def test_a_cut_that_comes_too_late_is_not_kept() -> None:
    async def story(donor: Donor) -> None:
        donor.server.give(donor.cut())
        await asyncio.sleep(0)
        assert donor.released == 1
        assert np.array_equal(body(await fetch(donor)), donor.payload)

    at(Donor(), story)


def test_a_third_guest_is_sent_away_and_may_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(donor: Donor) -> None:
        held = asyncio.Event()
        serve = donor_module._read

        def slowly(cut: Cut, start: int, stop: int) -> tuple[bytes, str]:
            return serve(cut, start, stop)

        monkeypatch.setattr(donor_module, "_read", slowly)
        async with ClientSession() as http:
            for i in range(MAX_GUESTS):
                headers = {"Gruppetto-Learner": f"n{i}:s"}
                async with http.get(f"http://{donor.address}/v1/donation?versions=7,6", headers=headers) as reply:
                    assert reply.status == 200
            with pytest.raises(DonorBusy):
                await fetch(donor, name="third")
            headers = {"Gruppetto-Learner": "n0:s"}
            async with http.delete(f"http://{donor.address}/v1/donation/1", headers=headers) as reply:
                assert reply.status == 204
        held.set()
        assert np.array_equal(body(await fetch(donor, name="third")), donor.payload)

    at(Donor(), story)


@pytest.mark.parametrize("trouble", ["breaks", "damaged", "short"])
@pytest.mark.parametrize("times", [1, 2, 99])
def test_a_transfer_goes_on_where_it_broke(trouble: str, times: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to two failures of one chunk cost that chunk again and no other; beyond them the donor is given up."""
    asked: list[int] = []
    serve = DonationServer._bytes

    async def troubled(self: DonationServer, request: web.Request) -> web.StreamResponse:
        start = int(request.headers["Range"].removeprefix("bytes=").partition("-")[0])
        asked.append(start)
        if start != 3 * CHUNK or asked.count(start) > times:
            return await serve(self, request)
        if trouble == "breaks":
            response = web.StreamResponse(status=206)
            response.content_length = CHUNK
            await response.prepare(request)
            await response.write(b"x" * 10)
            request.transport.abort()  # type: ignore[union-attr]
            return response
        data = b"x" * (CHUNK if trouble == "damaged" else CHUNK // 2)
        digest = digest_of(b"other") if trouble == "damaged" else digest_of(data)
        return web.Response(status=206, body=data, headers={"Gruppetto-Digest": digest})

    monkeypatch.setattr(DonationServer, "_bytes", troubled)

    async def story(donor: Donor) -> None:
        if times < 3:
            assert np.array_equal(body(await fetch(donor)), donor.payload)
            expected = sorted([*range(0, donor.payload.size, CHUNK), *[3 * CHUNK] * times])
            assert sorted(asked) == expected
        else:
            with pytest.raises(ConnectionLost):
                await fetch(donor)
        while donor.released < donor.made:  # the donor hears of it a moment later
            await asyncio.sleep(0.01)
        assert donor.released == donor.made == 1

    at(Donor(), story)


def test_a_donor_that_stands_still_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    async def stands_still(self: DonationServer, request: web.Request) -> web.StreamResponse:
        asked.append(request.headers["Range"])
        await asyncio.sleep(3600)
        raise AssertionError

    monkeypatch.setattr(DonationServer, "_bytes", stands_still)

    async def story(donor: Donor) -> None:
        with pytest.raises(ConnectionLost, match=r"nothing came from it for 0\.05 s"):
            await fetch(donor, stall_s=0.05)
        assert len(asked) == len(set(asked)), "nothing is asked for again, which would take as long again"

    at(Donor(), story)


def test_a_dead_donor_is_a_lost_connection() -> None:
    with pytest.raises(ConnectionLost):
        steady.run(Visit("127.0.0.1:1", learner="a", session="s", token=None, stall_s=1.0).fetch((), **WHO))


@pytest.mark.parametrize("shown", [None, "another"])
def test_only_learners_with_the_token_are_served(shown: str | None) -> None:
    async def story(donor: Donor) -> None:
        assert np.array_equal(body(await fetch(donor)), donor.payload)
        visit = Visit(donor.address, learner="x", session="s", token=shown, stall_s=1.0)
        with pytest.raises(ProtocolError, match="401"):
            await visit.fetch((Version(0), Version(0)), **WHO)
        url = f"http://{donor.address}/v1/donation?versions=1"
        async with ClientSession(headers={"Authorization": "Bearer secret"}) as http, http.get(url) as reply:
            assert reply.status == 401, "the syncer's token itself never travels here"

    at(Donor(token="secret"), story)


@pytest.mark.parametrize("other", [{"run_id": "x"}, {"layout_hash": "x"}, {"fragmentation_hash": "x"}])
def test_the_state_of_another_run_is_not_taken(other: dict[str, str]) -> None:
    async def story(donor: Donor) -> None:
        with pytest.raises(ProtocolError, match="another"):
            await donor.visit().fetch((Version(7), Version(6)), **{**WHO, **other})
        assert donor.released == 1

    at(Donor(), story)


@pytest.mark.parametrize(
    "asked", ["", "bytes=0-99999999", "bytes=0-1,5-6", "bytes=9-2", "bytes=-5", f"bytes=0-{CHUNK}"]
)
def test_ranges_that_are_none_are_refused(asked: str) -> None:
    async def story(donor: Donor) -> None:
        headers = {"Gruppetto-Learner": "n:s", **({"Range": asked} if asked else {})}
        async with ClientSession(headers=headers) as http:
            await (await http.get(f"http://{donor.address}/v1/donation?versions=7,6")).read()
            assert (await http.get(f"http://{donor.address}/v1/donation/1")).status == 416
            assert (await http.get(f"http://{donor.address}/v1/donation/2")).status == 404

    at(Donor(), story)


@pytest.mark.parametrize("query", ["", "versions=a", "versions=-1", "versions=" + "1," * 5000])
def test_nonsense_is_refused(query: str) -> None:
    async def story(donor: Donor) -> None:
        async with ClientSession(headers={"Gruppetto-Learner": "n:s"}) as http:
            assert (await http.get(f"http://{donor.address}/v1/donation?{query}")).status == 400
            plain = f"http://{donor.address}/v1/donation?versions=7,6"
            assert (await http.get(plain, headers={"Gruppetto-Learner": ".."})).status == 400

    at(Donor(), story)


# ── manifests and cuts ───────────────────────────────────────────────────────────────────────────────────────────


def test_a_manifest_survives_the_wire_and_impossible_ones_do_not() -> None:
    good = Donor().cut().manifest
    assert decode_manifest(encode_manifest(good)) == good
    (tensor,) = good.tensors
    for wrong in (
        replace(good, tensors=(replace(tensor, dtype="object"),)),
        replace(good, tensors=(replace(tensor, shape=(-1,)),)),
        replace(good, tensors=(replace(tensor, shape=(10**9,)),)),
        replace(good, tensors=(replace(tensor, offset=32),)),
        replace(good, tensors=(tensor, tensor)),
        replace(good, total_bytes=-1),
        replace(good, chunk_bytes=0),
    ):
        with pytest.raises(ProtocolError):
            decode_manifest(encode_manifest(wrong))
    with pytest.raises(GruppettoError):
        decode_manifest(b"\xc1")


@given(sizes=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 5)), max_size=6), data=st.data())
def test_reading_across_segments(sizes: list[tuple[int, int]], data: st.DataObject) -> None:
    """Any range of a cut is what the concatenation, with zeros in the gaps, says."""
    whole, segments = b"", []
    for n, (size, gap) in enumerate(sizes):
        part = bytes([n + 1]) * size
        segments.append((len(whole), memoryview(part)))
        whole += part + bytes(gap)
    manifest = replace(Donor().cut().manifest, total_bytes=len(whole))
    stop = data.draw(st.integers(0, len(whole)))
    start = data.draw(st.integers(0, stop))
    assert Cut(manifest, segments).read(start, stop) == whole[start:stop]


def test_a_donor_that_drips_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """A byte now and then is no progress."""
    dripped: list[int] = []

    async def drips(self: DonationServer, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(status=206)
        response.content_length = CHUNK
        await response.prepare(request)
        for _ in range(CHUNK):
            await response.write(b"x")
            dripped.append(1)
            await asyncio.sleep(0.02)
        return response

    monkeypatch.setattr(DonationServer, "_bytes", drips)

    async def story(donor: Donor) -> None:
        with pytest.raises(ConnectionLost, match=r"only \d+ bytes came from it for 0\.2 s"):
            await fetch(donor, stall_s=0.2)
        assert 2 < len(dripped) < CHUNK

    at(Donor(), story)


def test_what_does_not_fit_is_not_even_asked_for() -> None:
    async def story(donor: Donor) -> None:
        def fits(manifest: Manifest) -> None:
            raise StateError("it is none of ours", where="here")

        visit = Visit(donor.address, learner="n", session="s", token=None, stall_s=5.0, fits=fits)
        with pytest.raises(StateError, match="none of ours"):
            await visit.fetch((Version(7), Version(6)), **WHO)
        assert visit.total_bytes == visit.came_bytes == donor.server.given_bytes == 0 and donor.released == 1

    at(Donor(), story)


@pytest.mark.parametrize("trouble", ["memory", "defect", "future", "silence"])
def test_whatever_goes_wrong_at_a_donor_costs_one_rung(trouble: str) -> None:
    """Also no memory, our own mistakes, and weights of which the syncer knows nothing; later news are waited for."""

    def fits(manifest: Manifest) -> None:
        if trouble == "memory":
            raise MemoryError("8 PiB")
        if trouble == "defect":
            raise KeyError("exp_avg")

    async def story(donor: Donor) -> None:
        clock = MonotonicClock()
        began = clock.now()

        def published() -> tuple[Version, ...]:
            late = trouble == "silence" and clock.now() > began + 0.1
            return (Version(7), Version(6 if late else 5))

        def visit(donor: Address) -> Visit:
            return Visit(donor.address, learner="n", session="s", token=None, stall_s=5.0, fits=fits)

        wanted = Recover(donors=(Address(learner="d", address=donor.address),), versions=(Version(7), Version(5)))
        found = asyncio.Event()
        recovering = Recovering(
            wanted,
            has_own=False,
            visit=visit,
            identity=WHO,
            published=published,
            clock=clock,
            changed=lambda: found.set() if recovering.find else None,
        )
        searching = asyncio.create_task(recovering.search())
        await found.wait()
        assert recovering.find is not None
        assert recovering.find.source == (Source.PEER if trouble == "silence" else Source.SYNCER)
        recovering.accept()
        await searching

    at(Donor(), story)


def test_manifests_name_everything_once_and_nothing_unheard_of() -> None:
    good = Donor().cut().manifest
    (tensor,) = good.tensors
    again = NamedNumber(name=tensor.name, key=tensor.key, value=1)
    for wrong in (
        replace(good, tensors=(replace(tensor, part="wat"),)),
        replace(good, numbers=(again,)),
        replace(good, total_bytes=2**42),
        replace(good, versions=(Version(2**63), Version(6))),
        replace(good, versions=(Version(-2), Version(6))),
        replace(good, tensors=(replace(tensor, shape=(0, 2**62)),), total_bytes=0),
    ):
        with pytest.raises(ProtocolError):
            decode_manifest(encode_manifest(wrong))
