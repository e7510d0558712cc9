"""What a link does to bytes, in times that nobody has to wait for."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gruppetto.chaos.real.link import CLEAR, GIVES_UP, RETRANSMIT_S, Conditions, Way, combined
from gruppetto.chaos.real.plan import LiveFault


def way(seed: int = 0, **at: object) -> Way:
    made = Way(random.Random(seed))
    made.conditions = Conditions(**at)  # type: ignore[arg-type]
    return made


moments = st.lists(
    st.tuples(st.floats(0, 0.5), st.integers(1, 1 << 17)),
    min_size=1,
    max_size=40,
)


@given(moments, st.floats(1e4, 1e9), st.floats(0, 0.5), st.floats(0, 0.5), st.integers(0, 99))
def test_a_link_is_never_faster_than_its_rate_nor_nearer_than_its_latency(
    sent: list[tuple[float, int]], bytes_per_s: float, delay_s: float, jitter_s: float, seed: int
) -> None:
    link = way(seed, bytes_per_s=bytes_per_s, delay_s=delay_s, jitter_s=jitter_s)
    now = last = free_at = 0.0
    for pause_s, count in sent:
        now += pause_s
        left, arrives = link.times(now, count, after=last)
        # The dumb twin: a queue that is served one chunk after the other.
        free_at = max(free_at, now) + count / bytes_per_s
        assert left == pytest.approx(free_at)
        assert arrives >= max(last, left + delay_s)
        latest = max(last, left + delay_s + jitter_s)
        assert arrives <= latest or arrives == pytest.approx(latest, rel=1e-12)  # summed in another order
        last = arrives


@given(moments, st.floats(0.001, 0.9), st.integers(0, 999))
def test_losses_cost_time_or_the_connection_and_never_the_order(
    sent: list[tuple[float, int]], loss: float, seed: int
) -> None:
    link = way(seed, loss=loss, delay_s=0.01)
    now = last = 0.0
    longest_s = sum((RETRANSMIT_S + 0.02) * 2**again for again in range(GIVES_UP))
    for pause_s, count in sent:
        now += pause_s
        left, arrives = link.times(now, count, after=last)
        assert arrives >= last
        if math.isinf(arrives):
            return
        assert arrives <= max(last, left + 0.01 + longest_s)
        last = arrives


def test_how_often_packets_are_lost() -> None:
    link = way(loss=0.01)
    waited = [link.times(float(n), 1448, after=-math.inf)[1] - n for n in range(20_000)]
    assert sum(wait_s > 0 for wait_s in waited) / 20_000 == pytest.approx(0.01, rel=0.25)
    # Nothing follows a single packet that could give its loss away.
    assert min(wait_s for wait_s in waited if wait_s > 0) >= RETRANSMIT_S - 1e-9


@given(st.binary(max_size=1 << 14), st.integers(0, 99))
def test_damage_is_one_bit_of_a_body(chunk: bytes, seed: int) -> None:
    damaged = way(seed, corrupt=1.0).damage(chunk)
    flipped = [(at, a ^ b) for at, (a, b) in enumerate(zip(chunk, damaged, strict=True)) if a != b]
    if len(chunk) < 4096:
        assert not flipped
    else:
        ((at, bits),) = flipped
        assert at >= len(chunk) // 2
        assert bits.bit_count() == 1
    assert way(seed).damage(chunk) == chunk


def fault(kind: str, **more: object) -> LiveFault:
    return LiveFault(at_s=0, kind=kind, who="a", **more)  # type: ignore[arg-type]


def test_faults_on_one_link_add_up() -> None:
    both = [fault("loss", share=0.5), fault("loss", share=0.5), fault("corrupt", share=0.3), fault("partition")]
    assert combined(both, "up") == Conditions(loss=0.75, corrupt=0.3, held=True)
    narrow = [fault("bandwidth", mbit_per_s=8), fault("bandwidth", mbit_per_s=4, way="down")]
    assert (combined(narrow, "up").bytes_per_s, combined(narrow, "down").bytes_per_s) == (1e6, 5e5)
    assert combined([fault("nan"), fault("kill"), fault("half-open")], "up") == CLEAR


def test_a_narrow_link_is_shared_in_turns() -> None:
    assert way(bytes_per_s=1e6).chunk_bytes(1 << 17) == 20_000
    assert way(bytes_per_s=1e4).chunk_bytes(1 << 17) == 1448
    assert way().chunk_bytes(1 << 17) == 1 << 17
