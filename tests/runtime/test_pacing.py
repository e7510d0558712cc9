"""Bodies leave room: the bucket against its formula, in virtual time, and what is asked of the kernel."""

from __future__ import annotations

import asyncio
import socket

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gruppetto.errors import SettingError
from gruppetto.runtime import pacing
from gruppetto.runtime.body_stream import BodyStream
from gruppetto.runtime.pacing import Bucket
from gruppetto.runtime.setting import SyncerSetting

TAKES = st.lists(st.tuples(st.floats(0, 0.1), st.floats(0.001, 1)), min_size=1, max_size=40)


@given(rate=st.floats(65_536, 1e9), takes=TAKES)
def test_no_stretch_of_time_has_more_than_its_share_and_nobody_waits_in_vain(
    rate: float, takes: list[tuple[float, float]]
) -> None:
    """Askers that come one after another, each as soon as the one before has been served and a pause is over."""
    bucket, now, left = Bucket(rate), 0.0, []
    for pause_s, share in takes:
        num_bytes = max(1, int(share * bucket.burst_bytes))
        now += pause_s
        now += bucket.delay_s(num_bytes, now)
        left.append((now, num_bytes))
    slack = 1 + 1e-6
    for i, (first, _) in enumerate(left):
        moved = np.cumsum([count for _, count in left[i:]])
        for (at, _), total in zip(left[i:], moved, strict=True):
            assert total <= (rate * (at - first) + bucket.burst_bytes) * slack + 1
    # Served without a pause it gives all that it may: the oracle is a bucket counted in tokens.
    tokens, clock = float(bucket.burst_bytes), 0.0
    for (pause_s, _), (at, num_bytes) in zip(takes, left, strict=True):
        tokens = min(bucket.burst_bytes, tokens + rate * pause_s)
        wait_s = max(0.0, (num_bytes - tokens) / rate)
        tokens += rate * wait_s - num_bytes
        clock += pause_s + wait_s
        assert at == pytest.approx(clock, rel=1e-6, abs=1e-6)


def test_a_body_goes_out_in_bursts_of_the_bucket() -> None:
    taken: list[int] = []

    class Noting(Bucket):
        async def take(self, num_bytes: int) -> None:
            taken.append(num_bytes)

    async def run() -> list[int]:
        here, there = socket.socketpair()
        loop, sent = asyncio.get_running_loop(), list[int]()
        transport, stream = await loop.create_connection(BodyStream, sock=here)
        await stream.send_body(memoryview(bytes(40_000)), sent.append, Noting(65_536.0))
        there.close()
        transport.close()
        return sent

    sent = asyncio.run(run())
    assert taken == sent == [16_384, 16_384, 7_232]


def test_what_is_asked_of_the_kernel_is_not_asked_within_a_machine() -> None:
    def unsent(connection: socket.socket) -> int:
        return connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT)

    listener = socket.create_server(("127.0.0.1", 0))
    with listener, socket.create_connection(listener.getsockname()) as ours:
        before = unsent(ours)
        pacing.set_up(ours)
        assert unsent(ours) == before != pacing.UNSENT_BYTES
        assert pacing._stays_here(ours) and pacing._stays_here(ours, "::1")
        assert not pacing._stays_here(ours, "192.0.2.1")
        pacing.set_up(ours, "192.0.2.1")
        assert unsent(ours) == pacing.UNSENT_BYTES


@pytest.mark.parametrize("rate", [0.0, 9.0, float("nan"), float("inf"), -1.0])
def test_an_impossible_limit_is_refused(tmp_path: object, rate: float) -> None:
    with pytest.raises(SettingError, match=r"max_bytes_per_s is .*65536 or more"):
        SyncerSetting(state=tmp_path, max_bytes_per_s=rate)  # type: ignore[arg-type]
