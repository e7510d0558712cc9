"""The reference learner: the trainer's own loop, joined to a run by the public :class:`gruppetto.Learner`.

Nothing here is private to it. Your own loop can do the same.
"""

from __future__ import annotations

import logging
import threading
import time
from contextlib import closing
from pathlib import Path

import torch

from gruppetto import Learner
from gruppetto.attach.checkpoints import Checkpoints
from gruppetto.attach.part import Parts, load_part
from gruppetto.config import LearnerEntry, RunConfig
from gruppetto.errors import LayoutError
from gruppetto.runtime.clock import Clock
from gruppetto.train.batches import Batches
from gruppetto.train.data import open_data
from gruppetto.train.inner import adamw, learning_rate
from gruppetto.train.model import build
from gruppetto.train.sharded import gather_place, shard
from gruppetto.train.step import backward, update

__all__ = ["ride"]

log = logging.getLogger("gruppetto.learner")

SAY_EVERY_S = 10.0
"""Between two lines about how the training goes."""


def ride(
    config: RunConfig,
    entry: LearnerEntry,
    *,
    syncer: str,
    token: str | None,
    cache: Path,
    clock: Clock,
    parts: Path,
    checkpoints: Path | None = None,
    part: Path | None = None,
) -> bool:
    """Train as learner ``entry`` of a run until its last round. ``checkpoints``: where it saves its state now and then.

    The learning rate follows the newest round that the learner has seen, so that unequal learners anneal together; the
    data slot and its cursor are the syncer's to give. Parts of checkpoints of the whole run are written under
    ``parts``; ``part`` is the one to go on from. SIGTERM is notice to leave. Under ``torchrun`` all ranks are one
    learner, which FSDP2 shards. False if it has left on notice, and not at the end of the run. Raises what
    :class:`gruppetto.Learner` raises.
    """
    setting = config.train
    torch.set_num_threads(setting.threads)
    data = open_data(setting, cache)
    model = build(setting.model, data.tokenizer.vocab_size)
    place = gather_place()
    if place.size > 1:
        shard(model)
    optimizer = adamw(model, setting.inner)
    every_rounds = setting.checkpoint_every_rounds
    saved = Checkpoints(checkpoints) if checkpoints is not None and every_rounds else None
    writer = Parts(parts, model, optimizer, extra=lambda: {"torch_rng": torch.get_rng_state()})
    learner = Learner(
        model,
        optimizer,
        syncer=syncer,
        token=token,
        name=entry.name,
        tokens_per_step=setting.tokens_per_step,
        checkpoints=saved,
        leave_on_sigterm=threading.current_thread() is threading.main_thread(),
        on_checkpoint=writer,
    )
    if part is not None:
        torch.set_rng_state(load_part(part, model, optimizer, learner)["torch_rng"])
        log.info("going on from %s", part)
    with closing(writer), learner:
        if learner.slot >= setting.data.slots:
            raise LayoutError(
                f"the syncer leases slot {learner.slot}, but the data is cut for {setting.data.slots}",
                where="data.slots",
                fix="give the learner the RUN.toml of the run",
            )
        batches = Batches.of(data, setting, slot=learner.slot, cursor=learner.cursor)
        rounds = learner.rounds or config.rounds
        next_report, next_save, said_at = 0, learner.round + every_rounds, clock.now()
        step_began = clock.now()
        for batch in learner.until_finished(place.part_of(batches)):
            if learner.refusal is not None:
                raise learner.refusal
            began = clock.now()
            loss = backward(model, batch)
            if entry.slowdown > 1:
                # Inside the step, where a slower machine would spend it.
                time.sleep((entry.slowdown - 1) * (clock.now() - began))
            if entry.min_step_s:
                time.sleep(max(0.0, step_began + entry.min_step_s - clock.now()))
            learner.cursor = batches.cursor
            if learner.round >= next_report:
                learner.report(loss=loss)
                next_report = learner.round + setting.log_every_rounds
            if clock.now() >= said_at + SAY_EVERY_S:
                said_at = clock.now()
                log.info("round %d of %d, loss %.3f", learner.round, rounds, loss)
            update(
                model,
                optimizer,
                rate=learning_rate(setting.inner, learner.round, rounds),
                clip_norm=setting.inner.clip_norm,
            )
            if saved is not None and learner.round >= next_save and saved.save(model, optimizer, learner):
                next_save = learner.round + every_rounds
            step_began = clock.now()
    log.info("left at round %d of %d", learner.round, rounds)
    return learner.finished
