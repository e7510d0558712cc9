"""Kill the syncer again and again while learners train, and see what it costs.

A syncer, a standby (or a restart at once), and three small learners, all real processes on this machine. The syncer
that serves is killed (SIGKILL), or stopped and let go on when another has taken over (SIGSTOP, SIGCONT), ``--kills``
times. Printed are: merged rounds lost, the longest time between two steps of any learner, and the seconds from each
kill to the next merged round.

``python experiments/syncer_kills.py [--kills 20] [--by standby|restart] [--how kill|stop] [--durability interval]
[--tls]``: with ``--tls`` everybody shows a certificate.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from gruppetto.errors import GruppettoError
from gruppetto.launch.ask import fetch_status, find_endpoint
from gruppetto.launch.papers import learner_papers, looker_papers
from gruppetto.runtime.clock import MonotonicClock
from gruppetto.trace.log import Header, read_trace

CLOCK = MonotonicClock()
LEARNERS = ("a", "b", "c")
STEP_S = 0.05
PATIENCE_S = 240.0
RUN = """
[run]
num_learners = 3
num_fragments = 4
sync_period = 4
liveness_s = 4.0
durability = "{durability}"
durability_rounds = 8

[syncer]
lease_s = 4.0
"""


def train(name: str, syncer: str, diary: Path, certs: str) -> None:
    """A learner: it writes down when each step was done, what round it knew of and which versions it had."""
    import torch
    from torch import nn

    from gruppetto import Learner

    torch.set_num_threads(1)
    model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(4)))
    papers = learner_papers(certs or None, None, name)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with (
        diary.open("w", buffering=1) as file,
        Learner(
            model,
            optimizer,
            syncer=syncer,
            name=name,
            tokens_per_step=16,
            quiet=True,
            ca_file=papers.ca,
            cert_file=papers.cert,
            key_file=papers.key,
        ) as learner,
    ):
        while True:
            model(torch.randn(16, 64)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            versions = [fragment.version for fragment in learner._core.fragments]
            print(json.dumps([CLOCK.now(), learner.round, versions]), file=file)
            time.sleep(STEP_S)


class Run:
    """A run in a directory: its present syncer, perhaps a standby, and its learners."""

    def __init__(self, directory: Path, *, by: str, how: str, durability: str, tls: bool) -> None:
        self.directory, self.by, self.how = directory, by, how
        self.certs = make_certs(directory / "certs") if tls else ""
        self.tls = looker_papers(self.certs or None, None).tls
        self.state, self.lives = directory / "state", 0
        (directory / "RUN.toml").write_text(RUN.format(durability=durability))
        self.ports = [free_port(), free_port()] if by == "standby" else [free_port()]
        self.urls = [f"{'https' if tls else 'http'}://127.0.0.1:{port}" for port in self.ports]
        self.processes: list[subprocess.Popen[bytes]] = []
        self.syncers = [self.start_syncer(port, standby=i > 0) for i, port in enumerate(self.ports)]
        self.learners = [self._start(__file__, "--train", name, *self._learner(name)) for name in LEARNERS]

    def _learner(self, name: str) -> tuple[str, str, str]:
        return ",".join(self.urls), str(self.directory / f"{name}.jsonl"), self.certs

    def _start(self, *command: str) -> subprocess.Popen[bytes]:
        with (self.directory / "log").open("ab") as log:
            process = subprocess.Popen([sys.executable, *command], stderr=log, stdout=log)
        self.processes.append(process)
        return process

    def start_syncer(self, port: int, *, standby: bool) -> subprocess.Popen[bytes]:
        self.lives += 1
        trace = self.directory / f"trace-{self.lives:03}.jsonl"
        return self._start(
            *("-m", "gruppetto", "syncer", str(self.directory / "RUN.toml"), "--state", str(self.state)),
            *("--listen", f"127.0.0.1:{port}", "--trace", str(trace), *(["--standby"] if standby else [])),
            *(["--certs", self.certs] if self.certs else []),
        )

    def status(self) -> dict[str, Any]:
        """Of whoever has the authority; empty while nobody answers."""
        endpoint = find_endpoint(self.state)
        if endpoint is None:
            return {}
        try:
            return fetch_status(endpoint.url, tls=self.tls)
        except GruppettoError:
            return {}

    def until_round(self, round: int, *, after_epoch: int = 0) -> dict[str, Any]:
        began = CLOCK.now()
        while CLOCK.now() - began < PATIENCE_S:
            status = self.status()
            if status.get("round", -1) >= round and status["epoch"] > after_epoch:
                return status
            time.sleep(0.02)
        said = (self.directory / "log").read_text(errors="replace")[-4000:]
        raise SystemExit(f"{said}\nround {round} was not reached in {PATIENCE_S:g} s")

    def kill(self) -> dict[str, Any]:
        """Kill whoever serves; what it cost."""
        before = self.status()
        endpoint = find_endpoint(self.state)
        assert endpoint is not None
        (victim,) = (process for process in self.syncers if process.pid == endpoint.pid)
        port = self.ports[self.syncers.index(victim)]
        killed_at = CLOCK.now()
        os.kill(victim.pid, signal.SIGSTOP if self.how == "stop" else signal.SIGKILL)
        if self.how == "kill":
            victim.wait()
        if self.by == "restart":
            self.syncers = [self.start_syncer(port, standby=False)]
        after = self.until_round(0, after_epoch=before["epoch"])
        back_at = CLOCK.now()
        self.until_round(after["round"] + 1, after_epoch=before["epoch"])
        merged_at = CLOCK.now()
        code = None
        if self.how == "stop":
            os.kill(victim.pid, signal.SIGCONT)
            code = victim.wait(timeout=PATIENCE_S)
        if self.by == "standby":
            self.syncers[self.syncers.index(victim)] = self.start_syncer(port, standby=True)
            self.wait_until_standing_by(port)
        return {"back_s": back_at - killed_at, "merged_s": merged_at - killed_at, "exit_code": code}

    def wait_until_standing_by(self, port: int) -> None:
        began = CLOCK.now()
        while CLOCK.now() - began < PATIENCE_S:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    return
            time.sleep(0.05)

    def end(self) -> None:
        for process in reversed(self.processes):
            if process.poll() is None:
                process.kill()
            process.wait()


def make_certs(directory: Path) -> str:
    """Papers for everybody."""
    named = [word for name in LEARNERS for word in ("--learner", name)]
    command = [sys.executable, "-m", "gruppetto", "certs", "make", "--dir", str(directory), *named]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return str(directory)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def judge(directory: Path) -> dict[str, Any]:
    """What the learners' diaries and the headers of all lives say together."""
    lives = []
    for path in sorted(directory.glob("trace-*.jsonl")):
        headers = [line.data for line in read_trace(path) if isinstance(line, Header) and "epoch" in line.data]
        lives += [(h["epoch"], h["state"]["round"], h["unseen"]) for h in headers if h.get("state")]
    diaries = []
    for name in LEARNERS:
        lines = (directory / f"{name}.jsonl").read_text().splitlines()
        diaries.append([json.loads(line) for line in lines if line.endswith("]]")])
    fell = sum(
        any(b < a for a, b in zip(before[2], after[2], strict=True)) for d in diaries for before, after in pairwise(d)
    )
    # A round is lost if a version of it, known to a learner, is not in the state that a later life began with.
    seen = {version for diary in diaries for _, _, versions in diary for version in versions}
    lost = {v for v in seen for _, round, unseen in lives if round < v <= round + unseen}
    return {
        "lives": 1 + len(lives),
        "rounds": max(diary[-1][1] for diary in diaries),
        "rounds_lost": len(lost),
        "versions_that_fell": fell,
        "longest_step_s": max(after[0] - before[0] for diary in diaries for before, after in pairwise(diary)),
        "steps": sum(map(len, diaries)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--by", choices=("standby", "restart"), default="standby")
    parser.add_argument("--how", choices=("kill", "stop"), default="kill")
    parser.add_argument("--durability", choices=("round", "interval"), default="round")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--tls", action="store_true")
    parser.add_argument("--train", nargs=4, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.train:
        train(asked.train[0], asked.train[1], Path(asked.train[2]), asked.train[3])
        return
    with tempfile.TemporaryDirectory() as place:
        run = Run(Path(place), by=asked.by, how=asked.how, durability=asked.durability, tls=asked.tls)
        try:
            run.until_round(10)
            if asked.by == "standby":
                run.wait_until_standing_by(run.ports[1])
            kills = []
            for _ in range(asked.kills):
                run.until_round(run.status().get("round", 0) + 5)
                kills.append(run.kill())
            run.until_round(run.status().get("round", 0) + 10)
        finally:
            run.end()
        found = {
            "by": asked.by,
            "how": asked.how,
            "tls": asked.tls,
            "kills": len(kills),
            **judge(Path(place)),
            "each": kills,
        }
    if asked.json:
        print(json.dumps(found))
        return
    merged = sorted(each["merged_s"] for each in kills)
    done = {"kill": "killed", "stop": "stopped"}[asked.how]
    print(f"{found['kills']} times the syncer was {done}; {found['rounds']} rounds, {found['steps']} steps")
    print(f"merged rounds lost              {found['rounds_lost']}")
    print(f"versions that fell              {found['versions_that_fell']}")
    print(f"longest time between two steps  {found['longest_step_s']:.2f} s")
    print(f"to the next merged round        {merged[len(merged) // 2]:.2f} s (median), {merged[-1]:.2f} s (longest)")


if __name__ == "__main__":
    main()
