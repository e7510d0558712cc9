"""Virtual training: real tensors in virtual time, one process, the same result from the same seed on the same machine.

The cores, the syncer's parameters, the learners' snapshots and applies, the codecs and the training step are the
shipping ones; only the network is a heap (:mod:`gruppetto.sim.world`). So a learner may be 18 % slower or late by
200 ms, and the loss that this costs does not depend on what else the machine is doing. The instrument of every
quality experiment.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec
from torch import nn

from gruppetto.attach.sharding import FlatModel
from gruppetto.errors import RunFailed, SettingError
from gruppetto.numerics import CODECS, DOWNLINKS, choose_outer
from gruppetto.numerics.outer import OuterSetting
from gruppetto.protocol.actions import Publish
from gruppetto.protocol.messages import ApplyMode
from gruppetto.protocol.settings import ProtocolSetting
from gruppetto.protocol.state import LearnerState, SyncerState
from gruppetto.protocol.syncer import SyncerCore
from gruppetto.protocol.units import Fragment
from gruppetto.runtime.cut import cut, merge_rules
from gruppetto.sim import LearnerSpec, SyncerCosts, World
from gruppetto.sim.mishaps import SYNCER
from gruppetto.trace.log import TraceWriter
from gruppetto.trace.schema import core_header
from gruppetto.train.data import Data
from gruppetto.train.evaluate import Evaluation
from gruppetto.train.model import build
from gruppetto.train.rivals import held_out
from gruppetto.train.setting import ModelSetting, TrainSetting
from gruppetto.train.virtual_hands import VirtualLearner, VirtualSyncer
from gruppetto.train.virtual_learner import LearnerTensors, Recipe
from gruppetto.train.virtual_setting import Guest, VirtualSetting
from gruppetto.train.virtual_sleep import (
    DrowsyLearner,
    DrowsySyncer,
    Script,
    fall_asleep,
    read_round,
    rehearse,
    wake_up,
)
from gruppetto.train.virtual_workers import Workers

__all__ = ["Guest", "Point", "VirtualResult", "VirtualRun", "VirtualSetting", "train_virtually"]

NEVER_S = 1e12
"""A bound on virtual time that only a run which has stopped making rounds can meet."""


PATIENCE_STEPS = 100
"""Without a round for so many of the longest steps, and for as long as anybody is away and may come back, a run has
failed: whom it waits for does not come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """Where a run stood: ``consumed`` and ``merged`` in tokens of all learners, ``loss`` held-out nats per token."""

    round: int
    at_s: float
    consumed: int
    merged: int
    loss: float


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtualResult:
    """What came of a run. ``evaluations`` are (round, virtual seconds, held-out quality of the global model)."""

    world: World
    model: nn.Module
    evaluations: tuple[tuple[int, float, Evaluation], ...]
    outer: OuterSetting
    outer_reason: str
    curve: tuple[Point, ...] = ()
    """The same evaluations, with what had been trained on by then."""

    @property
    def loss(self) -> float:
        """The held-out loss of the final global model, in nats per token."""
        return self.evaluations[-1][2].loss

    @property
    def participation(self) -> float:
        """The share of live learners that are part of a round, on average over the rounds with a fragment to merge."""
        due = self.world.syncer.schedule.due
        closed = [verdict for _, verdict in self.world.closed if due(verdict.round)]
        return sum(len(verdict.participants) / max(1, verdict.live) for verdict in closed) / len(closed)


def train_virtually(
    setting: TrainSetting,
    data: Data,
    protocol: ProtocolSetting,
    virtual: VirtualSetting | None = None,
    *,
    trace: TraceWriter | None = None,
    on_round: Callable[[int], None] = lambda round: None,
    checkpoints: Mapping[int, Path] | None = None,
    resume: Path | None = None,
    workers: int = 1,
) -> VirtualResult:
    """Train ``protocol.num_learners`` learners for ``protocol.rounds`` rounds in this process.

    ``on_round`` is called with the number of every published round, for whoever shows progress. ``checkpoints``: after
    which rounds the whole run is written, and into which directories; ``resume``: go on from such a directory, to the
    same end, bit for bit, and with the whole trace. ``workers``: processes that train, each with ``setting.threads`` of
    torch; the bits do not depend on them, if this process has as many.
    Raises :class:`SettingError` for settings that contradict each
    other, :class:`StateError` for a checkpoint that does not fit, :class:`RunFailed` if rounds stop closing.
    """
    made = VirtualRun(
        setting, data, protocol, virtual or VirtualSetting(), trace=trace, on_round=on_round, workers=workers
    )
    with made as run:
        if resume is not None:
            run.resume(resume)
        for round, place in sorted((checkpoints or {}).items()):
            if run.until(round):
                run.save(place)
        return run.finish()


