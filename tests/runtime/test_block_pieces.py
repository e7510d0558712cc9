"""Coarse encodings of a learner of many ranks: blocks of each piece by itself, put together as float32."""

from __future__ import annotations

import random
import threading
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gruppetto.errors import ProtocolError
from gruppetto.numerics import CODECS, fragment
from gruppetto.numerics.codec import encode_difference
from gruppetto.numerics.inspection import inspect
from gruppetto.numerics.layout import Layout, TensorSpec
from gruppetto.numerics.runs import Runs
from gruppetto.protocol.messages import Answer
from gruppetto.protocol.units import Fragment, Incarnation, LearnerId
from gruppetto.runtime.address import SyncerAddress
from gruppetto.runtime.assembly import Assemblies
from gruppetto.runtime.backlog import Backlog, Offer
from gruppetto.runtime.http_client import HttpSyncer
from gruppetto.runtime.leases import Lease, LeasePool
from gruppetto.runtime.transfers import Share, Transfers
from gruppetto.runtime.wire import checksum

SPEC = fragment(Layout(tensors=tuple(TensorSpec(name=f"w{n}", shape=(n,), dtype="float32") for n in (150, 400))), 1)
NUMEL = SPEC.fragments[0].numel
BLOCKS = sorted(name for name, codec in CODECS.items() if codec.block_numel > 1)


@dataclass
class Rank:
    """Holds everything (as DDP does), supplies some."""

    supplied: Runs
    pool: LeasePool = field(default_factory=LeasePool)
    rest: Lease | None = None

    def lend(self, fragment: Fragment) -> Lease:
        return self.pool.lend(NUMEL)

    def left(self, answer: Answer, rest: Lease) -> None:
        self.rest = rest

    def encoded(self, base: np.ndarray, theta: np.ndarray, codec: str) -> np.ndarray:
        moves = Transfers(
            HttpSyncer(SyncerAddress.parse("http://127.0.0.1:1"), token=None, tls=None, stall_s=1.0),
            self,  # type: ignore[arg-type]
            Backlog(),
            threading.Condition(),
            layout_hash="",
            owner=lambda: (LearnerId("a"), Incarnation(1)),
            came=lambda *_: None,
            taken=lambda *_: None,
            is_over=lambda _: False,
            fail=lambda _: None,
            rng=random.Random(0),
        )
        share = Share(held=Runs.of([(0, NUMEL)]), supplied=self.supplied, places=self.supplied)
        body = np.empty(CODECS[codec].payload_bytes(self.supplied.numel), np.uint8)
        held = [self.pool.lend(NUMEL), self.pool.lend(NUMEL)]
        held[0].values[:], held[1].values[:] = base, theta
        answer = Answer(
            learner=LearnerId("a"),
            incarnation=Incarnation(1),
            epoch=1,  # type: ignore[arg-type]
            round=1,  # type: ignore[arg-type]
            fragment=Fragment(0),
            base_version=0,  # type: ignore[arg-type]
            steps=1,
            tokens=1,
            total_tokens=1,
            cursor=1,
            layout_hash="",
        )
        moves._encode(Offer(answer=answer, base=held[0], theta=held[1], rest=self.rest), CODECS[codec], share, body)
        return body


@given(
    codec=st.sampled_from(BLOCKS),
    cuts=st.lists(st.integers(1, NUMEL - 1), max_size=6).map(lambda found: sorted({0, *found, NUMEL})),
    ranks=st.integers(1, 3),
    seed=st.integers(0, 99),
)
def test_what_is_said_and_what_is_owed_are_what_was_meant(codec: str, cuts: list[int], ranks: int, seed: int) -> None:
    draw = np.random.default_rng(seed)
    dealt: list[list[tuple[int, int]]] = [[] for _ in range(ranks)]
    for turn, run in enumerate(pairwise(cuts)):
        dealt[turn % ranks].append(run)
    riders = [Rank(Runs.of(runs)) for runs in dealt if runs]
    to: Assemblies[int] = Assemblies.of(CODECS[codec], NUMEL, 2)
    said, meant = np.zeros(NUMEL), np.zeros(NUMEL)
    for round in range(3):
        base, theta = draw.standard_normal((2, NUMEL)).astype(np.float32)
        meant += base - theta
        whole = None
        for rider in riders:
            assert whole is None
            body = rider.encoded(base, theta, codec)
            with to.open(round, SPEC.fragments[0], rider.supplied, body.size, checksum(body)) as upload:
                half = body.size // 2
                upload.write(body[:half])
                upload.write(body[half:])
                whole = to.finish(round, upload)
        assert whole is not None and whole.codec is CODECS["fp32"]
        found = np.frombuffer(whole.payload, np.float32).copy()
        seen = inspect(whole.payload, whole.codec, SPEC.fragments[0])
        np.testing.assert_array_equal(whole.inspection.norm_sq, seen.norm_sq)
        whole.release()
        said += found
    owed = sum(rider.rest.values for rider in riders if rider.rest is not None)
    np.testing.assert_allclose(said + owed, meant, atol=1e-5)


@pytest.mark.parametrize("name", sorted(CODECS.keys() - set(BLOCKS)))
def test_a_rank_looks_at_nothing_but_what_it_supplies(name: str) -> None:
    """What another one supplies is not copied into its snapshot; and a piece is what the whole encoding has there."""
    codec, draw = CODECS[name], np.random.default_rng(0)
    base, theta = draw.standard_normal((2, NUMEL)).astype(np.float32)
    whole = encode_difference(base, theta, codec)
    mine = Runs.of([(3, 4), (10, 260), (300, NUMEL)])
    unread = np.full(NUMEL, np.nan, np.float32)
    for start, stop in mine:
        unread[start:stop] = theta[start:stop]
    parts = [whole[start * codec.word_bytes : stop * codec.word_bytes] for start, stop in mine]
    np.testing.assert_array_equal(Rank(mine).encoded(base, unread, name), np.concatenate(parts))
    assert Rank(Runs()).encoded(base, unread, name).size == 0


def test_a_piece_of_another_length_or_a_damaged_one_changes_nothing() -> None:
    to: Assemblies[str] = Assemblies.of(CODECS["int4"], NUMEL, 1)
    runs = Runs.of([(0, 129)])
    with pytest.raises(ProtocolError, match="a int4 piece has 132 bytes, 66 are announced"):
        to.open("a", SPEC.fragments[0], runs, 66, 0)
    with (
        pytest.raises(ProtocolError, match="checksum"),
        to.open("a", SPEC.fragments[0], runs, 132, 1) as upload,
    ):
        upload.write(bytes(132))
        to.finish("a", upload)
    with to.open("a", SPEC.fragments[0], runs, 132, checksum(bytes(132))) as upload:
        upload.write(bytes(132))
        to.drop(lambda _: True)  # nobody wants it any more
        assert to.finish("a", upload) is None
    assert to.intake.has_room()
