"""How merging grows with the number of shards: one process with the whole model, then two with half of it each.

    python benchmarks/shards.py [--numel 16777216] [--learners 4] [--repeats 7] [--uplink bf16] [--json]

Every process does what a syncer does with a round of contributions: it checks each as it arrives (checksum, norms,
finite values), folds it, and takes an outer step; nothing travels, nothing is written to a disk. One thread each, which
is what a syncer merges with. Whole and halves take turns; ``ratio`` is the median of the turns, by the wall clock, and
``cpu`` by processor time, which is what a loaded machine leaves to be compared: more processes get more of its time.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from typing import Any

import numpy as np

from gruppetto.numerics import CODECS, Layout, TensorSpec, warm
from gruppetto.numerics.deal import Shard, part_of
from gruppetto.numerics.downlink import DOWNLINKS
from gruppetto.numerics.outer import OuterSetting
from gruppetto.protocol.units import Fragment, Round, Version
from gruppetto.runtime.cut import cut, merge_rules
from gruppetto.runtime.intake import Intake
from gruppetto.runtime.parameters import Parameters
from gruppetto.runtime.wire import checksum

FRAGMENTS = 24
CHUNK_BYTES = 1 << 20


class Half:
    """What one shard has of a model of ``numel`` elements."""

    def __init__(self, shard: Shard, *, numel: int, learners: int, uplink: str) -> None:
        rows = max(1, numel // (4 * FRAGMENTS) // 256)
        tensors = (TensorSpec(name=f"h.{i}.weight", shape=(rows, 256), dtype="float32") for i in range(4 * FRAGMENTS))
        layout = Layout(tensors=tuple(tensors))
        self._parts = part_of(cut(layout, FRAGMENTS), shard)
        self._codec, self._learners = CODECS[uplink], learners
        outer = OuterSetting(optimizer="nesterov", lr=0.4, momentum=0.9)
        rules = merge_rules(layout)
        self._parameters = Parameters(self._parts, rules=rules, outer=outer, downlink=DOWNLINKS["fp32"])
        rng = np.random.default_rng(shard.number)
        largest = max(spec.numel for spec in self._parts.fragments)
        delta = rng.standard_normal(largest, np.float32) * np.float32(1e-3)
        self._payloads = {n: self._codec.encode(delta[:n]) for n in {spec.numel for spec in self._parts.fragments}}
        self._checksums = {n: checksum(payload) for n, payload in self._payloads.items()}
        self._intake, seeds = Intake(self._codec, largest, 2), Intake(CODECS["fp32"], largest, 1)
        for p, spec in enumerate(self._parts.fragments):
            first = np.zeros(spec.numel, np.float32).view(np.uint8)
            with seeds.open(spec, len(first), checksum(first)) as upload:
                upload.write(first)
                body = upload.finish()
            self._parameters.seed(Fragment(p), body)
            body.release()
        self._parameters.publish((Fragment(p), Version(0)) for p in range(len(self._parts.fragments)))
        self._round = 0

    def merge_all(self) -> None:
        """A contribution of every learner to every fragment, and the outer steps."""
        self._round += 1
        for p, spec in enumerate(self._parts.fragments):
            fragment, payload = Fragment(p), self._payloads[spec.numel].data
            for _ in range(self._learners):
                with self._intake.open(spec, len(payload), self._checksums[spec.numel]) as upload:
                    for at in range(0, len(payload), CHUNK_BYTES):
                        upload.write(payload[at : at + CHUNK_BYTES])
                    body = upload.finish()
                self._parameters.fold(fragment, body, self._codec, 1.5)
                body.release()
            self._parameters.outer_step([fragment], Round(self._round))
            self._parameters.publish([(fragment, Version(self._round))])


def work(shard: Shard, **what: Any) -> None:
    """A process of its own: for each line on standard input all is merged once, and the seconds are told."""
    half = Half(shard, **what)
    half.merge_all()
    print("ready", flush=True)
    for _ in sys.stdin:
        cpu = time.process_time()
        half.merge_all()
        print(time.process_time() - cpu, flush=True)


class Processes:
    def __init__(self, of: int, what: list[str]) -> None:
        call = [sys.executable, __file__, *what, "--shard"]
        env = {**os.environ, "OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
        self._all = [
            subprocess.Popen([*call, f"{k}/{of}"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)
            for k in range(1, of + 1)
        ]
        for process in self._all:
            assert process.stdout is not None and process.stdout.readline() == "ready\n"

    def merge(self) -> tuple[float, float]:
        """Seconds by the wall clock until all have merged, and the most processor seconds that one needed."""
        began = time.perf_counter()
        for process in self._all:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        cpu = [float(process.stdout.readline()) for process in self._all if process.stdout is not None]
        return time.perf_counter() - began, max(cpu)

    def close(self) -> None:
        for process in self._all:
            process.communicate()


def measure(numel: int, learners: int, repeats: int, uplink: str) -> dict[str, Any]:
    what = ["--numel", str(numel), "--learners", str(learners), "--uplink", uplink]
    warm({"fp32", uplink})
    one, two = Processes(1, what), Processes(2, what)
    turns = [(one.merge(), two.merge()) for _ in range(repeats)]
    one.close()
    two.close()
    whole_s = statistics.median(a[0] for a, _ in turns)
    return {
        "numel": numel,
        "learners": learners,
        "uplink": uplink,
        "whole_s": whole_s,
        "whole_cpu_s": statistics.median(a[1] for a, _ in turns),
        "ns_per_element_and_learner": 1e9 * statistics.median(a[1] for a, _ in turns) / (numel * learners),
        "ratio": statistics.median(a[0] / b[0] for a, b in turns),
        "cpu": statistics.median(a[1] / b[1] for a, b in turns),
        "ratios": sorted(round(a[0] / b[0], 2) for a, b in turns),
        "load": os.getloadavg()[0],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--numel", type=int, default=1 << 24)
    parser.add_argument("--learners", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--uplink", default="bf16")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--shard", help=argparse.SUPPRESS)
    flags = parser.parse_args()
    what = {"numel": flags.numel, "learners": flags.learners, "uplink": flags.uplink}
    if flags.shard:
        work(Shard.parse(flags.shard), **what)
        return
    found = measure(**what, repeats=flags.repeats)
    if flags.json:
        print(json.dumps(found))
        return
    print(f"{flags.numel:,} elements, {flags.learners} learners, {flags.uplink}; load {found['load']:.0f}")
    print(f"one process merges all in {found['whole_s']:.2f} s ({found['whole_cpu_s']:.2f} s of a core's time)")
    print(f"two with half of it each are {found['ratio']:.2f} times as fast by the wall clock {found['ratios']},")
    print(f"{found['cpu']:.2f} times by the processor time of the slower one")


if __name__ == "__main__":
    main()
