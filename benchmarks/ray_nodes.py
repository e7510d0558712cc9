"""A run on a Ray cluster of several nodes, of which some are lost and one comes while it goes on.

    python benchmarks/ray_nodes.py [--small] [--json]

The nodes are Ray's own (``ray.cluster_utils``), all on this machine: what is real are its scheduler, its loss of nodes
and the run; what is not is the network between them. Six learners of two sizes, of which four belong to the run and
two ride along when there is room; ``--small`` has half of each, and is stopped when all is well again. Exits with 1
when the run did not go as it should.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from ray.cluster_utils import Cluster

from gruppetto.errors import GruppettoError
from gruppetto.launch.ask import fetch_status, find_endpoint
from gruppetto.runtime.clock import Clock, MonotonicClock

RUN = """
[run]
rounds = {rounds}
sync_period = 8
[train]
eval_every_rounds = 10_000
eval_windows = 16
[model]
dim = 32
layers = 2
ffn_dim = 64
heads = 2
[launch]
syncer_resources = [["head", 0.1]]
[[group]]
name = "big"
learners = {each}
cpus = 2
resources = [["big", 1]]
set = ["train.batch_size={batch}"]
[[group]]
name = "small"
learners = {each}
max_learners = {most}
resources = [["small", 1]]
set = ["train.batch_size={half}"]
"""
PATIENCE_S = 240.0


@dataclass(frozen=True, kw_only=True)
class Flags:
    """Lose two nodes of a run and gain one."""

    small: bool = False
    """Three learners instead of six, stopped when those that were lost are back."""
    rounds: Annotated[int, tyro.conf.arg(metavar="T")] = 700
    """The last round of six."""
    json: bool = False
    """What came of it, as one JSON object on standard output."""


class Running:
    """``gruppetto launch`` on the cluster, as a user would start it."""

    def __init__(self, cluster: Cluster, place: Path, flags: Flags, clock: Clock) -> None:
        self._clock, self.out = clock, place / "run"
        each, batch = (1, 64) if flags.small else (2, 16)
        (place / "RUN.toml").write_text(
            RUN.format(
                rounds=100_000 if flags.small else flags.rounds, each=each, most=2 * each, batch=batch, half=batch // 2
            ),
            encoding="utf-8",
        )
        command = [sys.executable, "-m", "gruppetto", "launch", str(place / "RUN.toml"), "--on", "ray"]
        command += ["--address", cluster.address, "--out", str(self.out), "--json"]
        self.said = place / "said"
        with self.said.open("w") as said:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=said, text=True)

    def until(self, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The syncer's status once ``holds`` says yes to it."""
        since = self._clock.now()
        while self.process.poll() is None and self._clock.now() - since < PATIENCE_S:
            endpoint = find_endpoint(self.out)
            try:
                status = fetch_status(endpoint.url) if endpoint is not None else {}
            except GruppettoError:
                status = {}
            if status and holds(status):
                return status
            try:
                self.process.wait(0.3)
            except subprocess.TimeoutExpired:
                continue
        raise SystemExit(f"the run did not come so far:\n{self.said.read_text()[-4000:]}")

    def report(self, *, stop: bool) -> dict[str, Any]:
        if stop:
            self.process.terminate()
        out, _ = self.process.communicate(timeout=PATIENCE_S)
        if stop:
            command = [sys.executable, "-m", "gruppetto", "report", str(self.out), "--json"]
            out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        elif self.process.returncode:
            raise SystemExit(f"exit {self.process.returncode}:\n{self.said.read_text()[-4000:]}")
        found: dict[str, Any] = json.loads(out)
        return found


def states(status: dict[str, Any]) -> dict[str, str]:
    return {name: str(each["state"]) for name, each in status["learners"].items()}


def lose_and_gain(cluster: Cluster, place: Path, flags: Flags) -> dict[str, Any]:
    """What came of a run that loses two nodes and gains one."""
    small = cluster.add_node(num_cpus=1 if flags.small else 2, resources={"small": 1 if flags.small else 2})
    cluster.add_node(num_cpus=1 if flags.small else 2, resources={"small": 1 if flags.small else 2})
    big = cluster.add_node(num_cpus=4, resources={"big": 2})
    running = Running(cluster, place, flags, MonotonicClock())
    try:
        everybody = 3 if flags.small else 6
        running.until(lambda s: list(states(s).values()).count("live") == everybody and s["round"] >= 10)
        for node in (small, big):
            cluster.remove_node(node, allow_graceful=False)
        lost = running.until(lambda s: "live" not in {v for n, v in states(s).items() if n.startswith("big")})
        cluster.add_node(num_cpus=4, resources={"big": 2})
        back = running.until(lambda s: all(v == "live" for n, v in states(s).items() if n.startswith("big")))
        running.until(lambda s: s["round"] >= back["round"] + 8)
        report = running.report(stop=flags.small)
    finally:
        if running.process.poll() is None:
            running.process.terminate()
            running.process.wait()
    gone = [death["process"] for death in report["deaths"] if death["cause"] == "its node is gone"]
    return {
        "rounds": report["rounds"],
        "lost": sorted(gone),
        "rounds_without_them": back["round"] - lost["round"],
        "goodput": report["goodput"],
        "uptime": report["uptime"],
        "participation": report["participation"],
        "tokens": report["tokens"],
        "ledger": report["checks"],
        "recoveries": [
            {key: each[key] for key in ("learner", "source", "seconds", "search_s")} for each in report["recoveries"]
        ],
    }


def main(arguments: Sequence[str] | None = None) -> int:
    flags = tyro.cli(Flags, args=arguments)
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "resources": {"head": 1}})
    try:
        with tempfile.TemporaryDirectory() as place:
            found = lose_and_gain(cluster, Path(place), flags)
    finally:
        cluster.shutdown()
    went_on = bool(found["lost"]) and found["rounds_without_them"] > 0
    ended = flags.small or found["rounds"] == flags.rounds
    fine = went_on and ended and found["ledger"]["ledger_balances"] == "ok"
    if flags.json:
        print(json.dumps(found))
    else:
        for name, value in found.items():
            print(f"{name:>20}  {value}")
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
