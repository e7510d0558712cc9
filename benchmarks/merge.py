"""How close the merge comes to the memory bandwidth of the machine.

    python benchmarks/merge.py [--numel 16777216 67108864] [--repeats 15] [--json]

Every row moves a known number of bytes an element. The yardstick is an in-place add of two vectors (STREAM's triad
beside it), compiled the same way and timed right before each row, because the bandwidth of a shared machine changes
within seconds. One thread throughout. ``share`` is the row's GB/s over that of its own add, median of the repeats.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numba import njit

from gruppetto.numerics import CODECS, Accumulator, FragmentSpec, Piece, encode_difference, inspect, rule_for, warm

HIDDEN = 1024
BLOCK_SHAPES = {
    "ln_1.weight": (HIDDEN,),
    "attn.qkv.weight": (3 * HIDDEN, HIDDEN),
    "attn.qkv.bias": (3 * HIDDEN,),
    "attn.proj.weight": (HIDDEN, HIDDEN),
    "attn.proj.bias": (HIDDEN,),
    "ln_2.weight": (HIDDEN,),
    "mlp.up.weight": (4 * HIDDEN, HIDDEN),
    "mlp.up.bias": (4 * HIDDEN,),
    "mlp.down.weight": (HIDDEN, 4 * HIDDEN),
    "mlp.down.bias": (HIDDEN,),
}
LEARNERS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One thing to time. ``before`` is not timed."""

    name: str
    bytes_per_element: float
    run: Callable[[], object]
    before: Callable[[], object] = lambda: None


@njit(nogil=True)
def add(a, b):  # type: ignore[no-untyped-def]
    for i in range(a.shape[0]):
        a[i] += b[i]


@njit(nogil=True)
def triad(a, b, c, s):  # type: ignore[no-untyped-def]
    for i in range(a.shape[0]):
        a[i] = b[i] + s * c[i]


