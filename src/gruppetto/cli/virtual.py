"""``gruppetto train --virtual``: a run in virtual time, with all that goes wrong in it, and rivals under the same."""

from __future__ import annotations

import json
import math
import shutil
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from gruppetto.chaos.real.plan import LiveFault, LivePlan
from gruppetto.chaos.real.reading import read_live_plan, to_plan_toml
from gruppetto.cli.naming import as_typed
from gruppetto.config import RunConfig, load_run
from gruppetto.config.kinds import Typed
from gruppetto.config.load import read_toml
from gruppetto.config.virtual import VirtualTable, as_toml, read_guests, read_virtual, setting_of
from gruppetto.config.write import END, write_run
from gruppetto.errors import SettingError
from gruppetto.files import json_in
from gruppetto.report.rundir import RIVALS, RUN, TRACE, TRAIN_LOG, VIRTUAL, Report, write_report
from gruppetto.runtime.clock import Clock, MonotonicClock
from gruppetto.sim.mishaps import SYNCER, Mishap, MishapKind, with_recovery
from gruppetto.trace.log import TraceWriter
from gruppetto.train.virtual_setting import VirtualSetting, memory_bytes

__all__ = ["PLAN", "STATE", "VirtualPlan", "read_virtual_plan", "ride_virtually"]

PLAN = "plan.toml"
"""In the directory of a virtual run: all that it was told."""
STATE = "virtual-state"
"""What an interrupted one goes on from. Gone when it has ended."""

PROGRESS_EVERY_S = 5.0
OURS = "virtual."
FROM_PACE = ("step_s", "jitter")
KINDS = frozenset(MishapKind)


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtualPlan:
    """A run, its faults, and the world in which both are."""

    plan: LivePlan
    table: VirtualTable
    virtual: VirtualSetting

    @property
    def run(self) -> RunConfig:
        return self.plan.run


def read_virtual_plan(
    file: Path | None, *, preset: str | None = None, overrides: Mapping[str, object] | None = None
) -> VirtualPlan:
    """From a RUN.toml or a chaos plan, ``[virtual]`` and ``[[guest]]`` in it or not. Raises :class:`SettingError`."""
    given = {path: value for path, value in (overrides or {}).items() if not path.startswith(OURS)}
    ours = {path.removeprefix(OURS): value for path, value in (overrides or {}).items() if path not in given}
    if file is None:
        plan, content = LivePlan(run=load_run(preset=preset, overrides=given)), dict[str, object]()
    else:
        plan, content = read_live_plan(file, preset=preset, overrides=given), dict(read_toml(file))
    names = {f"{room}{key}": f"{'--set ' * (key in ours)}{OURS}{key}" for room in (OURS, "pace.") for key in FROM_PACE}
    with as_typed({**names, **{f"{OURS}{key}": f"--set {OURS}{key}" for key in ours}}, tables_of=file):
        return _read_world(plan, content, ours)


def _read_world(plan: LivePlan, content: Mapping[str, object], ours: Mapping[str, object]) -> VirtualPlan:
    """``ours``: what the command line says of ``[virtual]``."""
    if ours:
        table, typed = content.get("virtual", {}), {key: Typed(str(value)) for key, value in ours.items()}
        content = {**content, "virtual": {**table, **typed} if isinstance(table, dict) else table}
    table = read_virtual(content)
    mishaps = with_recovery(_mishaps(plan, table), table.recovery, seed=plan.chaos.seed)
    virtual = setting_of(plan.run, table, guests=read_guests(content), mishaps=mishaps)
    virtual.specs(plan.run.protocol)  # judges who is who
    return VirtualPlan(plan=plan, table=table, virtual=virtual)


