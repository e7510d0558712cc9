"""One process of a baseline run: ``python -m gruppetto.train.rank PLAN RANK RENDEZVOUS STARTED``.

Started by :mod:`gruppetto.train.baseline` and by nobody else. RENDEZVOUS is a file that all ranks share and
that did not exist before, STARTED the time of day when the run began. The process ends when its standard input
does, so that no rank outlives the run.
"""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path

import msgspec
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from gruppetto.errors import GruppettoError
from gruppetto.runtime.clock import MonotonicClock, wall_time_s
from gruppetto.runtime.orphans import when_orphaned
from gruppetto.train.baseline import Plan
from gruppetto.train.batches import Batches
from gruppetto.train.data import open_data
from gruppetto.train.evaluate import Evaluation
from gruppetto.train.export import export
from gruppetto.train.inner import adamw
from gruppetto.train.log import TrainLog
from gruppetto.train.model import build
from gruppetto.train.rivals import Course, SynchronousDiloco, held_out
from gruppetto.train.step import StepResult, train_step


def run_rank(plan: Plan, rank: int, log: TrainLog) -> None:
    """Train as rank ``rank``, in a process group that already stands when there is more than one."""
    setting = plan.setting
    data = open_data(setting, Path(plan.cache))
    model = build(setting.model, data.tokenizer.vocab_size)
    optimizer = adamw(model, setting.inner)
    batches = Batches.of(data, setting, slot=rank)

    trained: nn.Module = model
    outer: SynchronousDiloco | None = None
    if plan.mode == "data-parallel" and plan.num_learners > 1:
        trained = DistributedDataParallel(model)
    if plan.mode == "diloco":
        outer = SynchronousDiloco(
            model,
            sync_period=plan.sync_period,
            outer_rate=plan.outer_rate,
            outer_momentum=plan.outer_momentum,
            average=average,
        )
    steps = 0

    def step(rate: float) -> StepResult:
        nonlocal steps
        steps += 1
        result = train_step(trained, optimizer, next(batches), rate=rate, clip_norm=setting.inner.clip_norm)
        if outer is not None:
            outer.after_step(steps, last=steps == plan.rounds)
        return result

    def judge() -> Evaluation:
        if outer is None:
            return held_out(model, data, setting)
        with outer.global_model():
            return held_out(model, data, setting)

    Course(
        setting=setting,
        rounds=plan.rounds,
        log=log,
        who=f"learner-{rank}",
        evaluate=judge if rank == 0 else None,
    ).run(step)
    if rank == 0:
        export(model, setting.model, data.tokenizer, Path(plan.out) / "model")


def average(tensor: Tensor) -> None:
    """The mean over all ranks, in place; gloo has sums only."""
    if dist.is_initialized():
        dist.all_reduce(tensor)
        tensor /= dist.get_world_size()


def main(arguments: list[str]) -> int:
    plan_path, rank, rendezvous, started = arguments
    when_orphaned(lambda: os._exit(1))
    try:
        plan = msgspec.json.decode(Path(plan_path).read_bytes(), type=Plan)
        torch.set_num_threads(plan.setting.threads)
        if plan.num_learners > 1:
            dist.init_process_group(
                "gloo", init_method=f"file://{rendezvous}", rank=int(rank), world_size=plan.num_learners
            )
        # No process shares another's clock; the time of day only sets how far back the run began.
        ago_s = wall_time_s() - float(started)
        with TrainLog(Path(plan.out) / "train.jsonl", MonotonicClock().now, started=-ago_s) as log:
            run_rank(plan, int(rank), log)
    except GruppettoError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except Exception:
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    code = main(sys.argv[1:])
    # All is written. Gloo's threads may still hold tensors that Python owns, and letting go of them in an interpreter
    # that is being taken down aborts the process: now and then a run ended well and exited badly. So leave at once.
    sys.stderr.flush()
    os._exit(code)
