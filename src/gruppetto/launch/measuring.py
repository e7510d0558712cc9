"""What this machine can do, measured with the very parts that a syncer and a learner use.

Each rate is the median of a few tries. On a machine that others use too they are what is left of it: the load it had is
written down with them.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np

from gruppetto.errors import DataError
from gruppetto.numerics import Accumulator, Layout, TensorSpec, fragment, rule_for, warm
from gruppetto.numerics.codec import CODECS
from gruppetto.numerics.downlink import DOWNLINKS, take_step
from gruppetto.numerics.inspection import inspect
from gruppetto.protocol.ledger import Ledger
from gruppetto.protocol.state import SyncerState
from gruppetto.protocol.units import FIRST_EPOCH, Fragment, Round, Version
from gruppetto.runtime.clock import Clock
from gruppetto.runtime.store import Identity, Store
from gruppetto.sim.machine import MachineProfile

__all__ = [
    "Disk",
    "Line",
    "Start",
    "measure_disk",
    "measure_loopback",
    "measure_machine",
    "measure_start",
    "usable_cores",
]

ROW, ROWS = 1024, 4096
"""A fragment of 4 million elements in matrices, as a model of a hundred million has it."""
FEW = 1000
REPEATS = 5
LOOPBACK_BYTES = 64 << 20
CHUNK_BYTES = 1 << 18
PINGS = 50
START_TIMEOUT_S = 180.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Disk:
    """What a commit costs: ``forced_s``, and its bytes."""

    forced_s: float
    bytes_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A connection: one way, and bytes a second."""

    latency_s: float
    bytes_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """From a learner's process to its first step, and one step of the tiny model."""

    start_s: float
    step_s: float


def usable_cores() -> int:
    """Of this process, where the system tells (Linux); else all there are."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def measure_machine(
    directory: Path, clock: Clock, *, line: Line | None = None, progress: Callable[[str], None] = lambda text: None
) -> MachineProfile:
    """Everything. ``directory`` lies on the disk that the syncer will use; ``line``: to the syncer, else loopback.

    Without torch nothing is said of learners. Raises OSError when the disk cannot be written.
    """
    load = os.getloadavg()[0] / usable_cores()  # before there is any of our own
    progress("merging")
    fold, merge = measure_merge(clock)
    progress("forcing commits to disk")
    disk = measure_disk(directory, clock)
    if line is None:
        progress("sending over loopback")
        line = measure_loopback(clock)
    progress("starting a learner's process")
    start = measure_start(clock)
    return MachineProfile(
        fold_elements_per_s=fold,
        merge_elements_per_s=merge,
        step_down_elements_per_s=measure_step_down(clock),
        persist_bytes_per_s=disk.bytes_per_s,
        persist_s=disk.forced_s,
        latency_s=line.latency_s,
        link_bytes_per_s=line.bytes_per_s,
        start_s=start.start_s if start is not None else None,
        step_s=start.step_s if start is not None else None,
        load_per_core=round(load, 2),
    )


def measure_merge(clock: Clock) -> tuple[float, float]:
    """Elements a second of folding one answer with its inspection, and of the outer step with its copies."""
    warm({"bf16"})
    layout = Layout(tensors=tuple(TensorSpec(name=f"w{i}", shape=(ROW, ROW), dtype="float32") for i in range(4)))
    spec = fragment(layout, 1).fragments[0]
    merge = Accumulator(spec, [rule_for(p.name, (ROW, ROW)) for p in spec.pieces])
    values = np.random.default_rng(0).standard_normal(spec.numel, np.float32)
    codec = CODECS["bf16"]
    payload = codec.encode(values)
    theta, momentum = np.zeros_like(values), np.zeros_like(values)

    def fold() -> None:
        merge.fold_encoded(payload, codec, 1.0, inspect(payload, codec, spec))

    def step() -> None:
        merge.outer_step(theta.copy(), (momentum.copy(),), "nesterov", 0.4, 0.9)

    folds, steps = [], []
    for _ in range(REPEATS + 1):
        merge.reset()
        fold()
        folds.append(_seconds(clock, fold))
        steps.append(_seconds(clock, step))
    return spec.numel / median(folds[1:]), spec.numel / median(steps[1:])


def measure_step_down(clock: Clock) -> float:
    """Elements a second of taking a step in the words in which it is published."""
    codec = DOWNLINKS["delta"].usual
    before, step = np.random.default_rng(0).standard_normal((2, ROW * ROW), np.float32)
    _, rest, _ = take_step(before, before + step, None, codec)
    left, took = np.empty_like(rest), []
    for _ in range(REPEATS + 1):
        after = before + step
        took.append(_seconds(clock, partial(take_step, before, after, rest, codec, left)))
    return float(before.size / median(took[1:]))


def measure_disk(directory: Path, clock: Clock) -> Disk:
    """Commits of a syncer's store, with hardly any bytes and with many."""
    took: dict[int, float] = {}
    with TemporaryDirectory(dir=directory, prefix=".gruppetto-doctor-") as place:
        for numel in (FEW, ROW * ROWS):
            layout = Layout(tensors=(TensorSpec(name="w", shape=(numel,), dtype="float32"),))
            values = np.ones(numel, np.float32)
            identity = Identity(fragments_asked=1, fragmenter="balanced", merge=(), optimizer="nesterov")
            with Store(Path(place) / str(numel), identity=identity, run_id="doctor") as store:
                store.claim_epoch()

                def commit(round: int, store: Store = store, layout: Layout = layout, values=values) -> None:  # type: ignore[no-untyped-def]
                    store.commit(_state(layout, round), {Fragment(0): (values, (values,))}, layout)

                commit(0)
                took[numel] = median(_seconds(clock, lambda r=r: commit(r)) for r in range(1, REPEATS + 1))  # type: ignore[misc]
    more_s = max(took[ROW * ROWS] - took[FEW], 1e-6)
    return Disk(forced_s=took[FEW], bytes_per_s=8 * (ROW * ROWS - FEW) / more_s)