def _mishaps(plan: LivePlan, table: VirtualTable) -> list[Mishap]:
    """The faults of a plan, as they are in virtual time."""
    everybody = [entry.name for entry in plan.run.learners]
    mishaps: list[Mishap] = []
    for fault in plan.faults:
        why = _impossible(fault)
        if why:
            if plan.chaos.impossible == "refuse":
                fix = 'leave it out, say impossible = "skip" in [chaos], or run gruppetto chaos'
                raise SettingError(f"no {fault.kind} in virtual time: {why}", where="fault.kind", fix=fix)
            print(f"left out, {fault.kind} in virtual time: {why}", file=sys.stderr)
            continue
        lasts_s = fault.duration_s
        if fault.kind == "kill":
            lasts_s = table.syncer_restart_s if fault.who == SYNCER else math.inf
        dials = {name: value for name, value in fault.dials.items() if name != "jitter_s"}
        on_links = fault.who == SYNCER and fault.kind != "kill"
        mishaps += [
            Mishap(at_s=fault.at_s, kind=MishapKind(fault.kind), who=who, lasts_s=lasts_s, **dials)
            for who in (everybody if on_links else [fault.who])
        ]
    return mishaps


def _impossible(fault: LiveFault) -> str:
    """Why virtual time does not have it; "" if it does."""
    if fault.kind not in KINDS:
        return f"it knows {', '.join(sorted(KINDS - {'leave'}))}"
    if fault.who == SYNCER and fault.kind in ("stop", "slow"):
        return "a syncer lives, or is dead"
    if fault.way not in (None, "both"):
        return "links are bad both ways"
    return "latencies there are constant" if fault.jitter_s else ""


def ride_virtually(
    asked: VirtualPlan, directory: Path, *, cache: Path, workers: int, compare: Sequence[Path], resume: bool = False
) -> Report:
    """Run it in a fresh directory, then its rivals, and write the report.

    ``resume``: in the directory of one that was interrupted, from what it saved there last.
    """
    import torch

    from gruppetto.numerics.codec import CODECS
    from gruppetto.train.data import open_data
    from gruppetto.train.manifest import check_same, write_manifest
    from gruppetto.train.model import build, num_parameters
    from gruppetto.train.virtual import VirtualRun
    from gruppetto.train.virtual_keeping import Keeper, newest_saved

    config, table = asked.run, asked.table
    torch.set_num_threads(config.train.threads)
    data = open_data(config.train, cache)
    check_same(data.manifest, directory)
    write_manifest(data.manifest, directory)
    (directory / STATE).mkdir(exist_ok=True)
    if not resume:
        whole = f"{to_plan_toml(asked.plan)}\n{as_toml(table, asked.virtual.guests)}\n{END}\n"
        (directory / PLAN).write_text(whole, encoding="utf-8")
        write_run(config, directory / RUN)
    numel = num_parameters(build(config.train.model, data.tokenizer.vocab_size))
    learners = config.protocol.num_learners + len(asked.virtual.guests)
    keeps = config.train.checkpoint_every_rounds > 0
    rests = CODECS[config.codec.uplink].keeps_rest
    taken = memory_bytes(numel, config.protocol, learners=learners, keeps=keeps, rests=rests)
    who = "1 learner" if learners == 1 else f"{learners} learners"
    print(f"{who} of {numel:,} parameters: about {taken / 2**20:,.0f} MiB of tensors", file=sys.stderr)
    saved = newest_saved(directory / STATE) if resume else None
    if resume:
        print(f"going on from {saved}" if saved else "nothing is saved: beginning anew", file=sys.stderr, flush=True)
        (directory / TRACE).unlink(missing_ok=True)  # its past is lived through, and recorded, once more
    clock = MonotonicClock()
    keeper = Keeper(directory / STATE, clock, every_s=table.save_every_s)
    progress = _Progress("decoupled", config.rounds, clock)

    def on_round(round: int) -> None:
        progress(round)
        if 0 < round < config.rounds and keeper.is_due:
            run.rest()

    with (
        TraceWriter(directory / TRACE, {"virtual": True}) as trace,
        VirtualRun(
            config.train, data, config.protocol, asked.virtual, trace=trace, on_round=on_round, workers=workers
        ) as run,
    ):
        if saved is not None:
            run.resume(saved)
            progress.begin_at(run.world.syncer.published_round)
        result = run.finish(at_rest=keeper.save)
    curves = {"decoupled": [(point.at_s, point.loss) for point in result.curve]}
    for system in sorted(table.rivals):  # as the report has them, so that each keeps its colour
        curves[system] = _rival(system, asked, directory / RIVALS / system, cache)
    _draw(directory / "figures", curves)
    report = write_report(directory, compare)
    shutil.rmtree(directory / STATE, ignore_errors=True)  # nothing is left to be resumed
    return report


