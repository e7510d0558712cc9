"""From a ride to what came of it: the one place where experiments train."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import nn

from gruppetto.experiments.coarse import COARSE, CoarseTensors
from gruppetto.experiments.directions import Directions
from gruppetto.experiments.looking import look_at
from gruppetto.experiments.material import Material, open_material
from gruppetto.experiments.peers.race import race
from gruppetto.experiments.pretrained import PRETRAINED, MakeModel, TunedTensors, maker, open_text
from gruppetto.experiments.processes import ride_in_processes
from gruppetto.experiments.ride import Ride
from gruppetto.experiments.settings import protocol_of, training_of, world_of
from gruppetto.experiments.store import Result
from gruppetto.experiments.texts import CORPUS
from gruppetto.experiments.weightings import syncer_weighing
from gruppetto.report.rundir import TRACE
from gruppetto.trace.log import TraceWriter
from gruppetto.trace.metrics import measure
from gruppetto.train.data import Data
from gruppetto.train.log import TrainLog
from gruppetto.train.rivals import held_out, lockstep_data_parallel
from gruppetto.train.setting import TrainSetting
from gruppetto.train.virtual import Point, VirtualRun
from gruppetto.train.virtual_learner import LearnerTensors, Recipe
from gruppetto.train.virtual_rivals import train_rival

__all__ = ["ride"]


def ride(asked: Ride, cache: Path) -> Result:
    """Train, with one thread; ``cache`` keeps what data is made into. The same ride gives the same result.

    Raises :class:`SettingError` and :class:`DataError`.
    """
    if asked.system == "processes":
        return ride_in_processes(asked, cache)
    if asked.system == "race":
        return race(asked, cache)
    torch.set_num_threads(1)
    setting = training_of(asked)
    pretrained = asked.model == PRETRAINED
    material = Material(data=open_text(asked.data, cache)) if pretrained else open_material(asked.data, setting, cache)
    make_model = maker(asked, cache)
    model: nn.Module | None = None
    match asked.system:
        case "decoupled":
            result, model = _decoupled(asked, setting, material.data, make_model)
        case "lockstep":
            result, model = _lockstep(asked, setting, material.data, make_model)
        case "data-parallel" | "elastic" | "diloco":
            rival = train_rival(asked.system, setting, material.data, protocol_of(asked), world_of(asked))
            result = {**_ending(rival.curve), "goodput": rival.goodput}
    if pretrained:
        first = make_model(setting.model, material.data.tokenizer.vocab_size)
        result |= {"before tuning": held_out(first, material.data, setting).loss, "after tuning": result["loss"]}
    result[CORPUS] = material.data.manifest.sha256  # the ride has only its name
    if model is not None:
        result |= look_at(model, asked, setting, material, cache)
    return {key: _number(value) for key, value in result.items()}


def _decoupled(asked: Ride, setting: TrainSetting, data: Data, make_model: MakeModel) -> tuple[Result, nn.Module]:
    tensors: Callable[[Recipe], LearnerTensors] = partial(TunedTensors, make_model=make_model)
    if asked.uplink in COARSE:
        tensors = partial(CoarseTensors, name=asked.uplink)
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / TRACE
        with TraceWriter(path, {}) as trace:
            run = VirtualRun(
                setting,
                data,
                protocol_of(asked),
                world_of(asked),
                trace=trace if asked.books else None,
                make_syncer=syncer_weighing(asked.weighting),
                make_model=make_model,
                make_tensors=tensors,
            )
            directions = Directions()
            if asked.directions:
                run.syncer.on_merge = directions.take
            with run:
                done = run.finish()
        books = _books(path) if asked.books else {}
    core = done.world.syncer
    ledger = core.ledger.in_tokens()
    result = {
        **_ending(done.curve),
        "participation": done.participation,
        "outer": done.outer_reason,
        "merged": ledger["merged"] / ledger["consumed"],
        "in vain": ledger["discarded"] / ledger["consumed"],
        "rejected": dict(sorted(core.rejected.items())),
        "clipped": dict(sorted(core.clipped.items())),
        "cosines": {str(m.learner): m.heading.mean for m in core.members if m.heading.count},
        **(directions.found() if asked.directions else {}),
        **books,
    }
    return result, done.model


def _lockstep(asked: Ride, setting: TrainSetting, data: Data, make_model: MakeModel) -> tuple[Result, nn.Module]:
    with tempfile.TemporaryDirectory() as place, TrainLog(Path(place) / "log.jsonl", clock=lambda: 0.0) as log:
        model, found = lockstep_data_parallel(
            setting, data, num_learners=asked.learners, rounds=asked.rounds, log=log, make_model=make_model
        )
    return {"loss": found.loss, "tokens": asked.learners * asked.rounds * setting.tokens_per_step}, model


def _ending(curve: Sequence[Point]) -> Result:
    """How it ended, and how it came there: (virtual seconds, tokens of all, held-out loss)."""
    points = [[p.at_s, p.consumed, p.loss if math.isfinite(p.loss) else None] for p in curve]
    last = curve[-1]
    found = {"loss": last.loss, "ended_s": last.at_s, "round_s": last.at_s / last.round, "tokens": last.consumed}
    return {**found, "curve": points}


def _books(trace: Path) -> Result:
    found = measure(trace)
    assert found.balanced and found.replay is not None and found.replay.identical
    return {
        "goodput": found.goodput,
        "uptime": found.uptime,
        "deaths": len(found.deaths),
        "books": dict(found.tokens),
        "sources": sorted({r.source.split()[0] for r in found.recoveries}),
    }


def _number(value: object) -> object:
    """JSON has no infinity, and nothing that is no number."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
