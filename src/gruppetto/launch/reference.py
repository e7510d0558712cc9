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
from gruppetto.runtime.security.places import Papers
from gruppetto.train.batches import Batches
from gruppetto.train.data import open_data
from gruppetto.train.inner import adamw, learning_rate
from gruppetto.train.manifest import check_same
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
    papers: Papers,
    cache: Path,
    clock: Clock,
    parts: Path,
    checkpoints: Path | None = None,
    part: Path | None = None,
    run: Path | None = None,
) -> bool:
    """Train as learner ``entry`` of a run until its last round. ``checkpoints``: where it saves its state now and then.
    ``run``: its directory, where that is on this machine.

    The learning rate follows the newest round that the learner has seen, so that unequal learners anneal together; the
    data slot and its cursor are the syncer's to give. Parts of checkpoints of the whole run are written under
    ``parts``; ``part`` is the one to go on from. SIGTERM is notice to leave. Under ``torchrun`` all ranks are one
    learner, which FSDP2 shards. False if it has left on notice, and not at the end of the run. Raises what
    :class:`gruppetto.Learner` raises.
    """
    setting = config.train
    torch.set_num_threads(setting.threads)
    data = open_data(setting, cache)
    if run is not None:
        check_same(data.manifest, run)
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
        token=papers.token,
        ca_file=papers.ca,
        cert_file=papers.cert,
        key_file=papers.key,
        allow_plaintext=config.syncer.allow_plaintext,
        donate=None if papers.personal and papers.cert is None else "auto",
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
        words, pace = _Words(learner, setting.log_every_rounds, rounds, clock), _Pace(entry, clock)
        next_save = learner.round + every_rounds
        for batch in learner.until_finished(place.part_of(batches)):
            if learner.refusal is not None:
                raise learner.refusal
            began = clock.now()
            loss = backward(model, batch)
            pace.hold_up(began)
            learner.cursor = batches.cursor
            words.say(loss)
            rate = learning_rate(setting.inner, learner.round, rounds)
            update(model, optimizer, rate=rate, clip_norm=setting.inner.clip_norm)
            if saved is not None and learner.round >= next_save and saved.save(model, optimizer, learner):
                next_save = learner.round + every_rounds
            pace.next_step()
    log.info("left at round %d of %d", learner.round, rounds)
    return learner.finished


class _Pace:
    """Lets a step take as long as it would on a slower machine, as the settings of the learner say."""

    def __init__(self, entry: LearnerEntry, clock: Clock) -> None:
        self._entry, self._clock = entry, clock
        self._step_began = clock.now()

    def hold_up(self, began: float) -> None:
        """Inside the step, where that machine would spend it. ``began``: when its computing did."""
        if self._entry.slowdown > 1:
            time.sleep((self._entry.slowdown - 1) * (self._clock.now() - began))
        if self._entry.min_step_s:
            time.sleep(max(0.0, self._step_began + self._entry.min_step_s - self._clock.now()))

    def next_step(self) -> None:
        self._step_began = self._clock.now()


class _Words:
    """What a learner says while it trains: its loss to the syncer, and a line to its log now and then."""

    def __init__(self, learner: Learner, every_rounds: int, rounds: int, clock: Clock) -> None:
        self._learner, self._every_rounds, self._rounds, self._clock = learner, every_rounds, rounds, clock
        self._next_report, self._said_at = 0, clock.now()

    def say(self, loss: float) -> None:
        """``loss``: of the batch of this step, in nats per token."""
        learner = self._learner
        if learner.round >= self._next_report:
            learner.report(loss=loss)
            self._next_report = learner.round + self._every_rounds
        if self._clock.now() >= self._said_at + SAY_EVERY_S:
            self._said_at = self._clock.now()
            log.info("round %d of %d, loss %.3f", learner.round, self._rounds, loss)