def _rival(system: str, asked: VirtualPlan, place: Path, cache: Path) -> list[tuple[float, float]]:
    """Run it, unless that has been done, and leave what a report reads: (virtual seconds, loss)."""
    with suppress(FileNotFoundError, ValueError, LookupError, TypeError):
        return [(float(at_s), float(loss)) for at_s, _, loss in json_in(place / VIRTUAL)["curve"]]
    shutil.rmtree(place, ignore_errors=True)  # of one that was interrupted, or whose figures are damaged
    from gruppetto.train.data import open_data
    from gruppetto.train.log import TrainLog
    from gruppetto.train.virtual_rivals import train_rival

    config = asked.run
    virtual = asked.virtual if system == "elastic" else replace(asked.virtual, guests=())
    data = open_data(config.train, cache)
    result = train_rival(
        system,  # type: ignore[arg-type]
        config.train,
        data,
        config.protocol,
        virtual,
        on_round=_Progress(system, config.rounds, MonotonicClock()),
    )
    place.mkdir(parents=True)
    plan = {"mode": system, "setting": config.train, "num_learners": config.protocol.num_learners}
    (place / "plan.json").write_bytes(msgspec.json.format(msgspec.json.encode(plan)))
    now = 0.0
    with TrainLog(place / TRAIN_LOG, clock=lambda: now, started=0.0) as log:
        for point in result.curve:
            now, last = point.at_s, point is result.curve[-1]
            told: dict[str, Any] = {"round": point.round, "step": point.round, "loss": point.loss}
            told["tokens"] = point.consumed // config.protocol.num_learners
            if last:
                for entry in config.learners:
                    log.write("train", who=entry.name, **told)
            log.write("end" if last else "eval", who=system, **told, perplexity=math.exp(min(point.loss, 700.0)))
    figures = {"goodput": result.goodput, "curve": [[p.at_s, p.consumed, p.loss] for p in result.curve]}
    new = place / f".{VIRTUAL}.new"
    new.write_text(json.dumps(figures) + "\n", encoding="utf-8")
    new.replace(place / VIRTUAL)  # last of all: it says that the rest is there
    return [(point.at_s, point.loss) for point in result.curve]


def _draw(place: Path, lines: Mapping[str, Sequence[tuple[float, float]]]) -> None:
    from gruppetto.report.figures import save
    from gruppetto.report.over_time import draw_loss_over_time

    with suppress(ImportError):  # the report says that there are no figures
        save(draw_loss_over_time(lines), place, "loss-by-time")


class _Progress:
    """Says on stderr every few seconds how far it is, and how long it will take."""

    def __init__(self, what: str, rounds: int, clock: Clock) -> None:
        self._what, self._rounds, self._clock = what, rounds, clock
        self._first, self._began_s = 0, clock.now()
        self._said_s = self._began_s

    def begin_at(self, round: int) -> None:
        """What lies before took no time worth speaking of."""
        self._first, self._began_s = round, self._clock.now()

    def __call__(self, round: int) -> None:
        now = self._clock.now()
        if now - self._said_s >= PROGRESS_EVERY_S and round > self._first:
            self._said_s = now
            left_s = (now - self._began_s) * (self._rounds - round) / (round - self._first)
            print(f"{self._what}: round {round}/{self._rounds}, {left_s:.0f} s left", file=sys.stderr, flush=True)
