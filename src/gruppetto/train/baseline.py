"""A rival of decoupled training as a run of real processes.

    python -m gruppetto.train.baseline --mode data-parallel --learners 4 --rounds 1500 --out runs/rival

writes ``train.jsonl`` (:mod:`gruppetto.train.log`), ``pids.json`` and ``model/`` into a fresh directory. Equal
terms with a decoupled run of M learners and T rounds: the same first weights, the same slots, and T steps of M
local batches. When a rank dies the run is over, as it is for anyone who trains this way; one line says which
rank it was.

Torch is left to the ranks: the process that starts and watches them is up at once.
"""

from __future__ import annotations

import argparse
import json
import selectors
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import msgspec

from gruppetto.errors import GruppettoError, RunFailed, SettingError, StateError, UserError
from gruppetto.runtime.clock import wall_time_s
from gruppetto.train.data import open_data
from gruppetto.train.manifest import write_manifest
from gruppetto.train.setting import TrainSetting

__all__ = ["Mode", "Outcome", "Plan", "run_baseline"]

Mode = Literal["single", "data-parallel", "diloco"]
STOP_GRACE_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A baseline run. The last three settings are for ``diloco``; the outer ones are its paper's.

    ``out`` is the directory of the run, ``cache`` that of :func:`gruppetto.train.data.open_data`.
    """

    mode: Mode
    setting: TrainSetting
    num_learners: int
    rounds: int
    out: str
    cache: str
    sync_period: int = 24
    outer_rate: float = 0.7
    outer_momentum: float = 0.9

    def __post_init__(self) -> None:
        if self.mode not in get_args(Mode):
            raise SettingError(
                f"{self.mode!r} is unknown", where="run.mode", fix=f"use one of {', '.join(get_args(Mode))}"
            )
        for name in ("num_learners", "rounds", "sync_period"):
            if getattr(self, name) < 1:
                raise SettingError(f"is {getattr(self, name)}", where=f"run.{name}", fix="use 1 or more")
        if self.mode == "single" and self.num_learners != 1:
            raise SettingError(
                f"is {self.num_learners}, but single is one learner", where="run.num_learners", fix="use 1"
            )
        if self.num_learners > self.setting.data.slots:
            raise SettingError(
                f"{self.num_learners} learners cannot share {self.setting.data.slots} slots",
                where="data.slots",
                fix=f"use {self.num_learners} or more",
            )
        if not self.outer_rate > 0:
            raise SettingError(f"is {self.outer_rate}", where="run.outer_rate", fix="use a number above 0")
        if not 0 <= self.outer_momentum < 1:
            raise SettingError(f"is {self.outer_momentum}", where="run.outer_momentum", fix="use 0 or more, below 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Held-out losses in nats per token; ``tokens`` of all learners; ``wall_s`` includes start-up."""

    initial_loss: float
    loss: float
    perplexity: float
    tokens: int
    wall_s: float


def run_baseline(plan: Plan) -> Outcome:
    """Run ``plan`` to its end in ``plan.num_learners`` processes.

    Hidden files, such as the lock of whoever holds the directory, may be there already.
    Raises :class:`UserError` for a plan that cannot start, :class:`RunFailed` when a rank ends before the run
    does. No process is left behind either way.
    """
    started = wall_time_s()
    out = Path(plan.out).resolve()
    if out.exists() and not (out.is_dir() and all(entry.name.startswith(".") for entry in out.iterdir())):
        raise StateError("is there already and not empty", where=plan.out, fix="name a new directory for the run")
    # Here rather than in the ranks: mistakes surface before anything starts, and the cache is filled once.
    data = open_data(plan.setting, Path(plan.cache))
    try:
        out.mkdir(parents=True, exist_ok=True)
        write_manifest(data.manifest, out)
        (out / "plan.json").write_bytes(msgspec.json.format(msgspec.json.encode(plan)))
    except OSError as error:
        raise StateError(f"cannot be written ({error.strerror})", where=plan.out, fix="name another one") from error
    with tempfile.TemporaryDirectory(prefix="gruppetto-") as meeting:
        _run_ranks(plan, out, rendezvous=Path(meeting) / "rendezvous", started=started)
    return _outcome(out / "train.jsonl", plan)


