"""Published values as steps from the ones before, on both ends of a download.

A learner that asks for a fragment says which value it has, by the CRC-32 of its float32. If the newest value is one
step further, the syncer sends the step, and what its result has to be; in any other case it sends the value whole. So
there is nothing to agree on and nothing to forget: a learner that missed a round, was restored from elsewhere, or comes
from another life of the syncer names a value from which no step leads. A step that does not lead where it should is
thrown away, and the value is asked for whole.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gruppetto.errors import ConnectionLost
from gruppetto.numerics.codec import CODECS
from gruppetto.numerics.downlink import Downlink, follow
from gruppetto.numerics.kernels import Float32
from gruppetto.runtime.headers import BASE_HEADER, CHECKSUM_HEADER, CODEC_HEADER, RESULT_HEADER
from gruppetto.runtime.leases import Lease
from gruppetto.runtime.parameters import Value
from gruppetto.runtime.wire import checksum

__all__ = ["Held", "Outgoing", "outgoing"]

SLICE_NUMEL = 1 << 18
"""Elements that are looked at in one go: a mebibyte, a fraction of a millisecond. Whole blocks."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Outgoing:
    """A body, and what is said of it."""

    body: NDArray[np.uint8]
    headers: Mapping[str, str]


def outgoing(value: Value, downlink: Downlink, base: str = "") -> Outgoing:
    """What to send to who has the value ``base``, as :data:`BASE_HEADER` says; "" has none."""
    step = value.step
    if step is None or base != f"{step.base:08x}":
        return Outgoing(
            body=value.body, headers={CODEC_HEADER: downlink.whole.name, CHECKSUM_HEADER: f"{value.checksum:08x}"}
        )
    headers = {
        CODEC_HEADER: downlink.usual.name,
        CHECKSUM_HEADER: f"{step.checksum:08x}",
        BASE_HEADER: base,
        RESULT_HEADER: f"{value.checksum:08x}",
    }
    return Outgoing(body=step.body, headers=headers)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Held:
    """A value that a learner has, from which a step may lead on. Made with a hold of its own."""

    values: Lease
    name: str
    """As in :data:`BASE_HEADER`."""

    async def follow(self, body: NDArray[np.uint8], headers: Mapping[str, str], out: Float32) -> None:
        """Take the step, with a pause for others between two slices of it.

        Raises :class:`ConnectionLost` if it does not lead where the syncer says.
        """
        assert headers[BASE_HEADER] == self.name
        codec, before, crc = CODECS[headers[CODEC_HEADER]], self.values.values, 0
        for lo in range(0, before.size, SLICE_NUMEL):
            hi = min(lo + SLICE_NUMEL, before.size)
            words = body[codec.payload_bytes(lo) : codec.payload_bytes(hi)]
            follow(before[lo:hi], words, codec, out[lo:hi])
            crc = checksum(out[lo:hi].view(np.uint8), crc)
            await asyncio.sleep(0)
        if f"{crc:08x}" != headers.get(RESULT_HEADER):
            raise ConnectionLost("the step from the value before leads elsewhere than at the syncer (checksum)")

    def release(self) -> None:
        self.values.release()
