"""Our CRC-32 against zlib's."""

from __future__ import annotations

import itertools
import zlib

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gruppetto.numerics import crc

LENGTHS = st.one_of(
    st.integers(0, 3 * crc.LEAST_BYTES),
    st.integers(0, 40).map(lambda k: crc.LEAST_BYTES + k * crc.BLOCK_BYTES),
)


@given(length=LENGTHS, offset=st.integers(0, 33), start=st.integers(0, 2**32 - 1), seed=st.integers(0, 2**32 - 1))
def test_the_checksum_of_any_bytes_from_any_beginning(length: int, offset: int, start: int, seed: int) -> None:
    data = np.random.default_rng(seed).integers(0, 256, offset + length, np.uint8)[offset:]
    data.setflags(write=False)
    assert crc.crc32(data.data, start) == zlib.crc32(data, start)


@given(cuts=st.lists(st.integers(0, 20_000), max_size=4))
def test_of_parts_in_a_row_it_is_that_of_the_whole(cuts: list[int]) -> None:
    data = np.random.default_rng(0).integers(0, 256, 20_000, np.uint8).tobytes()
    value, ends = 0, [0, *sorted(cuts), len(data)]
    for start, stop in itertools.pairwise(ends):
        value = crc.crc32(memoryview(data)[start:stop], value)
    assert value == zlib.crc32(data)


def test_a_single_flipped_bit_is_noticed_wherever_it_is() -> None:
    data = np.zeros(crc.LEAST_BYTES + 5, np.uint8)
    right = crc.crc32(data)
    for at in range(0, data.size, 7):
        data[at] ^= 16
        assert crc.crc32(data) != right
        data[at] ^= 16
