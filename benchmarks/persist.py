"""What a commit of the syncer costs, beside a plain write and fsync of as many bytes on the same disk.

One fragment a round with its momentum, as at P = H. Every commit is followed by the plain write, so that both meet the
same disk; medians are compared. ``python benchmarks/persist.py [--directory DIR] [--json]``
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

from gruppetto.numerics import Layout, TensorSpec
from gruppetto.protocol.ledger import Ledger
from gruppetto.protocol.state import SyncerState
from gruppetto.runtime.store import Identity, Store

SIZES = (1_000, 250_000, 4_000_000, 16_000_000)
REPEATS = 7


def state(layout: Layout, round: int) -> SyncerState:
    return SyncerState(
        run_id="bench",
        layout_hash=layout.layout_hash,
        epoch=1,
        round=round,
        versions=(round,),
        members=(),
        cursors=(),
        ledger=Ledger(num_fragments=1),
    )


def plain_write(path: Path, arrays: tuple[np.ndarray, ...]) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for array in arrays:
        rest = array.data.cast("B")
        while rest:
            rest = rest[os.write(file, rest) :]
    os.fsync(file)
    os.close(file)


def seconds(work) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def measure(directory: Path, numel: int) -> dict[str, float]:
    layout = Layout(tensors=(TensorSpec(name="w", shape=(numel,), dtype="float32"),))
    identity = Identity(fragments_asked=1, fragmenter="balanced", merge=(), optimizer="nesterov")
    theta, momentum = np.ones(numel, np.float32), np.ones(numel, np.float32)
    commits, plain, empty = [], [], []
    with Store(directory / f"state-{numel}", identity=identity, run_id="bench") as store:
        store.claim_epoch()
        store.commit(state(layout, 0), {0: (theta, (momentum,))}, layout)
        for round in range(1, REPEATS + 1):
            commits.append(seconds(lambda r=round: store.commit(state(layout, r), {0: (theta, (momentum,))}, layout)))
            plain.append(seconds(lambda: plain_write(directory / "plain", (theta, momentum))))
            empty.append(seconds(lambda r=round: store.commit(state(layout, r), {}, layout)))
    commit_s, plain_s = statistics.median(commits), statistics.median(plain)
    return {
        "numel": numel,
        "mib": 8 * numel / 2**20,
        "commit_ms": 1e3 * commit_s,
        "plain_ms": 1e3 * plain_s,
        "ratio": commit_s / plain_s,
        "without_fragments_ms": 1e3 * statistics.median(empty),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--directory", type=Path, help="a place on the disk to be measured")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=asked.directory) as directory:
        rows = [measure(Path(directory), numel) for numel in SIZES]
    if asked.json:
        print(json.dumps({"rows": rows}))
        return
    print(f"{'elements':>12} {'MiB':>8} {'commit ms':>10} {'plain ms':>9} {'ratio':>6} {'no fragment ms':>15}")
    for r in rows:
        print(
            f"{r['numel']:>12,} {r['mib']:>8.1f} {r['commit_ms']:>10.1f} {r['plain_ms']:>9.1f} {r['ratio']:>6.2f} "
            f"{r['without_fragments_ms']:>15.1f}"
        )


if __name__ == "__main__":
    main()
