"""What is written past the page cache is what was given, wherever it is cut, and on whatever file system."""

from __future__ import annotations

import errno
import fcntl
import itertools
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gruppetto.runtime import past_cache
from gruppetto.runtime.durable import write_durably

BLOCK_BYTES = 4096
DATA = np.random.default_rng(0).integers(0, 256, 10 * BLOCK_BYTES, np.uint8)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(past_cache, "BLOCK_BYTES", BLOCK_BYTES)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(stops=st.lists(st.integers(0, DATA.size), max_size=8), blocks=st.integers(0, 10), rest=st.integers(-1, 1))
def test_the_file_holds_the_chunks_end_to_end(tmp_path: Path, stops: list[int], blocks: int, rest: int) -> None:
    whole = DATA[: max(0, blocks * BLOCK_BYTES + rest)]
    cuts = [0, *sorted(min(stop, whole.size) for stop in stops), whole.size]
    chunks = [whole[start:stop].data for start, stop in itertools.pairwise(cuts)]
    write_durably(tmp_path / "file", chunks, past_cache=True)
    assert (tmp_path / "file").read_bytes() == whole.tobytes()


def test_where_blocks_cannot_be_written_directly_they_go_through_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, directly = os.write, []

    def refuses(file: int, data: Any) -> int:
        if fcntl.fcntl(file, fcntl.F_GETFL) & os.O_DIRECT:
            directly.append(len(data))
            raise OSError(errno.EINVAL, "Invalid argument")
        return write(file, data)

    monkeypatch.setattr(os, "write", refuses)
    write_durably(tmp_path / "file", [DATA.data], past_cache=True)
    assert (tmp_path / "file").read_bytes() == DATA.tobytes() and len(directly) <= 1


@pytest.mark.parametrize("at_most", [512, 1000, 4095])
def test_a_disk_that_takes_a_part_at_a_time_gets_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_most: int
) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda file, data: write(file, data[:at_most]))
    write_durably(tmp_path / "file", [DATA.data], past_cache=True)
    assert (tmp_path / "file").read_bytes() == DATA.tobytes()


@pytest.mark.parametrize("full_after", [0, 3, 9])
def test_a_full_disk_is_an_error_nothing_gets_the_name_and_no_thread_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, full_after: int
) -> None:
    write, left = os.write, [full_after]

    def fills_up(file: int, data: Any) -> int:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(file, data)

    (tmp_path / "file").write_bytes(b"old")
    monkeypatch.setattr(os, "write", fills_up)
    with pytest.raises(OSError, match="No space"):
        write_durably(tmp_path / "file", [DATA.data, b"more"], past_cache=True)
    assert (tmp_path / "file").read_bytes() == b"old"
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("gruppetto-write")]
