"""What each encoding of a contribution costs: bytes, processor time, error.

    python benchmarks/encoding.py [--numel 4194304] [--repeats 15] [--json]

Speeds are gigabytes of float32 a second of one core's time (``thread_time``: what other processes take of the machine
does not count, but what they take of its memory bandwidth does), best of the repeats. ``encode`` is Δ = base − θ to
bytes; ``with rest`` adds what is owed and notes what is left; ``fold`` adds a payload to a running merge, decoding on
the way, and ``of fp32`` is how long that takes beside a float32 payload, both timed in turn. ``error`` is
‖decoded − x‖ / ‖x‖ of standard normal values.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from gruppetto.numerics import (
    CODECS,
    Accumulator,
    FragmentSpec,
    Piece,
    encode_difference,
    encode_with_rest,
    inspect,
    warm,
)


def seconds(run: Callable[[], object]) -> float:
    """Of this thread."""
    began = time.thread_time()
    run()
    return time.thread_time() - began


def measure(numel: int, repeats: int) -> list[dict[str, Any]]:
    rng = np.random.default_rng(0)
    delta = rng.standard_normal(numel, np.float32)
    zeros, left, back = np.zeros(numel, np.float32), np.empty(numel, np.float32), np.empty(numel, np.float32)
    rest = rng.standard_normal(numel, np.float32) * np.float32(0.1)
    spec = FragmentSpec(index=0, pieces=(Piece(name="w", start=0, stop=numel, offset=0),), numel=numel)
    running = Accumulator(spec, ["rda"])
    payloads = {name: codec.encode(delta) for name, codec in CODECS.items()}
    seen = {name: inspect(payloads[name], codec, spec) for name, codec in CODECS.items()}
    running.fold_encoded(payloads["fp32"], CODECS["fp32"], 1.0, seen["fp32"])

    def fold(name: str) -> None:
        running.fold_encoded(payloads[name], CODECS[name], 1.0, seen[name])

    found = []
    for name, codec in CODECS.items():
        room = np.empty_like(payloads[name])
        jobs: dict[str, Callable[[], object]] = {
            "encode": partial(encode_difference, delta, zeros, codec, room),
            "decode": partial(codec.decode, payloads[name], numel, back),
            "inspect": partial(inspect, payloads[name], codec, spec),
            "fold": partial(fold, name),
            "fp32 fold": partial(fold, "fp32"),
        }
        if codec.keeps_rest:
            jobs["with rest"] = partial(encode_with_rest, delta, zeros, rest, codec, left, room)
        best = dict.fromkeys(jobs, float("inf"))
        for _ in range(repeats):
            for job, run in jobs.items():
                best[job] = min(best[job], seconds(run))
        codec.decode(payloads[name], numel, back)
        found.append(
            {
                "codec": name,
                "bytes_per_element": codec.bits / 8,
                **{
                    f"{job} GB/s": round(delta.nbytes / took / 1e9, 2)
                    for job, took in best.items()
                    if job != "fp32 fold"
                },
                "of fp32": round(best["fold"] / best["fp32 fold"], 2),
                "error": round(float(np.linalg.norm(back - delta) / np.linalg.norm(delta)), 5),
            }
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--numel", type=int, default=4 << 20)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    warm()
    rows = measure(arguments.numel, arguments.repeats)
    if arguments.json:
        print(json.dumps({"numel": arguments.numel, "repeats": arguments.repeats, "rows": rows}))
        return
    columns = [
        "codec",
        "bytes_per_element",
        "encode GB/s",
        "with rest GB/s",
        "decode GB/s",
        "inspect GB/s",
        "fold GB/s",
    ]
    columns += ["of fp32", "error"]
    print("| " + " | ".join(columns) + " |\n" + "|---" * len(columns) + "|")
    for row in rows:
        print("| " + " | ".join(str(row.get(column, "")) for column in columns) + " |")


if __name__ == "__main__":
    main()