def _run_ranks(plan: Plan, out: Path, *, rendezvous: Path, started: float) -> None:
    """Start all ranks and wait until all have ended well, or one has not."""
    ranks: list[subprocess.Popen[bytes]] = []
    try:
        for rank in range(plan.num_learners):
            with (out / f"rank-{rank}.log").open("wb") as log:
                command = [sys.executable, "-m", "gruppetto.train.rank"]
                command += [str(out / "plan.json"), str(rank), str(rendezvous), repr(started)]
                ranks.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log))
        pids = {f"learner-{rank}": process.pid for rank, process in enumerate(ranks)}
        (out / "pids.json").write_text(json.dumps(pids) + "\n", encoding="utf-8")
        _watch(plan, ranks, out)
    finally:
        for process in ranks:
            process.terminate()
        for process in ranks:
            try:
                process.wait(STOP_GRACE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()


def _watch(plan: Plan, ranks: Sequence[subprocess.Popen[bytes]], out: Path) -> None:
    """A rank's standard output carries nothing; that it closes says that the rank has ended."""
    with selectors.DefaultSelector() as selector:
        for rank, process in enumerate(ranks):
            assert process.stdout is not None
            selector.register(process.stdout, selectors.EVENT_READ, rank)
        while selector.get_map():
            failed: list[int] = []
            for key, _ in selector.select():
                if not key.fileobj.read1():  # type: ignore[union-attr]
                    selector.unregister(key.fileobj)
                    if ranks[key.data].wait():
                        failed.append(key.data)
            if failed:
                # A signal is a cause; the errors of the others are what follows from it.
                rank = min(failed, key=lambda rank: (ranks[rank].returncode >= 0, rank))
                raise _failure(plan, rank, ranks[rank].returncode, out / f"rank-{rank}.log")


def _failure(plan: Plan, rank: int, code: int, log: Path) -> GruppettoError:
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    last = lines[-1] if lines else "it said nothing"
    if code == UserError.exit_code:
        return UserError(last)
    if code < 0:
        last = f"was killed by {signal.Signals(-code).name}"
    return RunFailed(
        f"{plan.out}: rank {rank} of {plan.num_learners} ({plan.mode}) ended the run: {last}; "
        f"see {log.name} there, then start again in a new directory"
    )


def _outcome(log: Path, plan: Plan) -> Outcome:
    records = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    first = next(record for record in records if record["kind"] == "eval")
    last = next(record for record in records if record["kind"] == "end")
    return Outcome(
        initial_loss=first["loss"],
        loss=last["loss"],
        perplexity=last["perplexity"],
        tokens=plan.rounds * plan.num_learners * plan.setting.tokens_per_step,
        wall_s=last["t"],
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a baseline from the command line: the result as JSON on stdout, or one line on stderr."""
    parser = argparse.ArgumentParser(prog="python -m gruppetto.train.baseline", description=__doc__)
    parser.add_argument("--mode", choices=get_args(Mode), required=True)
    parser.add_argument("--learners", type=int, default=1)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--cache", default=".cache/gruppetto")
    parser.add_argument("--setting", type=Path, help="a TrainSetting as JSON; by default the defaults")
    parser.add_argument("--seed", type=int, help="of the first weights and the order of the data")
    parser.add_argument("--sync-period", type=int, default=24)
    parser.add_argument("--outer-rate", type=float, default=0.7)
    parser.add_argument("--outer-momentum", type=float, default=0.9)
    asked = parser.parse_args(arguments)
    try:
        setting = TrainSetting() if asked.setting is None else _read_setting(asked.setting)
        plan = Plan(
            mode=asked.mode,
            setting=setting if asked.seed is None else setting.seeded(asked.seed),
            num_learners=asked.learners,
            rounds=asked.rounds,
            out=asked.out,
            cache=asked.cache,
            sync_period=asked.sync_period,
            outer_rate=asked.outer_rate,
            outer_momentum=asked.outer_momentum,
        )
        outcome = run_baseline(plan)
    except GruppettoError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    print(msgspec.json.encode(outcome).decode())
    return 0


def _read_setting(path: Path) -> TrainSetting:
    try:
        return msgspec.json.decode(path.read_bytes(), type=TrainSetting)
    except (OSError, msgspec.MsgspecError) as error:
        raise SettingError(str(error), where=str(path), fix="write a TrainSetting as JSON") from error


if __name__ == "__main__":
    sys.exit(main())
