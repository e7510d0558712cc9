"""kill −9 of learners and syncer at random moments: the launcher starts them again, and the books come out even."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests.live.waiting import POLL_S, status_of

pytestmark = [pytest.mark.live, pytest.mark.timeout(600)]

ROUNDS = 240
TINY = [
    *("--set", "model.dim=32", "--set", "model.layers=2", "--set", "model.ffn_dim=64", "--set", "model.heads=2"),
    *("--set", "run.num_fragments=6", "--set", "run.sync_period=6", "--set", "run.liveness_s=3"),
    *("--set", "train.eval_every_rounds=80", "--set", "train.eval_windows=16"),
]


def processes(directory: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads((directory / "processes.json").read_bytes())
    except (OSError, ValueError):
        return {"learners": {}}
    return found


def start(directory: Path, *flags: str) -> subprocess.Popen[str]:
    file = directory / "RUN.toml"
    file.write_text("\n".join(f'[[learner]]\nname = "{name}"\nslowdown = 4.0' for name in "abc"))
    command = [sys.executable, "-m", "gruppetto", "train", str(file), *TINY, "--out", str(directory / "run"), "--json"]
    return subprocess.Popen([*command, *flags], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def kill(found: dict[str, Any], name: str) -> bool:
    """Only who is running, and not one that is only just starting."""
    who = found.get("syncer", {}) if name == "syncer" else found["learners"].get(name, {})
    if who.get("state") != "running":
        return False
    os.kill(who["pid"], signal.SIGKILL)
    return True


def test_whatever_is_killed_comes_back_and_every_token_is_accounted_for(tmp_path: Path) -> None:
    rng, directory = random.Random(7), tmp_path / "run"
    certs = str(tmp_path / "certs")
    named = [word for name in "abc" for word in ("--learner", name)]
    subprocess.run([sys.executable, "-m", "gruppetto", "certs", "make", "--dir", certs, *named], check=True)
    # Over TLS, where everybody shows his own certificate: the launcher, the judge and whoever asks how it stands too.
    train = start(tmp_path, "--rounds", str(ROUNDS), "--set", f"syncer.certs={certs}")
    victims = ["b", "syncer", "a"]
    rounds = sorted(rng.sample(range(20, ROUNDS // 2), len(victims)))
    struck: list[str] = []
    while train.poll() is None and victims:
        if status_of(directory).get("round", 0) >= rounds[0] and kill(processes(directory), victims[0]):
            struck.append(victims.pop(0))
            rounds.pop(0)
        time.sleep(POLL_S)
    out, errors = train.communicate()
    assert train.returncode == 0, errors
    report = json.loads(out)
    assert report["finished"] and report["rounds"] == ROUNDS
    assert report["checks"] == {"replay": "ok", "ledger_balances": "ok", "ledger_agrees": "ok"}
    tokens = report["tokens"]
    assert tokens["consumed"] == tokens["merged"] + tokens["discarded"] + tokens["lost"]
    assert not {"open", "promised"} & tokens.keys()
    assert [(death["process"], death["cause"]) for death in report["deaths"]] == [(name, "SIGKILL") for name in struck]
    assert struck == ["b", "syncer", "a"]
    assert set(report["lost_fragment_tokens"]) <= {"a", "b"}
    ended = processes(directory)
    assert {name: each["restarts"] for name, each in ended["learners"].items()} == {"a": 1, "b": 1, "c": 0}
    assert ended["syncer"]["restarts"] == 1
    assert not (directory / "deaths.jsonl").exists()
    secrets = [path.read_text().splitlines()[1] for path in (tmp_path / "certs").glob("*.key")]
    kept = [path.read_bytes() for path in directory.rglob("*") if path.is_file()]
    assert len(secrets) == 6 and not any(secret.encode() in content for secret in secrets for content in kept)
    assert [death["merged_again_s"] is not None for death in report["deaths"]][:2] == [True, True]


def test_a_mistake_is_not_started_again(tmp_path: Path) -> None:
    """The port is taken: the syncer says so once, and the run ends with what it said."""
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        train = start(tmp_path, "--rounds", "20", "--set", f"syncer.listen=127.0.0.1:{taken.getsockname()[1]}")
        _, errors = train.communicate()
    assert train.returncode == 2
    assert "cannot be listened on" in errors.splitlines()[-1]
