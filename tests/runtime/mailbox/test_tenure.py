"""Who serves through a mailbox: never two in one term, whatever clocks and the network do."""

from __future__ import annotations

import asyncio
import random
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from obstore.store import MemoryStore

from gruppetto.errors import AddressError, ConnectionLost, StateError, SteppedDown
from gruppetto.runtime.clock import ManualClock
from gruppetto.runtime.mailbox.bucket import Bucket
from gruppetto.runtime.mailbox.tenure import LEASE, Lease, SeatRemoved, Tenure, decode_lease, may_take

LEASE_S = 0.003
"""How long the tests wait between two looks; nothing is judged by it."""


class Rough(Bucket):
    """A store behind a network that takes its time and loses answers."""

    def __init__(self, store: MemoryStore, rng: random.Random) -> None:
        super().__init__(store, "s3://lab/tour", limit_s=30.0)
        self.rng, self.loss = rng, 0.2

    async def _pass(self, call: Any) -> Any:
        for _ in range(self.rng.randrange(4)):
            await asyncio.sleep(0)
        if self.rng.random() < self.loss / 2:
            raise ConnectionLost("lost on its way there")
        answer = await call()
        for _ in range(self.rng.randrange(4)):
            await asyncio.sleep(0)
        if self.rng.random() < self.loss:
            raise ConnectionLost("lost on its way back")
        return answer

    async def get(self, name: str, limit: int) -> Any:
        return await self._pass(partial(super().get, name, limit))

    async def _put(self, name: str, body: bytes, mode: Any) -> Any:
        return await self._pass(partial(super()._put, name, body, mode))


class Reckless(Rough):
    """Leaves out the condition."""

    async def _put(self, name: str, body: bytes, mode: Any) -> Any:
        return await super()._put(name, body, "overwrite")

    async def heeds_conditions(self, name: str, body: bytes) -> bool:
        return True


