"""Two workers with the same small model in several systems: what a step costs, what travels, who waits for the dead.

    python benchmarks/peers/compare.py [--peers PYTHON] [--seconds 20] [--json]

``--peers``: a Python with torchft and hivemind (``pip install torchft==0.2.0 hivemind``); without it ours alone is run.
For each system: a run without faults, one in which worker 1 is killed, and one in which it is stopped for a while. All
on this machine, in a network namespace of its own where that can be had, so that the bytes are of this alone.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import tyro

from gruppetto.experiments.peers.running import loopback_bytes

HERE = Path(__file__).resolve().parent
INSIDE = "GRUPPETTO_PEERS_INSIDE"
WARM_STEPS = 40
START_S = 90.0


@dataclass(frozen=True, kw_only=True)
class Flags:
    """Compare systems on the same small work."""

    peers: str | None = None
    """A Python that has torchft and hivemind."""
    seconds: float = 20.0
    """Of each run, and how long a worker is stopped."""
    only: tuple[str, ...] = ()
    """Names of systems: alone, gruppetto, torchft, hivemind."""
    json: bool = False
    """One JSON object on standard output."""


@dataclass(frozen=True, kw_only=True)
class System:
    name: str
    script: str
    python: str
    serve: Callable[[Path], Any]
    """A context that holds what the workers need besides each other; gives more of their environment."""


@contextmanager
def nothing(place: Path) -> Iterator[dict[str, str]]:
    yield {}


@contextmanager
def syncer(place: Path) -> Iterator[dict[str, str]]:
    sets = ["run.num_learners=2", "run.num_fragments=2", "run.sync_period=20", "fragments.how=tensor"]
    command = [sys.executable, "-m", "gruppetto", "syncer", "--state", str(place / "syncer"), "--listen", "127.0.0.1:0"]
    command += ["--set", "syncer.shared_memory=false"]  # what goes past the loopback would not be counted
    for each in sets:
        command += ["--set", each]
    with serving(command, place / "service.log"):
        wait_for((place / "syncer" / "endpoint.json").exists, "the syncer", place)
        yield {}


@contextmanager
def lighthouse(place: Path) -> Iterator[dict[str, str]]:
    program = str(Path(PEERS).parent / "torchft_lighthouse") if PEERS else "torchft_lighthouse"
    command = [program, "--min_replicas", "1", "--join_timeout_ms", "1000", "--bind", "127.0.0.1:29510"]
    with serving(command, place / "service.log"):
        yield {"TORCHFT_LIGHTHOUSE": "http://127.0.0.1:29510", "GLOO_SOCKET_IFNAME": "lo"}


@contextmanager
def serving(command: Sequence[str], log: Path) -> Iterator[None]:
    with log.open("w") as said:
        process = subprocess.Popen(command, stdout=said, stderr=said)
    try:
        time.sleep(3.0)
        yield
    finally:
        process.kill()
        process.wait()


PEERS = ""


def run(system: System, seconds: float, fault: str) -> dict[str, Any]:
    """One run of two workers. ``fault``: none, kill, stop."""
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        with system.serve(place) as more:
            workers = [start(system, place, 0, more)]
            peer = place / "0.peer"
            if system.name == "hivemind":
                wait_for(peer.exists, "the first peer")
            workers.append(start(system, place, 1, more, *([peer.read_text()] if peer.exists() else [])))
            try:
                wait_for(lambda: min(len(steps(place, i)) for i in (0, 1)) > WARM_STEPS, f"{system.name}", place)
                sent, began = loopback_bytes(), time.time()
                time.sleep(seconds / 2)
                if fault == "kill":
                    os.killpg(workers[1].pid, signal.SIGKILL)
                elif fault == "stop":
                    os.killpg(workers[1].pid, signal.SIGSTOP)
                time.sleep(seconds if fault != "none" else seconds / 2)
                ended, travelled = time.time(), loopback_bytes() - sent
            finally:
                for worker in workers:
                    os.killpg(worker.pid, signal.SIGKILL)
                    worker.wait()
        ends = [(at, loss) for at, loss in steps(place, 0) if began <= at <= ended]
        lasted = [b[0] - a[0] for a, b in pairwise(ends)]
        silent = ended - ends[-1][0] if ends else ended - began
        both = len(ends) + len([at for at, _ in steps(place, 1) if began <= at <= ended])
        return {
            "steps_per_s": len(ends) / (ended - began),
            "median_ms": 1e3 * statistics.median(lasted) if lasted else None,
            "p99_ms": 1e3 * sorted(lasted)[int(0.99 * len(lasted))] if lasted else None,
            "longest_s": max([*lasted, silent]),
            "kb_per_step": travelled / max(1, both) / 1e3,
            "loss": statistics.fmean(loss for _, loss in ends[-50:]) if ends else None,
        }


def start(system: System, place: Path, worker: int, more: dict[str, str], *arguments: str) -> subprocess.Popen[bytes]:
    environment = {**os.environ, **more, "OMP_NUM_THREADS": "1"}
    with (place / f"{worker}.log").open("w") as said:
        return subprocess.Popen(
            [system.python, str(HERE / system.script), str(place), str(worker), *arguments],
            stdout=said,
            stderr=said,
            env=environment,
            start_new_session=True,
        )


def steps(place: Path, worker: int) -> list[tuple[float, float]]:
    file = place / f"{worker}.steps"
    lines = file.read_text().splitlines() if file.exists() else []
    return [(float(a), float(b)) for a, b in (line.split() for line in lines if line.count(" ") == 1)]


def wait_for(holds: Callable[[], bool], what: str, place: Path | None = None) -> None:
    until = time.time() + START_S
    while not holds():
        if time.time() > until:
            said = "\n".join(log.read_text()[-1500:] for log in sorted(place.glob("*.log"))) if place else ""
            raise SystemExit(f"{what}: it has not come so far in {START_S:g} s\n{said}")
        time.sleep(0.1)


def main() -> int:
    global PEERS
    flags = tyro.cli(Flags)
    unshare, ip = shutil.which("unshare"), shutil.which("ip")
    if INSIDE not in os.environ and os.geteuid() == 0 and unshare and ip:
        inner = 'ip link set lo up && exec "$@"'
        os.execvpe(
            unshare,
            [unshare, "-n", "sh", "-c", inner, "sh", sys.executable, __file__, *sys.argv[1:]],
            {**os.environ, INSIDE: "1"},
        )
    PEERS = flags.peers or ""
    systems = [
        System(name="alone", script="alone.py", python=sys.executable, serve=nothing),
        System(name="gruppetto", script="ours.py", python=sys.executable, serve=syncer),
    ]
    if PEERS:
        systems += [
            System(name="torchft", script="with_torchft.py", python=PEERS, serve=lighthouse),
            System(name="hivemind", script="with_hivemind.py", python=PEERS, serve=nothing),
        ]
    found: dict[str, dict[str, Any]] = {}
    for system in systems:
        if flags.only and system.name not in flags.only:
            continue
        for fault in ("none", "kill", "stop") if system.name != "alone" else ("none",):
            found.setdefault(system.name, {})[fault] = run(system, flags.seconds, fault)
            print(f"{system.name:>10} {fault:>5}  {shown(found[system.name][fault])}", file=sys.stderr, flush=True)
    if flags.json:
        print(json.dumps(found, indent=2))
    return 0


def shown(one: dict[str, Any]) -> str:
    return "  ".join(f"{name} {value:.4g}" if value is not None else f"{name} –" for name, value in one.items())


if __name__ == "__main__":
    sys.exit(main())
