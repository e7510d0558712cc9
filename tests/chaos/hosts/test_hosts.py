"""What is made goes with the block, and what a killed process has left goes with the next."""

from __future__ import annotations

import subprocess

import pytest

from gruppetto.chaos.hosts.hosts import NAMES, NAMESPACES, Host, Hosts, missing, namespace_of


def test_what_is_left_of_the_dead_is_taken_away() -> None:
    if why := missing():
        pytest.skip(f"no hosts can be had here: {why}")
    gone = subprocess.Popen(["true"])
    gone.wait()
    left, ours = f"gruppetto-{gone.pid}-anna", namespace_of("another")
    for space in (left, ours):
        subprocess.run(["ip", "netns", "add", space], check=True)
        (NAMES / space).mkdir(parents=True)
    try:
        with Hosts([Host(name="ben", addresses=("198.18.254.1",))]) as hosts:
            assert (NAMESPACES / hosts.namespace("ben")).exists()
            assert not (NAMESPACES / left).exists() and not (NAMES / left).exists()
            assert (NAMESPACES / ours).exists(), "its process lives"
        assert not (NAMESPACES / hosts.namespace("ben")).exists()
    finally:
        subprocess.run(["ip", "netns", "del", ours], check=True)
        (NAMES / ours).rmdir()