class VirtualRun:
    """A virtual run that can be stopped between two rounds."""

    def __init__(
        self,
        setting: TrainSetting,
        data: Data,
        protocol: ProtocolSetting,
        virtual: VirtualSetting,
        *,
        trace: TraceWriter | None = None,
        on_round: Callable[[int], None] = lambda round: None,
        state: SyncerState | None = None,
        learner_states: Mapping[str, LearnerState] | None = None,
        workers: int = 1,
        make_syncer: Callable[..., SyncerCore] = SyncerCore,
        make_model: Callable[[ModelSetting, int], nn.Module] = build,
        make_tensors: Callable[[Recipe], LearnerTensors] = LearnerTensors,
    ) -> None:
        """``state``, ``learner_states`` and ``make_syncer``: see :class:`gruppetto.sim.World`. ``make_model`` and
        ``make_tensors``: the global model, from setting and vocabulary, and what a learner of this process trains."""
        if protocol.rounds is None:
            raise SettingError("a virtual run needs an end", where="run.rounds", fix="give a number of rounds")
        if protocol.slots > setting.data.slots:
            setting = replace(setting, data=replace(setting.data, slots=protocol.slots))
        self.settings = {"train": setting, "protocol": protocol, "virtual": virtual}
        self._setting, self._data, self._on_round, self._rounds = setting, data, on_round, protocol.rounds
        self.model = make_model(setting.model, data.tokenizer.vocab_size)
        """The global model, as of the last evaluation."""
        self._flat = FlatModel(self.model)
        parts = cut(self._flat.layout, protocol.num_fragments, virtual.fragmenter, virtual.merge)
        self._flat.cut(parts)
        asked = protocol
        protocol = replace(asked, num_fragments=parts.num_fragments, start_learners=asked.num_learners)
        self._outer, self._outer_reason = choose_outer(virtual.outer, protocol.rounds, protocol.sync_period)
        self.syncer = VirtualSyncer(
            parts,
            merge_rules(self._flat.layout, virtual.merge),
            self._outer,
            uplink=CODECS[virtual.uplink],
            downlink=DOWNLINKS[virtual.downlink],
            mortal=any(mishap.who == SYNCER for mishap in virtual.mishaps),
        )
        self.learners: dict[str, VirtualLearner] = {}
        self._script = Script()
        recipe = _recipe(setting, data, asked, virtual)
        specs = virtual.specs(protocol, keeps_every=setting.checkpoint_every_rounds)
        self._workers = Workers(workers) if workers > 1 else None

        def hands(spec: LearnerSpec) -> DrowsyLearner:
            tensors = make_tensors(recipe) if self._workers is None else self._workers.make(recipe)
            factor = virtual.factor_of(spec.name)
            own = replace(setting, batch_size=virtual.batch_size_of(spec.name, setting.batch_size))
            self.learners[spec.name] = VirtualLearner(
                own, data, tensors, self.syncer, rounds=self._rounds, factor=factor
            )
            step = (own.tokens_per_step, own.batch_size)
            return DrowsyLearner(self.learners[spec.name], self._script, step)

        self.world = World(
            protocol,
            specs,
            seed=setting.seed,
            costs=SyncerCosts(merge_s=virtual.merge_s, persist_s=virtual.persist_s),
            trace=trace,
            syncer_hands=DrowsySyncer(self.syncer, self._script),
            learner_hands=hands,
            state=state,
            learner_states=learner_states,
            mishaps=virtual.mishaps,
            recovers=True,
            make_syncer=make_syncer,
        )
        if trace is not None:
            self._write_header(trace, state)
        self.world.on_published = self._published
        self._last_round = -1
        slowest_s = max(spec.pace.step_s for spec in specs)
        longest_s = max((m.lasts_s for m in virtual.mishaps if math.isfinite(m.lasts_s)), default=0.0)
        self._patience_s = PATIENCE_STEPS * slowest_s + longest_s + protocol.start_timeout_s
        self._be_patient()
        self._evaluations: list[tuple[int, float, Evaluation]] = []
        self._curve: list[Point] = []
        self._stop_at: int | None = None
        self._rests = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the workers, if there are any."""
        if self._workers is not None:
            self._workers.close()

    def until(self, round: int | None) -> bool:
        """Go on until ``round`` is published; False if the run has come to its end before. None: to the end."""
        self._stop_at = round
        self.world.run(until=NEVER_S)
        return self.world.syncer.published_round == round

    def rest(self) -> None:
        """For ``on_round``: let :meth:`finish` stand still right after this round, and be ``at_rest``."""
        self._rests = True
        self.world.engine.stop()

    def finish(self, at_rest: Callable[[VirtualRun], None] = lambda run: None) -> VirtualResult:
        """Go on to the end. ``at_rest`` may :meth:`save` the run wherever it has been asked to :meth:`rest`."""
        self.until(None)
        while self._rests:
            self._rests = False
            at_rest(self)
            self.until(None)
        if not self._evaluations or self._evaluations[-1][0] != self._rounds:
            raise RunFailed(
                f"the virtual run stopped at round {self.world.syncer.round}: {self.world.syncer.waiting_for}"
            )
        self.world.note("syncer", "ledger", **self.world.syncer.ledger.in_tokens())
        return VirtualResult(
            world=self.world,
            model=self.model,
            evaluations=tuple(self._evaluations),
            outer=self._outer,
            outer_reason=self._outer_reason,
            curve=tuple(self._curve),
        )

    def save(self, place: Path) -> None:
        """Write everything, right after :meth:`until`."""
        fall_asleep(
            place,
            settings=self.settings,
            world=self.world,
            script=self._script,
            hands=self.learners,
            syncer=self.syncer,
        )

    def resume(self, place: Path) -> None:
        """Be where the run was that was saved in ``place``. Raises :class:`StateError`."""
        round, tensors, rest = read_round(place, self.settings)
        rehearse(self._script, rest)
        self.until(round)
        wake_up(place, tensors, rest, world=self.world, script=self._script, hands=self.learners, syncer=self.syncer)

    def _write_header(self, trace: TraceWriter, state: SyncerState | None) -> None:
        core = self.world.syncer
        made_of = core_header(
            core.setting, run_id=core.run_id, layout_hash=core.layout_hash, epoch=core.epoch, state=state
        )
        trace.header({"started_at": 0.0, "numel": self._flat.layout.numel, **made_of})

    def _be_patient(self) -> None:
        """Heartbeats go on for ever where no round does."""
        if self.world.syncer.published_round == self._last_round:
            self.world.engine.stop()
            return
        self._last_round = self.world.syncer.published_round
        self.world.engine.after(self._patience_s, self._be_patient)

    def _published(self, publish: Publish) -> None:
        round = publish.message.round
        if round == self._stop_at:
            self.world.engine.stop()
        if round % self._setting.eval_every_rounds == 0 or publish.message.finished:
            self._evaluate(round)
        if not self._script.asleep:
            self._on_round(round)

    def _evaluate(self, round: int) -> None:
        said = self._script.say("evaluation", lambda: msgspec.to_builtins(self._judge()))
        found, now = msgspec.convert(said, Evaluation), self.world.engine.now
        books = self.world.syncer.ledger.in_tokens()
        self._evaluations.append((round, now, found))
        self._curve.append(
            Point(round=round, at_s=now, consumed=books["consumed"], merged=books["merged"], loss=found.loss)
        )
        self.world.note("syncer", "evaluation", round=round, loss=found.loss, perplexity=found.perplexity)

    def _judge(self) -> Evaluation:
        for p in range(len(self.syncer.parts.fragments)):
            self._flat.write(p, self.syncer.value(Fragment(p)))
        return held_out(self.model, self._data, self._setting)


def _recipe(setting: TrainSetting, data: Data, protocol: ProtocolSetting, virtual: VirtualSetting) -> Recipe:
    """Of every learner; ``protocol`` has the number of fragments that was asked for, by which the model is cut."""
    return Recipe(
        setting=setting,
        vocab_size=data.tokenizer.vocab_size,
        fragments_asked=protocol.num_fragments,
        fragmenter=virtual.fragmenter,
        merge=virtual.merge,
        apply=ApplyMode(protocol.apply),
        uplink=virtual.uplink,
        downlink=DOWNLINKS[virtual.downlink].whole.name,
        feedback=virtual.feedback,
        rewarm_steps=virtual.rewarm_steps,
    )
