"""Learners among themselves: a state is given to and taken from whom a certificate names, and from nobody else."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.runtime.security.attacks.site_of_a_run import House, learner, run

from gruppetto.errors import ConnectionLost, GruppettoError, ProtocolError
from gruppetto.protocol.units import Version
from gruppetto.runtime.address import SyncerAddress
from gruppetto.runtime.clock import wall_time_s
from gruppetto.runtime.donation import Cut, Manifest, NamedTensor, Portion
from gruppetto.runtime.donor import DonationServer
from gruppetto.runtime.http_client import HttpSyncer
from gruppetto.runtime.joining import Fetched, Visit
from gruppetto.runtime.portion_donor import PortionServer
from gruppetto.runtime.security.fresh import PeerTls
from gruppetto.runtime.security.issuing import Authority

WHO = {"run_id": "r", "layout_hash": "l", "fragmentation_hash": "f"}
STATE = np.arange(5000, dtype=np.int64).astype(np.uint8)


@dataclass(slots=True)
class Core:
    linked: bool = True
    step_s: float = 0.01
    held: tuple[Version, ...] = (Version(7),)


def peers(certs: Path, name: str) -> PeerTls:
    return PeerTls(ca=certs / "ca.pem", cert=certs / f"learner-{name}.pem", key=certs / f"learner-{name}.key")


def visited(donor: PeerTls, guest: PeerTls | None, *, says: str, expects: str) -> Fetched:
    """What a guest gets who ``says`` a name and ``expects`` a donor of a name."""
    return run(visit(donor, guest, says=says, expects=expects))


async def visit(
    donor: PeerTls,
    guest: PeerTls | None,
    *,
    says: str,
    expects: str,
    counts: Callable[[str], Awaitable[bool]] | None = None,
) -> Fetched:
    async def story() -> Fetched:
        tls = donor.as_donor()
        server = DonationServer("127.0.0.1", 0, token=None, stall_s=1.0, core=Core(), tls=tls, counts=counts)
        address = await server.open()

        async def train() -> None:
            while True:
                await asyncio.sleep(0.002)
                if server.wants_cut():
                    tensor = NamedTensor(part="optimizer", name="w", dtype="uint8", shape=(STATE.size,), offset=0)
                    manifest = Manifest(
                        cut="1", versions=(Version(7),), optimizer="SGD", tensors=(tensor,),
                        total_bytes=STATE.size, chunk_bytes=2048, **WHO,
                    )  # fmt: skip
                    server.give(Cut(manifest, [(0, STATE.data)]))

        training = asyncio.create_task(train())
        try:
            tls = None if guest is None else guest.as_guest_of(expects)
            guest_of = Visit(address, learner=says, session="s", token=None, stall_s=1.0, tls=tls)
            return await guest_of.fetch([Version(7)], **WHO)
        finally:
            training.cancel()
            await server.close()

    return await story()


def test_a_state_travels_between_two_certificates(house: House) -> None:
    came = visited(peers(house.certs, "a"), peers(house.certs, "b"), says="b", expects="a")
    assert np.array_equal(came.octets(came.manifest.tensors[0]), STATE)


@pytest.mark.parametrize(
    ("guest", "says", "expects", "why"),
    [
        ("b", "c", "a", "in its own name alone"),
        ("b", "b", "c", "certificate of learner a, not of learner c"),
        (None, "b", "a", ""),
        ("other", "b", "a", ""),
    ],
)
def test_whoever_is_not_who_he_says_gives_and_gets_nothing(
    house: House, tmp_path: Path, guest: str | None, says: str, expects: str, why: str
) -> None:
    shown = None if guest is None else peers(house.certs, "b")
    if guest == "other":
        other = Authority(tmp_path / "other", now=wall_time_s())
        other.found(days=5)
        other.make(learner("b"), days=5)
        shown = PeerTls(
            ca=house.certs / "ca.pem", cert=tmp_path / "other/learner-b.pem", key=tmp_path / "other/learner-b.key"
        )
    with pytest.raises((ConnectionLost, ProtocolError), match=why or None):
        visited(peers(house.certs, "a"), shown, says=says, expects=expects)


@pytest.mark.parametrize(
    ("says", "expects", "why"), [("b", "a", ""), ("c", "a", "own name"), ("b", "c", "not of learner c")]
)
def test_a_portion_at_another_rank_is_given_as_at_the_first(house: House, says: str, expects: str, why: str) -> None:
    donor, guest = peers(house.certs, "a"), peers(house.certs, "b")

    async def story() -> Fetched:
        server = PortionServer("127.0.0.1", 0, token=None, stall_s=1.0, core=Core(), tls=donor.as_donor())
        tensor = NamedTensor(part="optimizer", name="w", dtype="uint8", shape=(STATE.size,), offset=0)
        portion = Portion(address=await server.open(), spans=((0, STATE.size),))
        manifest = Manifest(
            cut="1", versions=(Version(7),), optimizer="SGD", tensors=(tensor,), total_bytes=STATE.size,
            portions=(portion,), **WHO,
        )  # fmt: skip
        server.hold(Cut(manifest, [(0, STATE.data)]))
        try:
            tls = guest.as_guest_of(expects)
            visit = Visit("127.0.0.1:1", learner=says, session="s", token=None, stall_s=1.0, tls=tls)
            return await visit.fetch_part(manifest)
        finally:
            await server.close()

    if why:
        with pytest.raises((ConnectionLost, ProtocolError), match=why):
            run(story())
    else:
        came = run(story())
        assert np.array_equal(came.octets(came.manifest.tensors[0]), STATE)


def test_papers_that_have_gone_are_said(house: House) -> None:
    with pytest.raises(GruppettoError, match="cannot be used"):
        peers(house.certs, "nobody").as_guest_of("a")


def test_a_donor_asks_the_syncer_after_its_guests(
    at_the_site: Callable[..., None], house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gruppetto.runtime.security.watch.LOOK_EVERY_S", 0.05)
    cert, key = (shutil.copy(house.certs / f"learner-b.{end}", tmp_path) for end in ("pem", "key"))
    kept = PeerTls(ca=house.certs / "ca.pem", cert=Path(cert), key=Path(key))

    async def test(site: Any) -> None:
        tls = house.papers(learner("a")).tls
        line = HttpSyncer(SyncerAddress.parse(site.url), token=None, tls=tls, stall_s=5.0)

        async def asks() -> Fetched:
            return await visit(peers(house.certs, "a"), kept, says="b", expects="a", counts=line.counts)

        with pytest.raises((ConnectionLost, ProtocolError), match="cannot be asked after this guest"):
            await asks()
        async with line:
            assert (await asks()).manifest.total_bytes == STATE.size
            house.authority.revoke(learner("b"))
            with pytest.raises((ConnectionLost, ProtocolError), match="this certificate counts no more"):
                async with asyncio.timeout(60):
                    while True:  # the syncer looks at its list now and then
                        await asks()

    at_the_site(test)
