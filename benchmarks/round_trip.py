"""How long a fragment takes from a learner to everybody and back, beside the limits of what it is made of.

    python benchmarks/round_trip.py [--mib 64] [--rounds 12] [--uplink fp32] [--downlink fp32] [--json]
    python benchmarks/round_trip.py --memory 1 4 8 [--mib 64]

One learner that does not train, one fragment that is the whole model, a real syncer in another process, loopback. A
round trip is what lies between two boundaries of the learner: snapshot, progress, ask, encode, upload, fold, outer
step, persist, publish, download, apply. The syncer's part comes from its own trace, the rest from the learner's clock.

After every round trip the limits of its parts are timed, on the same machine in the same second: copies of as many
bytes, a difference, the bytes through a raw socket to another process, a plain write and fsync. ``ratio`` is the median
of round trip over the sum of its limits.

``--memory``: so many learners on a model in 24 fragments; how far the syncer's memory rises at most (VmHWM), in models
of float32.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

SYNCER_PARTS = {"fold": ("Answer", "Folded"), "outer step": ("Folded", "OuterStepped")} | {
    "persist": ("OuterStepped", "Persisted"),
    "publish": ("Persisted", "Published"),
}


def serve(state: Path, fragments: int, uplink: str, downlink: str) -> None:
    from gruppetto.protocol import ProtocolSetting
    from gruppetto.runtime.serving import run_syncer
    from gruppetto.runtime.setting import SyncerSetting
    from gruppetto.trace.log import TraceWriter

    setting = SyncerSetting(state=state, listen="127.0.0.1:0", uplink=uplink, downlink=downlink, outer="paper")
    protocol = ProtocolSetting(num_fragments=fragments, sync_period=fragments, overlap_steps=0)
    run_syncer(
        protocol,
        setting,
        trace=TraceWriter(state.parent / "trace.jsonl", {}),
        on_ready=lambda endpoint: print(endpoint.url, os.getpid(), flush=True),
    )


@contextmanager
def a_syncer(directory: str, fragments: int, args: argparse.Namespace) -> Iterator[tuple[str, int]]:
    command = [sys.executable, __file__, "--serve", f"{directory}/state", "--fragments", str(fragments)]
    command += ["--uplink", args.uplink, "--downlink", args.downlink]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as syncer:
        assert syncer.stdout is not None
        try:
            url, pid = syncer.stdout.readline().split()
            yield url, int(pid)
        finally:
            syncer.terminate()


def a_model(numel: int, tensors: int) -> Any:
    import torch

    torch.set_num_threads(1)
    whole = torch.randn(numel, generator=torch.Generator().manual_seed(0))
    return torch.nn.ParameterDict(
        {f"w{i}": torch.nn.Parameter(part.clone()) for i, part in enumerate(whole.chunk(tensors))}
    )


# ── the round trip ───────────────────────────────────────────────────────────────────────────────────────────────────


def measure(args: argparse.Namespace) -> dict[str, Any]:
    import torch

    import gruppetto
    from gruppetto.numerics import CODECS, DOWNLINKS

    numel = args.mib * 2**18
    up, down = CODECS[args.uplink].payload_bytes(numel), DOWNLINKS[args.downlink].usual.payload_bytes(numel)
    trips, sums, limits = [], [], []
    with tempfile.TemporaryDirectory(dir=args.directory) as directory, a_syncer(directory, 1, args) as (url, _):
        model = a_model(numel, 1)
        limit = Limits(numel, up, down, Path(directory) / "plain")
        with gruppetto.Learner(
            model,
            None,
            hook=False,
            syncer=url,
            tokens_per_step=1,
            max_run_ahead=0,
            run_ahead_timeout_s=120.0,
            quiet=True,
        ) as learner:
            for round in range(1, args.rounds + 2):
                with torch.no_grad():
                    model["w0"] += 1e-3  # the same every time, or the gate wonders
                began = time.perf_counter()
                learner.step()  # waits for the round of the step before, and applies it
                took = time.perf_counter() - began
                assert learner._core.newest_round >= round - 1
                found = limit.measure()
                if round > 1:  # the first touches the memory, and its value comes whole
                    trips.append(took)
                    limits.append(found)
                    sums.append(sum(found.values()))
            after = learner.metrics()
        limit.close()
        anatomy = of_the_syncer(Path(directory) / "trace.jsonl")
    ours = {part: statistics.median(times) for part, times in anatomy.items()}
    return {
        "mib": args.mib,
        "uplink": args.uplink,
        "downlink": args.downlink,
        "round_trip_ms": 1e3 * statistics.median(trips),
        "limits_ms": 1e3 * statistics.median(sums),
        "ratio": statistics.median(a / b for a, b in zip(trips, sums, strict=True)),
        "ratio_best": min(a / b for a, b in zip(trips, sums, strict=True)),
        "parts_ms": {part: 1e3 * seconds for part, seconds in ours.items()}
        | {"apply": 1e3 * after["gruppetto/apply_s"] / (args.rounds + 1)}
        | {"snapshot": 1e3 * after["gruppetto/snapshot_s"] / (args.rounds + 1)},
        "limit_parts_ms": {part: 1e3 * statistics.median(each[part] for each in limits) for part in limits[0]},
    }


def of_the_syncer(trace: Path) -> dict[str, list[float]]:
    """How long each part took in each round, by the events that begin and end it."""
    at: dict[str, float] = {}
    found: dict[str, list[float]] = {"ask to answer": [], **{part: [] for part in SYNCER_PARTS}}
    for line in trace.read_text().splitlines():
        record = json.loads(line)
        name = record.get("in") or (record.get("out") if record.get("out") == "QuorumMet" else None)
        if name is None:
            continue
        at[name] = record["t"]
        if name == "Answer" and "QuorumMet" in at:
            found["ask to answer"].append(record["t"] - at["QuorumMet"])
        for part, (begins, ends) in SYNCER_PARTS.items():
            if name == ends and begins in at:
                found[part].append(record["t"] - at[begins])
    return {part: times[1:] for part, times in found.items()}


class Limits:
    """What the machine needs for the same bytes when nobody thinks about them."""

    def __init__(self, numel: int, up: int, down: int, file: Path) -> None:
        self._a, self._b, self._c = (np.ones(numel, np.float32) for _ in range(3))
        self._up, self._down, self._file = np.ones(up, np.uint8), np.ones(down, np.uint8), file
        ours, theirs = _connected()
        self._socket = ours
        self._process = get_context("fork").Process(target=_echo, args=(ours, theirs, up, down), daemon=True)
        self._process.start()
        theirs.close()

    def measure(self) -> dict[str, float]:
        def copy() -> None:
            np.copyto(self._c, self._a)

        def difference() -> None:
            np.subtract(self._a, self._b, out=self._c)

        once, twice = _seconds(copy), _seconds(difference)
        return {
            "snapshot (a copy)": once,
            "difference": twice,
            "upload (raw socket)": _seconds(self._send),
            "fold (a copy)": _seconds(copy),
            "outer step (two copies, five streams)": 2 * _seconds(copy) + _seconds(difference) * 5 / 3,
            "persist (write and fsync)": _seconds(self._write),
            "download (raw socket)": _seconds(self._receive),
            "apply (a copy)": _seconds(copy),
        }

    def close(self) -> None:
        self._socket.close()
        self._process.join()

    def _send(self) -> None:
        self._socket.sendall(self._up.data)
        self._socket.recv(1)

    def _receive(self) -> None:
        self._socket.sendall(b"!")
        _fill(self._socket, self._down)

    def _write(self) -> None:
        file = os.open(self._file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for array in (self._a, self._b):
            rest = array.data.cast("B")
            while rest:
                rest = rest[os.write(file, rest) :]
        os.fsync(file)
        os.close(file)


def _connected() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = socket.create_connection(server.getsockname())
        theirs, _ = server.accept()
    return ours, theirs


def _echo(not_ours: socket.socket, peer: socket.socket, up: int, down: int) -> None:
    not_ours.close()
    room, body = np.empty(up, np.uint8), np.ones(down, np.uint8)
    while _fill(peer, room):
        peer.sendall(b"!")
        if not peer.recv(1):
            return
        peer.sendall(body.data)


def _fill(peer: socket.socket, room: np.ndarray) -> bool:
    rest = room.data
    while rest:
        came = peer.recv_into(rest)
        if not came:
            return False
        rest = rest[came:]
    return True


def _seconds(run: Callable[[], object]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


# ── memory ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def memory(args: argparse.Namespace, learners: int) -> dict[str, Any]:
    """The syncer's peak after two periods with so many learners, beyond what it takes before the first."""
    import gruppetto

    numel, fragments = args.mib * 2**18, 24
    with (
        tempfile.TemporaryDirectory(dir=args.directory) as directory,
        a_syncer(directory, fragments, args) as (url, pid),
    ):
        before = _kib(pid, "VmRSS")

        def ride(number: int) -> None:
            model = a_model(numel, 4 * fragments)
            with gruppetto.Learner(
                model, None, hook=False, syncer=url, name=f"l{number}", tokens_per_step=1, max_run_ahead=1, quiet=True
            ) as learner:
                while learner._core.newest_round < 2 * fragments:
                    learner.step()
                    time.sleep(0.02)

        threads = [threading.Thread(target=ride, args=(number,)) for number in range(learners)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        peak = _kib(pid, "VmHWM")
    model_kib = args.mib * 1024
    return {"learners": learners, "peak_models": (peak - before) / model_kib, "before_mib": before / 1024}


def _kib(pid: int, field: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1])
    raise AssertionError(field)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=64, help="of the model in float32")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--uplink", default="fp32")
    parser.add_argument("--downlink", default="fp32")
    parser.add_argument("--memory", type=int, nargs="+", help="numbers of learners")
    parser.add_argument("--directory", help="where the syncer's state is written; default: the system's place")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--fragments", type=int, default=1, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve is not None:
        serve(args.serve, args.fragments, args.uplink, args.downlink)
        return
    found: Any = [memory(args, learners) for learners in args.memory] if args.memory else measure(args)
    if args.json:
        print(json.dumps(found))
    elif args.memory:
        for row in found:
            print(f"{row['learners']:3} learners: {row['peak_models']:.2f} models at most")
    else:
        print(f"{args.mib} MiB, {args.uplink} up, {args.downlink} down: medians of {args.rounds}")
        for part, took in found["parts_ms"].items():
            print(f"  {part:40}{took:9.1f} ms")
        print(f"  {'round trip':40}{found['round_trip_ms']:9.1f} ms")
        for part, took in found["limit_parts_ms"].items():
            print(f"  limit: {part:33}{took:9.1f} ms")
        print(f"  {'sum of the limits':40}{found['limits_ms']:9.1f} ms")
        print(f"  ratio {found['ratio']:.2f}, best {found['ratio_best']:.2f}")


if __name__ == "__main__":
    main()