def measure_loopback(clock: Clock) -> Line:
    """A connection of this machine to itself: half the time of a small message and its answer, and a large one."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=_answer, args=(server,), name="loopback", daemon=True).start()
        with socket.create_connection(server.getsockname(), timeout=START_TIMEOUT_S) as line:
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

            def ping() -> None:
                line.sendall(b"?")
                line.recv(1)

            pings = [_seconds(clock, ping) for _ in range(PINGS)]

            def send() -> None:
                block = bytes(CHUNK_BYTES)
                line.sendall(b"!")
                for _ in range(LOOPBACK_BYTES // CHUNK_BYTES):
                    line.sendall(block)
                line.recv(1)

            return Line(latency_s=median(pings) / 2, bytes_per_s=LOOPBACK_BYTES / _seconds(clock, send))


def measure_start(clock: Clock) -> Start | None:
    """A process like a learner's; None without torch. Raises :class:`DataError` when it does not come to a step."""
    from importlib.util import find_spec

    if find_spec("torch") is None:
        return None
    began = clock.now()
    with subprocess.Popen(
        [sys.executable, "-m", "gruppetto.launch.first_step"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        watchdog = threading.Timer(START_TIMEOUT_S, process.kill)
        watchdog.start()
        try:
            assert process.stdout is not None and process.stderr is not None
            first = process.stdout.readline()
            start_s = clock.now() - began
            rest, said = process.stdout.readline(), process.stderr.read()
        finally:
            watchdog.cancel()
    if process.returncode or not first:
        last = said.strip().splitlines()[-1:] or ["it said nothing"]
        raise DataError(f"a learner's process fails: {last[0]}", where="torch", fix="mend the installation of torch")
    return Start(start_s=start_s, step_s=float(rest))


def _answer(server: socket.socket) -> None:
    peer, _ = server.accept()
    with peer:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while asked := peer.recv(1):
            missing = LOOPBACK_BYTES if asked == b"!" else 0
            while missing and (came := peer.recv(min(missing, CHUNK_BYTES))):
                missing -= len(came)
            peer.sendall(b".")


def _state(layout: Layout, round: int) -> SyncerState:
    return SyncerState(
        run_id="doctor",
        layout_hash=layout.layout_hash,
        epoch=FIRST_EPOCH,
        round=Round(round),
        versions=(Version(round),),
        members=(),
        cursors=(),
        ledger=Ledger(num_fragments=1),
    )


def _seconds(clock: Clock, work: Callable[[], object]) -> float:
    began = clock.now()
    work()
    return clock.now() - began
