"""A run that two syncers serve, each a process, with certificates.

One is killed, the other's rounds go on, it comes back elsewhere."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tests.live.waiting import until
from torch import nn

import gruppetto
from gruppetto.errors import GruppettoError
from gruppetto.launch.ask import find_endpoint
from gruppetto.launch.ask_shards import fetch_status_of_all, fetch_whole_model, shard_lines
from gruppetto.runtime.clock import MonotonicClock, wall_time_s
from gruppetto.runtime.security.identity import Identity, Role
from gruppetto.runtime.security.issuing import Authority
from gruppetto.runtime.security.places import any_papers, papers_of

pytestmark = [pytest.mark.live, pytest.mark.timeout(600)]
RUN = """
[run]
num_fragments = 4
sync_period = 4
liveness_s = 2.0
[syncer]
shards = 2
certs = "{certs}"
[codec]
downlink = "delta"
"""
PEOPLE = [
    Identity(role=role, name=name)
    for role, name in ((Role.SYNCER, "syncer"), (Role.LEARNER, "rider"), (Role.OPERATOR, "me"))
]


class Shards:
    """Of one run: their processes by number; all of them end with the test."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self.certs = place / "certs"
        authority = Authority(self.certs, now=wall_time_s())
        authority.found(days=30)
        for one in PEOPLE:
            authority.make(one, days=30, hosts=["127.0.0.1"] if one.role is Role.SYNCER else [])
        (place / "RUN.toml").write_text(RUN.format(certs=self.certs))
        self.processes: list[subprocess.Popen[str]] = []

    def start(self, *flags: str, state: str) -> subprocess.Popen[str]:
        verb = ["syncer", str(self._place / "RUN.toml"), "--listen", "127.0.0.1:0", "--state", str(self._place / state)]
        process = subprocess.Popen(
            [sys.executable, "-m", "gruppetto", *verb, *flags],
            stderr=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.processes.append(process)
        return process

    def url(self, state: str, process: subprocess.Popen[str]) -> str:
        until(lambda: (found := find_endpoint(self._place / state)) is not None and found.pid == process.pid)
        endpoint = find_endpoint(self._place / state)
        assert endpoint is not None
        return endpoint.url


@pytest.fixture
def shards(tmp_path: Path) -> Iterator[Shards]:
    made = Shards(tmp_path)
    yield made
    for process in made.processes:
        process.kill()
        process.communicate()


def test_a_killed_shard_costs_its_own_rounds_alone(shards: Shards) -> None:
    first = shards.start("--shard", "1/2", state="state")
    url = shards.url("state", first)
    tls = any_papers(shards.certs).tls
    second = shards.start("--shard", "2/2", "--directory", url, state="state-2")
    stranger = shards.start("--shard", "2/3", "--directory", url, "--set", "syncer.shards=3", state="state-3")

    model = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    longest_s = [0.0]
    stop = threading.Event()

    def steps() -> int:
        return int(learner.metrics()["gruppetto/steps"])

    def train() -> None:
        clock = MonotonicClock()
        while not stop.is_set():
            before = clock.now()
            optimizer.zero_grad()
            model(torch.ones(2, 4)).square().mean().backward()
            optimizer.step()
            longest_s[0] = max(longest_s[0], clock.now() - before)
            time.sleep(0.02)

    def rounds() -> list[int]:
        try:
            told = fetch_status_of_all(url, tls=tls)
        except GruppettoError:
            return [-1, -1]
        return [told["round"], told["by_shard"]["2"].get("round", -1)]

    # The address of any shard leads to all of them.
    address = shards.url("state-2", second)
    own = papers_of(shards.certs, PEOPLE[1])
    how = {"ca_file": own.ca, "cert_file": own.cert, "key_file": own.key, "tokens_per_step": 8, "quiet": True}
    learner = gruppetto.Learner(model, optimizer, syncer=address, name="rider", **how)
    with learner:
        rider = threading.Thread(target=train)
        rider.start()
        try:
            until(lambda: min(rounds()) >= 8)
            second.send_signal(signal.SIGKILL)
            second.wait()
            away = MonotonicClock()
            at, done = rounds()[0], steps()
            until(lambda: rounds()[0] >= at + 8)
            told = fetch_status_of_all(url, tls=tls)
            assert shard_lines(told)[0].startswith("! shard 2/2 does not answer (https://127.0.0.1:")
            assert steps() > done + 4 and not learner.connected
            with pytest.raises(GruppettoError, match="nobody answers"):
                fetch_whole_model(url, tls=tls)

            # A standby of its own, at another address, goes on from its state.
            back = shards.start("--shard", "2/2", "--directory", url, "--standby", state="state-2")
            shards.url("state-2", back)
            until(lambda: rounds()[1] >= 16)
            until(lambda: learner.connected)
            away_s = away.now()
        finally:
            stop.set()
            rider.join()
        whole = fetch_whole_model(url, tls=tls)
    assert whole is not None
    assert longest_s[0] < away_s / 2, "nobody waited for the one that was away"
    assert stranger.wait() == 2
    said = stranger.communicate()[1].strip().splitlines()[-1]
    assert said == "gruppetto: shard 2/3: this run is served by 2 shards, not 3; start it as NUMBER/2"