def transformer_fragment(numel: int) -> tuple[FragmentSpec, list[str]]:
    """Blocks of a transformer, end to end, and what is left as rows of an embedding."""
    pieces: list[Piece] = []
    rules: list[str] = []
    offset = 0

    def append(name: str, shape: tuple[int, ...], size: int) -> None:
        nonlocal offset
        pieces.append(Piece(name=name, start=0, stop=size, offset=offset))
        rules.append(rule_for(name, shape))
        offset += size

    block_numel = sum(int(np.prod(shape)) for shape in BLOCK_SHAPES.values())
    for block in range(numel // block_numel):
        for name, shape in BLOCK_SHAPES.items():
            append(f"h.{block}.{name}", shape, int(np.prod(shape)))
    append("wte.weight", (50_000, HIDDEN), numel - offset)
    return FragmentSpec(index=0, pieces=tuple(pieces), numel=offset), rules


def rows_for(numel: int) -> list[Row]:
    rng = np.random.default_rng(0)
    spec, rules = transformer_fragment(numel)
    delta, other, theta, out = (rng.standard_normal(numel, np.float32) * np.float32(1e-3) for _ in range(4))
    momentum = np.zeros(numel, np.float32)
    running = Accumulator(spec, rules)
    payload = {name: codec.encode(delta) for name, codec in CODECS.items()}
    seen = {name: inspect(payload[name], codec, spec) for name, codec in CODECS.items()}
    room = {name: np.empty_like(payload[name]) for name in CODECS}

    def fold(name: str) -> None:
        running.fold_encoded(payload[name], CODECS[name], 1.5, seen[name])

    def refill(folds: int) -> None:
        running.reset()
        for _ in range(folds):
            fold("fp32")

    def step() -> None:
        running.outer_step(theta, (momentum,), "nesterov", 1e-3, 0.9)

    def merge() -> None:
        refill(LEARNERS)
        step()

    rows = [
        Row(name="in-place add (the limit)", bytes_per_element=12, run=lambda: add(out, other)),
        Row(name="STREAM triad", bytes_per_element=12, run=lambda: triad(out, delta, other, np.float32(0.5))),
        Row(name="first fold fp32", bytes_per_element=8, run=lambda: fold("fp32"), before=running.reset),
        *(
            Row(name=f"fold {n}", bytes_per_element=8 + c.bits / 8, run=partial(fold, n), before=partial(refill, 1))
            for n, c in CODECS.items()
        ),
        Row(name="final pass, nesterov", bytes_per_element=20, run=step, before=partial(refill, 2)),
        Row(name=f"merge of {LEARNERS}, all of it", bytes_per_element=8 + 12 * (LEARNERS - 1) + 20, run=merge),
    ]
    for name, codec in CODECS.items():
        word = codec.bits / 8
        rows += [
            Row(name=f"inspect {name}", bytes_per_element=word, run=partial(inspect, payload[name], codec, spec)),
            Row(
                name=f"encode difference {name}",
                bytes_per_element=8 + word,
                run=partial(encode_difference, delta, other, codec, out=room[name]),
            ),
        ]
    return rows + torch_rows(delta, spec)


def torch_rows(delta: np.ndarray[Any, Any], spec: FragmentSpec) -> list[Row]:
    """The same merge as one would write it in eager PyTorch: foreach over tensors. Without torch: no row."""
    try:
        import torch
    except ImportError:
        return []
    torch.set_num_threads(1)
    flat = torch.from_numpy(delta)
    learners = [
        [flat[p.offset : p.offset + p.numel] for p in spec.pieces]  # the same bytes for every learner: only read
        for _ in range(LEARNERS)
    ]
    theta = [torch.zeros_like(t) for t in learners[0]]
    momentum = [torch.zeros_like(t) for t in theta]

    @torch.no_grad()
    def merge() -> None:
        direction = [torch.zeros_like(t) for t in theta]
        radius = torch.zeros(len(theta))
        for pieces in learners:
            norms = torch.stack(torch._foreach_norm(pieces))
            radius += norms / LEARNERS
            torch._foreach_add_(direction, torch._foreach_div(pieces, (norms + 1e-30).tolist()))
        lengths = torch.stack(torch._foreach_norm(direction))
        torch._foreach_mul_(direction, (radius / (lengths + 1e-30)).tolist())
        torch._foreach_mul_(momentum, 0.9)
        torch._foreach_add_(momentum, direction)
        torch._foreach_add_(direction, momentum, alpha=0.9)
        torch._foreach_add_(theta, direction, alpha=-1e-3)

    bytes_per_element = 8 + 12 * (LEARNERS - 1) + 20
    return [Row(name=f"merge of {LEARNERS}, torch foreach", bytes_per_element=bytes_per_element, run=merge)]


def seconds_for(run: Callable[[], object]) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def measure(numel: int, repeats: int) -> list[dict[str, Any]]:
    rows = rows_for(numel)
    limit, found = rows[0], []
    times: dict[str, list[tuple[float, float]]] = {row.name: [] for row in rows}
    for repeat in range(repeats + 1):
        for row in rows:
            row.before()
            pair = seconds_for(limit.run), seconds_for(row.run)
            if repeat:  # the first touches the memory
                times[row.name].append(pair)
    for row in rows:
        median = statistics.median(mine for _, mine in times[row.name])
        share = statistics.median(add / mine for add, mine in times[row.name])
        found.append(
            {
                "row": row.name,
                "numel": numel,
                "median_ms": round(median * 1e3, 2),
                "best_ms": round(min(mine for _, mine in times[row.name]) * 1e3, 2),
                "gb_per_s": round(row.bytes_per_element * numel / median / 1e9, 2),
                "share": round(share * row.bytes_per_element / limit.bytes_per_element, 3),
            }
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--numel", type=int, nargs="+", default=[16 << 20, 64 << 20])
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    warm()
    found = [row for numel in arguments.numel for row in measure(numel, arguments.repeats)]
    if arguments.json:
        print(json.dumps({"threads": 1, "repeats": arguments.repeats, "rows": found}))
        return
    for numel in arguments.numel:
        print(f"\n{numel:,} elements, 1 thread, medians of {arguments.repeats}")
        print(f"{'':26}{'ms':>9}{'best ms':>9}{'GB/s':>8}{'share':>8}")
        for row in found:
            if row["numel"] == numel:
                print(
                    f"{row['row']:26}{row['median_ms']:9.2f}{row['best_ms']:9.2f}{row['gb_per_s']:8.1f}{row['share']:8.2f}"
                )


if __name__ == "__main__":
    main()
