"""Memory that others may read: what is shared, what is refused, and what comes of a change."""

from __future__ import annotations

import asyncio
import fcntl
import gc
import os
import resource
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gruppetto.errors import ProtocolError
from gruppetto.runtime.setting import SyncerSetting
from gruppetto.runtime.shared_memory import (
    LEAST_BYTES,
    MAX_BUFFERS,
    MAX_PARTS,
    NotSeen,
    SharedMemory,
    copy_from,
    read_key,
)
from gruppetto.runtime.sinks import Bytes

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="nothing is shared on this system")

NUMEL = LEAST_BYTES // 4
OTHER = """
import sys
from gruppetto.runtime.shared_memory import SharedMemory
memory = SharedMemory()
array = memory.allocate(1 << 20)
array[:] = 7
print(memory.offer, memory.places([array.data]), flush=True)
sys.stdin.read()
"""


def copied(places: str, num_bytes: int) -> bytes:
    sink = Bytes(num_bytes)
    asyncio.run(copy_from(places, sink, lambda: None))
    return bytes(sink.data)


def octets(array: np.ndarray) -> memoryview:
    return array.view(np.uint8).data


def named() -> set[str]:
    """All memory of this process that can be opened by a name of ours."""
    found = set()
    for link in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # what lists them is among them
            found.add(str(link.readlink()))
    return {name for name in found if name.startswith("/memfd:gruppetto-")}


@given(
    parts=st.lists(st.tuples(st.integers(0, 4 * NUMEL), st.integers(1, 4 * NUMEL)), min_size=1, max_size=4),
    seed=st.integers(0, 9),
)
def test_parts_of_buffers_are_copied_as_they_are(parts: list[tuple[int, int]], seed: int) -> None:
    memory, rng = SharedMemory(), np.random.default_rng(seed)
    arrays = [memory.allocate(2 * NUMEL) for _ in parts]
    for array in arrays:
        array[:] = rng.standard_normal(array.size)
    views = [octets(array)[start : start + length] for array, (start, length) in zip(arrays, parts, strict=True)]
    places = memory.places(views)
    assert places is not None
    whole = b"".join(views)
    assert copied(places, len(whole)) == whole


def test_only_whole_bodies_in_shared_memory_are_named() -> None:
    memory = SharedMemory()
    shared, plain, small = memory.allocate(NUMEL), np.empty(NUMEL, np.float32), memory.allocate(NUMEL - 1)
    assert memory.places([octets(shared)]) is not None
    assert memory.places([octets(shared), octets(plain)]) is None
    assert memory.places([octets(small)]) is None and memory.places([]) is None
    assert memory.places([octets(shared)[:4]] * MAX_PARTS) is not None
    assert memory.places([octets(shared)[:4]] * (MAX_PARTS + 1)) is None


def test_a_buffer_goes_with_its_array_and_so_does_its_name() -> None:
    before = named()
    memory = SharedMemory()
    array = memory.allocate(NUMEL)
    body = octets(array)[:100]
    places = memory.places([body])
    assert places is not None and len(named() - before) == 2  # the key has one too
    del array
    gc.collect()
    assert copied(places, 100) == body  # somebody still has a part
    del body
    gc.collect()
    with pytest.raises(NotSeen):
        copied(places, 100)
    del memory
    gc.collect()
    assert not named() - before


def test_where_there_is_no_more_to_be_had_it_is_ordinary_memory() -> None:
    memory, limits = SharedMemory(), resource.getrlimit(resource.RLIMIT_NOFILE)
    first_free = os.dup(0)
    os.close(first_free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (first_free, limits[1]))
    try:
        array = memory.allocate(NUMEL)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    array[:] = 1.0
    assert memory.places([octets(array)]) is None
    many = [memory.allocate(NUMEL) for _ in range(MAX_BUFFERS + 3)]
    assert sum(memory.places([octets(one)]) is not None for one in many) == MAX_BUFFERS


@pytest.mark.parametrize(
    "named",
    ["", "/", "../../../etc/passwd", "1/2/3/4/5", "/proc/self/fd/0", f"1/2/{'0' * 32}/-1/5", f"1/2/{'0' * 32}/0/5\n"],
)
def test_what_names_no_memory_is_refused(named: str) -> None:
    with pytest.raises(ProtocolError, match="names no shared memory"):
        copied(named, 5)
    with pytest.raises(ProtocolError, match="names no shared memory"):
        read_key(named)


def test_only_sealed_memory_of_the_right_name_is_read(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(bytes(64))
    nonce, pid = "ab" * 16, os.getpid()
    unsealed = os.memfd_create(f"gruppetto-{nonce}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.truncate(unsealed, 64)
    other = os.memfd_create("another", os.MFD_CLOEXEC)
    os.truncate(other, 64)
    with (tmp_path / "secret").open("rb") as secret, os.fdopen(unsealed), os.fdopen(other):
        for descriptor, why in ((secret.fileno(), "not the memory"), (other, "not the memory"), (unsealed, "sealed")):
            with pytest.raises(NotSeen, match=why):
                copied(f"{pid}/{descriptor}/{nonce}/0/64", 64)
        fcntl.fcntl(unsealed, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        assert copied(f"{pid}/{unsealed}/{nonce}/0/64", 64) == bytes(64)
        with pytest.raises(ProtocolError, match="of 64 bytes, 65 were named"):
            copied(f"{pid}/{unsealed}/{nonce}/1/64", 64)
        with pytest.raises(ProtocolError, match="of 64 bytes for a body of 63"):
            copied(f"{pid}/{unsealed}/{nonce}/0/64", 63)
        with pytest.raises(NotSeen, match="not the memory"):
            copied(f"{pid}/{unsealed}/{'cd' * 16}/0/64", 64)


def test_the_key_is_shown_by_who_can_read_the_offer_and_nobody_else() -> None:
    mine, other = SharedMemory(), SharedMemory()
    assert mine.offer is not None and mine.is_key(read_key(mine.offer))
    assert not other.is_key(read_key(mine.offer)) and not mine.is_key("") and not mine.is_key("\u00fc" * 64)


def test_of_a_process_that_is_killed_nothing_is_left() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", OTHER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        offer, places = other.stdout.readline().split()
        assert len(read_key(offer)) == 64
        assert copied(places, 4 << 20) == np.full(1 << 20, 7, np.float32).tobytes()
        other.kill()
        other.wait()
        with pytest.raises(NotSeen, match="its process is gone"):
            copied(places, 4 << 20)
        with pytest.raises(NotSeen, match="its process is gone"):
            read_key(offer)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
def test_another_user_sees_nothing() -> None:
    memory = SharedMemory()
    array = memory.allocate(NUMEL)
    places = memory.places([octets(array)])
    assert places is not None
    os.seteuid(65534)
    try:
        with pytest.raises(NotSeen, match="somebody else"):
            copied(places, 4 * NUMEL)
    finally:
        os.seteuid(0)


@pytest.mark.parametrize(
    ("dials", "shares"),
    [
        ({}, True),
        ({"listen": "[::1]:0"}, True),
        ({"shared_memory": False}, False),
        ({"listen": "0.0.0.0:0"}, False),
        ({"listen": "some.host:7171"}, False),
        ({"max_bytes_per_s": 1e8}, False),
    ],
)
def test_memory_is_offered_on_loopback_alone(tmp_path: Path, dials: dict[str, object], shares: bool) -> None:
    assert SyncerSetting(state=tmp_path, **dials).shares_memory is shares  # type: ignore[arg-type]