class Leaping(ManualClock):
    """Finds now and then that a whole lease is over."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self._rng = rng

    def now(self) -> float:
        self.advance(self._rng.choice((0.0, 0.0, LEASE_S)))
        return super().now()


async def contest(kind: type[Rough], seed: int) -> list[tuple[int, int]]:
    """Three syncers of different runs want the seat, with clocks that leap; (term, who) of every success."""
    rng, store, stop = random.Random(seed), MemoryStore(), asyncio.Event()
    successes: list[tuple[int, int]] = []

    async def one(number: int) -> None:
        for life in range(2):
            bucket, clock = kind(store, rng), Leaping(rng)
            tenure = Tenure(bucket, run_id=f"r{number}-{life}", epoch=1, lease_s=LEASE_S, clock=clock)
            if not await tenure.claim(stop):
                return
            successes.append((tenure.term, number))
            for _ in range(rng.randrange(4)):
                try:
                    await tenure.renew(begun=False, over=False)
                except ConnectionLost:
                    continue
                except SteppedDown:
                    break
            if rng.random() < 0.5:
                await tenure.end(begun=False, over=False)

    async with asyncio.timeout(20):
        await asyncio.gather(*(one(number) for number in range(3)))
    return successes


@given(st.integers(0, 10**6))
@settings(max_examples=15, deadline=None)
def test_no_term_has_two_syncers(seed: int) -> None:
    terms = [term for term, _ in asyncio.run(contest(Rough, seed))]
    assert len(set(terms)) == len(terms) == 6


def test_without_its_condition_it_would_be_found_out() -> None:
    def is_caught(seed: int) -> bool:
        terms = [term for term, _ in asyncio.run(contest(Reckless, seed))]
        return len(set(terms)) < len(terms)

    assert any(is_caught(seed) for seed in range(20))


def test_a_store_that_ignores_conditions_is_refused() -> None:
    class Old(Bucket):
        async def _put(self, name: str, body: bytes, mode: Any) -> str:
            return await super()._put(name, body, "overwrite")

    async def test() -> None:
        with pytest.raises(AddressError, match="does not heed If-None-Match and If-Match; use one that does"):
            await seat("tour", ManualClock(), Old(MemoryStore(), "s3://lab/tour", limit_s=30.0)).claim(asyncio.Event())

    run(test())


def seat(run_id: str, clock: ManualClock, bucket: Bucket, *, epoch: int = 1) -> Tenure:
    return Tenure(bucket, run_id=run_id, epoch=epoch, lease_s=LEASE_S, clock=clock)


def run(test: Any) -> None:
    asyncio.run(asyncio.wait_for(test, 30))


def test_a_later_life_of_the_same_state_takes_the_seat_at_once_and_the_old_one_steps_down() -> None:
    async def test() -> None:
        bucket, clock, stop = Bucket(MemoryStore(), "s3://lab/tour", limit_s=30.0), ManualClock(), asyncio.Event()
        old, new = seat("tour", clock, bucket), seat("tour", clock, bucket, epoch=2)
        assert await old.claim(stop) and await new.claim(stop)
        assert (old.term, new.term) == (1, 2)
        with pytest.raises(SteppedDown, match="another syncer"):
            await old.renew(begun=True, over=False)
        await new.renew(begun=True, over=False)
        with pytest.raises(StateError, match=r"in epoch 2, and this state is of epoch 1.*newest state directory"):
            await seat("tour", clock, bucket).claim(stop)

    run(test())


def test_a_bucket_emptied_below_the_syncer_is_no_other_syncer() -> None:
    """Whatever watches it may start it again (exit 1, not 3), and the next life takes the seat."""

    async def test() -> None:
        bucket, clock, stop = Bucket(MemoryStore(), "s3://lab/tour", limit_s=30.0), ManualClock(), asyncio.Event()
        old = seat("tour", clock, bucket)
        assert await old.claim(stop)
        await bucket.delete([LEASE])
        with pytest.raises(
            SeatRemoved, match=r"the lease was removed from s3://lab/tour.*start this syncer again"
        ) as told:
            await old.renew(begun=True, over=False)
        assert told.value.exit_code == 1
        assert await seat("tour", clock, bucket, epoch=2).claim(stop)

    run(test())


def test_a_store_that_is_away_makes_nobody_look_dead() -> None:
    """What counts is for how long a lease did not change although it could be seen."""

    async def test() -> None:
        class Flaky(Bucket):
            looks = 0

            async def get(self, name: str, limit: int) -> Any:
                self.looks += 1
                clock.advance(LEASE_S * 0.6)
                if self.looks % 2 == 0:
                    raise ConnectionLost("away")
                if self.looks > 9:
                    stop.set()
                return await super().get(name, limit)

        store, clock, stop = MemoryStore(), ManualClock(), asyncio.Event()
        assert await seat("tour", clock, Bucket(store, "s3://lab/tour", limit_s=30.0)).claim(stop)
        assert not await seat("other", clock, Flaky(store, "s3://lab/tour", limit_s=30.0)).claim(stop)

    run(test())


@pytest.mark.parametrize(
    ("left", "takes"),
    [
        ({}, True),
        ({"begun": True}, None),
        ({"begun": True, "over": True}, True),
        ({"begun": True, "ended": True}, None),
        ({"begun": True, "over": True, "ended": True}, True),
    ],
)
def test_what_another_run_has_left(left: dict[str, bool], takes: bool | None) -> None:
    lease = Lease(term=3, holder="x", run_id="tour", epoch=2, **left)
    if takes is None:
        with pytest.raises(StateError, match="not in this state directory"):
            may_take(lease, run_id="other", epoch=1, silent=True, where="")
    else:
        assert may_take(lease, run_id="other", epoch=1, silent=True, where="") is takes
    if not lease.ended:
        assert may_take(lease, run_id="other", epoch=1, silent=False, where="") is False


@pytest.mark.parametrize(
    "data",
    [b"", b"{}", b"\xff", b'{"term":1,"holder":"x","run_id":"../x","epoch":1}', b"[" * 4000,
     b'{"term":0,"holder":"x","run_id":"a","epoch":1}', b'{"term":1,"holder":"x","run_id":"a","epoch":1,"lease_s":-1}'],
)  # fmt: skip
def test_what_is_no_lease_is_not_replaced(data: bytes) -> None:
    with pytest.raises(StateError, match="no mailbox of this version; use another prefix"):
        decode_lease(data, "s3://lab/tour")

    async def test() -> None:
        bucket = Bucket(MemoryStore(), "s3://lab/tour", limit_s=30.0)
        await bucket.put_over(LEASE, data)
        with pytest.raises(StateError):
            await seat("tour", ManualClock(), bucket).claim(asyncio.Event())

    run(test())
