"""What a commit of the syncer costs, beside a plain write and fsync of as many bytes on the same disk.

One fragment a round with its momentum, as at P = H. Every commit is followed by the plain write, so that both meet the
same disk; medians are compared. Then what a round costs with ``durability = "interval"``, and what the control state
alone would cost as a row of SQLite (WAL, synchronous = FULL), as a file that replaces another, and as a commit of ours.
``python benchmarks/persist.py [--directory DIR] [--json]``
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from gruppetto.numerics import Layout, TensorSpec
from gruppetto.protocol.ledger import Ledger
from gruppetto.protocol.state import SyncerState
from gruppetto.protocol.units import Epoch, Fragment, Round, Version
from gruppetto.runtime.durable import force_directory, write_durably
from gruppetto.runtime.store import Identity, Store

SIZES = (1_000, 250_000, 4_000_000, 16_000_000)
REPEATS = 7
INTERVAL = 24
MOST_FOR_INTERVAL = 250_000
"""Beyond, a commit costs what its bytes cost, whenever they are written."""
CONTROL_BYTES = 8_000
"""The control record of a run of 24 fragments and 8 learners."""


def state(layout: Layout, round: int, fragments: int = 1) -> SyncerState:
    return SyncerState(
        run_id="bench",
        layout_hash=layout.layout_hash,
        epoch=Epoch(1),
        round=Round(round),
        versions=(Version(round),) * fragments,
        members=(),
        cursors=(),
        ledger=Ledger(num_fragments=fragments),
    )


def plain_write(path: Path, arrays: tuple[np.ndarray, ...]) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for array in arrays:
        rest = array.data.cast("B")
        while rest:
            rest = rest[os.write(file, rest) :]
    os.fsync(file)
    os.close(file)


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def measure(directory: Path, numel: int) -> dict[str, float]:
    layout = Layout(tensors=(TensorSpec(name="w", shape=(numel,), dtype="float32"),))
    identity = Identity(fragments_asked=1, fragmenter="balanced", merge=(), optimizer="nesterov")
    theta, momentum = np.ones(numel, np.float32), np.ones(numel, np.float32)
    values = {Fragment(0): (theta, (momentum,))}
    commits, plain, empty = [], [], []
    with Store(directory / f"state-{numel}", identity=identity, run_id="bench") as store:
        store.claim_epoch()
        store.commit(state(layout, 0), values, layout)
        for round in range(1, REPEATS + 1):
            there = state(layout, round)
            commits.append(seconds(partial(store.commit, there, values, layout)))
            plain.append(seconds(partial(plain_write, directory / "plain", (theta, momentum))))
            empty.append(seconds(partial(store.commit, there, {}, layout)))
    commit_s, plain_s = statistics.median(commits), statistics.median(plain)
    return {
        "numel": numel,
        "mib": 8 * numel / 2**20,
        "commit_ms": 1e3 * commit_s,
        "plain_ms": 1e3 * plain_s,
        "ratio": commit_s / plain_s,
        "without_fragments_ms": 1e3 * statistics.median(empty),
        "interval_round_ms": 1e3 * measure_interval(directory, numel) / INTERVAL,
    }


def measure_control(directory: Path) -> dict[str, float]:
    """Milliseconds to make a control state of a few kilobytes durable."""
    base = sqlite3.connect(directory / "control.db")
    base.execute("pragma journal_mode = wal")
    base.execute("pragma synchronous = full")
    base.execute("create table control (id integer primary key, state blob)")
    record = os.urandom(CONTROL_BYTES)

    def row() -> None:
        base.execute("insert or replace into control values (1, ?)", (record,))
        base.commit()

    def file() -> None:
        write_durably(directory / "control", [record])
        force_directory(directory)

    layout = Layout(tensors=(TensorSpec(name="w", shape=(1_000,), dtype="float32"),))
    identity = Identity(fragments_asked=1, fragmenter="balanced", merge=(), optimizer="nesterov")
    theta, momentum = np.ones(1_000, np.float32), np.ones(1_000, np.float32)
    values = {Fragment(0): (theta, (momentum,))}
    times: dict[str, list[float]] = {"sqlite": [], "sqlite_and_fragment": [], "file": [], "commit_with_fragment": []}
    with Store(directory / "control-state", identity=identity, run_id="bench") as store:
        store.claim_epoch()
        store.commit(state(layout, 0), values, layout)

        def both() -> None:
            write_durably(directory / "fragment", [theta.view(np.uint8), momentum.view(np.uint8)])
            force_directory(directory)
            row()

        for round in range(1, 4 * REPEATS + 1):
            times["sqlite"].append(seconds(row))
            times["sqlite_and_fragment"].append(seconds(both))
            times["file"].append(seconds(file))
            there = state(layout, round)
            times["commit_with_fragment"].append(seconds(partial(store.commit, there, values, layout)))
    base.close()
    return {f"{name}_ms": 1e3 * statistics.median(each) for name, each in times.items()}


def measure_interval(directory: Path, numel: int) -> float:
    """Seconds for one commit of all that changes in H rounds, every fragment once. NaN if it is large."""
    if numel > MOST_FOR_INTERVAL:
        return math.nan
    layout = Layout(tensors=tuple(TensorSpec(name=f"w{p}", shape=(numel,), dtype="float32") for p in range(INTERVAL)))
    identity = Identity(fragments_asked=INTERVAL, fragmenter="balanced", merge=(), optimizer="nesterov")
    theta = np.ones(numel, np.float32)
    everything = dict.fromkeys(map(Fragment, range(INTERVAL)), (theta, (theta,)))
    with Store(directory / f"interval-{numel}", identity=identity, run_id="bench") as store:
        store.claim_epoch()
        times = []
        for round in range(3):
            there = state(layout, round * INTERVAL, INTERVAL)
            times.append(seconds(partial(store.commit, there, everything, layout)))
        return statistics.median(times[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--directory", type=Path, help="a place on the disk to be measured")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=asked.directory) as directory:
        rows = [measure(Path(directory), numel) for numel in SIZES]
        control = measure_control(Path(directory))
    if asked.json:
        print(json.dumps({"rows": rows, "control": control}))
        return
    print(
        f"{'elements':>12} {'MiB':>8} {'commit ms':>10} {'plain ms':>9} {'ratio':>6} {'no fragment ms':>15} "
        f"{f'a round, every {INTERVAL} ms':>22}"
    )
    for r in rows:
        print(
            f"{r['numel']:>12,} {r['mib']:>8.1f} {r['commit_ms']:>10.1f} {r['plain_ms']:>9.1f} {r['ratio']:>6.2f} "
            f"{r['without_fragments_ms']:>15.1f} {r['interval_round_ms']:>22.2f}"
        )
    print("control state: " + ", ".join(f"{name.removesuffix('_ms')} {ms:.2f} ms" for name, ms in control.items()))


if __name__ == "__main__":
    main()
