"""Three sites and a syncer, each a host of its own: far away, cut off, moved, and behind gateways; with TLS."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from gruppetto.chaos.hosts.hosts import Host, Hosts, missing
from gruppetto.chaos.hosts.stage import Stage
from gruppetto.chaos.hosts.way import Terms, mbit

pytestmark = [pytest.mark.live, pytest.mark.alone, pytest.mark.timeout(600)]

NAME = "syncer.example"
OLD, NEW = ("198.18.0.1", "fd18::1"), ("198.18.0.2", "fd18::2")
SITES = (
    # Two gateways, and the same private address behind both; IPv4 leads there, and nothing else.
    Host(name="anna", addresses=("198.18.1.1",), private="192.168.1.2"),
    Host(name="ben", addresses=("198.18.2.1",), private="192.168.1.2"),
    # IPv6 alone.
    Host(name="clara", addresses=("fd18::3",)),
)
FAR = Terms(delay_s=0.1, jitter_s=0.01, bytes_per_s=mbit(100))
SLOW = Terms(delay_s=0.1, bytes_per_s=mbit(10))


def test_sites_that_are_far_away_are_cut_off_and_find_a_syncer_that_has_moved(tmp_path: Path) -> None:
    if why := missing(ipv6=True):
        pytest.skip(f"no hosts can be had here: {why}")
    pause, names = threading.Event(), [site.name for site in SITES]
    with Hosts([Host(name="syncer", addresses=OLD), *SITES]) as hosts:
        hosts.know("anna", {NAME: OLD})
        with Stage(tmp_path, hosts, learners=names, syncer=NAME, step_s=0.5) as stage:
            for name in names:
                stage.until_merged(name, rounds=1)
            moment = stage.moment()
            pause.wait(2.6)
            near = stage.since(moment)
            for name in names:
                hosts.set(name, up=SLOW if name == "ben" else FAR, down=FAR)
            pause.wait(1.0)
            moment = stage.moment()
            pause.wait(3.6)
            far = stage.since(moment)
            # 200 ms there and back, 100 Mbit/s, 10 from one of them: nobody's step is longer, and everybody takes part.
            for name in names:
                assert far.step_s[name] <= 1.02 * near.step_s[name], (near, far)
                assert far.merged[name] > 0.5, (near, far)
            # One silently cut off, one whose cable comes loose again and again, and a syncer that moves meanwhile.
            hosts.set("anna", up=Terms(cut=True), down=Terms(cut=True))
            for _ in range(3):
                hosts.plug("ben", into=False)
                pause.wait(0.3)
                hosts.plug("ben", into=True)
                pause.wait(0.4)
            hosts.move("syncer", *NEW)
            hosts.know("anna", {NAME: NEW})
            hosts.set("ben")
            pause.wait(3.0)
            hosts.set("anna")
            moment = stage.moment()
            for name in reversed(names):
                stage.until_merged(name, rounds=1, within_s=60.0)
            found = stage.end()
            # Training went on meanwhile.
            assert all(step_s <= 1.05 * near.step_s[name] for name, step_s in stage.since(moment).step_s.items())
        metrics = stage.metrics()
    assert all(metrics[name]["gruppetto/reconnects"] >= 1 for name in names)
    assert all(metrics[name]["gruppetto/waited_s"] < 0.1 for name in names)
    assert list(found.rounds) == list(range(min(found.rounds), max(found.rounds) + 1))
    assert found.balanced and found.recorded_tokens == found.tokens and found.tokens["lost"] == 0
    assert found.replay is not None and found.replay.identical
    # What a silent one had on its way when it was given up may arrive before its next hello.
    assert set(found.rejected) <= {"late", "stale-base", "no-work", "duplicate", "unknown-learner"}
