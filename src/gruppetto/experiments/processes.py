"""A ride as a real local run: a syncer and learners as processes, and the bytes that they have put on their links."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from gruppetto.experiments.child import said_by
from gruppetto.experiments.models import MODELS
from gruppetto.experiments.ride import Ride
from gruppetto.experiments.store import Result
from gruppetto.experiments.texts import CORPUS
from gruppetto.numerics.codec import CODECS
from gruppetto.train.manifest import CORPUS as MANIFEST
from gruppetto.train.model import build, num_parameters
from gruppetto.train.tokens import ByteTokenizer

__all__ = ["ride_in_processes", "settings_of"]

SIZES = ("architecture", "dim", "layers", "heads", "ffn_dim", "context")


def ride_in_processes(asked: Ride, cache: Path) -> Result:
    """Run ``gruppetto train`` and read its report. Raises :class:`RunFailed`."""
    model, settings = MODELS[asked.model], settings_of(asked)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
        command = [sys.executable, "-m", "gruppetto", "train", "--json", "--follow-parent", "--cache", str(cache)]
        command += ["--out", f"{place}/run", "--learners", str(asked.learners)]
        command += ["--rounds", str(asked.rounds), "--seed", str(asked.seed)]
        command += [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
        report = json.loads(said_by(command))
        manifest = json.loads(Path(place, "run", MANIFEST).read_bytes())
    numel = num_parameters(build(model, ByteTokenizer.vocab_size))
    first = 4.0 * numel  # one of them gives the first weights
    offered = report["participation"] * report["live"] * asked.rounds
    steps = sum(learner["steps"] for learner in report["learners"].values())
    return {
        "loss": report["eval"]["loss"],
        "participation": report["participation"],
        "up_bytes": report["bytes"]["up"],
        "down_bytes": report["bytes"]["down"],
        "up_by_formula_bytes": first + offered * numel * CODECS[asked.uplink].bits / 8.0 / asked.sync_period,
        "gradients_bytes": 2.0 * numel * steps,
        CORPUS: manifest["sha256"],
    }


def settings_of(asked: Ride) -> dict[str, object]:
    """What the run is told beside its flags."""
    model = MODELS[asked.model]
    settings: dict[str, object] = {f"model.{size}": getattr(model, size) for size in SIZES}
    settings |= {
        "train.batch_size": asked.batch,
        "train.eval_every_rounds": asked.rounds,
        "run.sync_period": asked.sync_period,
        "run.num_fragments": asked.fragments,
        "codec.uplink": asked.uplink,
        "codec.downlink": asked.downlink,
        "syncer.shared_memory": "false",  # as over a link, whatever the size of a fragment
    }
    if asked.data != Ride().data:
        settings["data.corpus"] = asked.data
    return settings
