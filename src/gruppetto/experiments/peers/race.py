"""From a ride to what came of it: one system, its workers as processes, in a network namespace of their own."""

from __future__ import annotations

import difflib
import inspect
import json
import os
import shutil
import subprocess
import sys
import tempfile
from importlib import import_module
from pathlib import Path

import numpy as np

from gruppetto.errors import RunFailed
from gruppetto.experiments.child import said_by
from gruppetto.experiments.material import open_material
from gruppetto.experiments.models import MODELS
from gruppetto.experiments.peers.course import Setting
from gruppetto.experiments.peers.crew import ALONE, OURS, SCRIPTS
from gruppetto.experiments.peers.mishaps import SLOW, SPOILT
from gruppetto.experiments.ride import Ride
from gruppetto.experiments.settings import training_of
from gruppetto.experiments.store import Result
from gruppetto.experiments.texts import CORPUS

__all__ = ["PEERS", "find_peers", "race"]

PEERS = ("torchft", "hivemind")
PACE_S = 0.1
SYNC_EVERY = 24
APART = [
    "unshare",
    "-n",
    "-p",
    "-f",
    "--kill-child",
    "--mount-proc",
    "sh",
    "-c",
    'ip link set lo up && exec "$@"',
    "sh",
]
"""With a loopback of its own, on which nobody else has bytes, and processes that end together."""


def find_peers(cache: Path) -> Path | None:
    """The Python that has torchft and hivemind, None where nobody has made one."""
    python = cache / "peers" / "bin" / "python"
    return python if python.exists() else None


def race(asked: Ride, cache: Path) -> Result:
    """Run it, in a network namespace of its own where that can be had, so that the bytes are of this alone.

    Raises :class:`RunFailed`.
    """
    python = Path(sys.executable) if asked.peer in (ALONE, OURS) else find_peers(cache)
    if python is None:
        raise RunFailed(f"{asked.peer} is not there: make an environment as gruppetto.experiments.peers says")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
        place = Path(directory)
        sha256 = _lay_out(asked, place, cache)
        command = [
            sys.executable,
            "-m",
            "gruppetto.experiments.peers.running",
            str(place),
            asked.peer,
            asked.mishap,
            str(python.absolute()),
        ]
        apart = _may_be_apart()
        found: Result = json.loads(said_by([*APART, *command] if apart else command))
    return {**found, "lines": _lines_changed(asked.peer), CORPUS: sha256, **({} if apart else {"bytes": None})}


def _lay_out(asked: Ride, place: Path, cache: Path) -> str:
    """Setting and data, where workers look for them; the hash of the data."""
    model = MODELS[asked.model]
    data = open_material(asked.data, training_of(asked), cache).data
    for name, part in (("train", data.train), ("held_out", data.held_out)):
        np.save(place / f"{name}.npy", part)
    Setting(
        workers=asked.learners,
        steps=asked.rounds,
        sync_every=SYNC_EVERY,
        pace_s=PACE_S,
        batch=asked.batch,
        rate=asked.inner_rate,
        seed=asked.seed,
        dim=model.dim,
        layers=model.layers,
        heads=model.heads,
        ffn_dim=model.ffn_dim,
        context=model.context,
        slow=SLOW if asked.mishap == "slow" else None,
        spoilt=(SPOILT, asked.rounds // 4) if asked.mishap == "spoilt" else None,
    ).write(place)
    return data.manifest.sha256


def _may_be_apart() -> bool:
    if os.geteuid() != 0 or not (shutil.which("unshare") and shutil.which("ip")):
        return False
    return subprocess.run([*APART, "true"], capture_output=True, check=False).returncode == 0


def _lines_changed(peer: str) -> int:
    """Lines of code that the system's loop has and the loop alone has not."""
    alone, around = (_body(script) for script in (SCRIPTS[ALONE], SCRIPTS[peer]))
    return sum(line.startswith("+ ") for line in difflib.ndiff(alone, around))


def _body(script: str) -> list[str]:
    source = inspect.getsource(import_module(f"gruppetto.experiments.peers.{script}").main)
    return [line.strip() for line in source.splitlines() if line.strip()]
