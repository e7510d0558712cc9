"""Virtual training: real tensors in virtual time, one process, the same result from the same seed on the same machine.

The cores, the syncer's parameters, the learners' snapshots and applies, the codecs and the training step are the
shipping ones; only the network is a heap (:mod:`gruppetto.sim.world`). So a learner may be 18 % slower or late by
200 ms, and the loss that this costs does not depend on what else the machine is doing. The instrument of every
quality experiment.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
from torch import nn

from gruppetto.attach.sharding import FlatModel
from gruppetto.errors import RunFailed, SettingError
from gruppetto.numerics import CODECS, choose_outer
from gruppetto.numerics.outer import OuterSetting
from gruppetto.protocol.actions import Publish
from gruppetto.protocol.settings import ProtocolSetting
from gruppetto.protocol.state import LearnerState, SyncerState
from gruppetto.protocol.units import Fragment
from gruppetto.runtime.cut import cut, merge_rules
from gruppetto.sim import LearnerSpec, Link, Pace, SyncerCosts, World
from gruppetto.trace.log import TraceWriter
from gruppetto.train.data import Data
from gruppetto.train.evaluate import Evaluation
from gruppetto.train.model import build
from gruppetto.train.rivals import held_out
from gruppetto.train.setting import TrainSetting
from gruppetto.train.virtual_hands import VirtualLearner, VirtualSyncer
from gruppetto.train.virtual_sleep import (
    DrowsyLearner,
    DrowsySyncer,
    Script,
    fall_asleep,
    read_round,
    rehearse,
    wake_up,
)

__all__ = ["VirtualResult", "VirtualRun", "VirtualSetting", "train_virtually"]

NEVER_S = 1e12
"""A bound on virtual time that only a run which has stopped making rounds can meet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtualSetting:
    """What the syncer does to tensors, and the world it does it in. Times are virtual seconds."""

    outer: str | OuterSetting = "auto"
    fragmenter: str = "balanced"
    merge: tuple[tuple[str, str], ...] = ()
    uplink: str = "bf16"
    downlink: str = "fp32"
    feedback: bool = True
    """What a coarse uplink leaves unsaid is said with the next contribution; off only to see what that is worth."""
    step_s: tuple[float, ...] = (1.0,)
    """Step time of each learner; the last one serves all further learners."""
    jitter: float = 0.1
    latency_s: float = 0.02
    merge_s: float = 0.05
    spoilt: tuple[tuple[int, float], ...] = ()
    """(learner, factor): what its contributions are multiplied by before they are sent; NaN spoils them altogether."""

    def spec(self, m: int) -> LearnerSpec:
        pace = Pace(step_s=self.step_s[min(m, len(self.step_s) - 1)], jitter=self.jitter)
        return LearnerSpec(name=name_of(m), pace=pace, link=Link(latency_s=self.latency_s))

    def factor_of(self, name: str) -> float:
        """What the contributions of this learner are multiplied by."""
        return {name_of(m): factor for m, factor in self.spoilt}.get(name, 1.0)


def name_of(m: int) -> str:
    """The m-th learner's."""
    return f"learner-{m}"


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtualResult:
    """What came of a run. ``evaluations`` are (round, virtual seconds, held-out quality of the global model)."""

    world: World
    model: nn.Module
    evaluations: tuple[tuple[int, float, Evaluation], ...]
    outer: OuterSetting
    outer_reason: str

    @property
    def loss(self) -> float:
        """The held-out loss of the final global model, in nats per token."""
        return self.evaluations[-1][2].loss

    @property
    def participation(self) -> float:
        """The share of live learners that are part of a round, on average."""
        closed = [verdict for _, verdict in self.world.closed]
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
) -> VirtualResult:
    """Train ``protocol.num_learners`` learners for ``protocol.rounds`` rounds in this process.

    ``on_round`` is called with the number of every published round, for whoever shows progress. ``checkpoints``: after
    which rounds the whole run is written, and into which directories; ``resume``: go on from such a directory, to the
    same end, bit for bit, and with the whole trace. Raises :class:`SettingError` for settings that contradict each
    other, :class:`StateError` for a checkpoint that does not fit, :class:`RunFailed` if rounds stop closing.
    """
    run = VirtualRun(setting, data, protocol, virtual or VirtualSetting(), trace=trace, on_round=on_round)
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
    ) -> None:
        """``state`` and ``learner_states``: see :class:`gruppetto.sim.World`."""
        if protocol.rounds is None:
            raise SettingError("a virtual run needs an end", where="run.rounds", fix="give a number of rounds")
        if protocol.slots > setting.data.slots:
            setting = replace(setting, data=replace(setting.data, slots=protocol.slots))
        self.settings = {"train": setting, "protocol": protocol, "virtual": virtual}
        self._setting, self._data, self._on_round, self._rounds = setting, data, on_round, protocol.rounds
        self.model = build(setting.model, data.tokenizer.vocab_size)
        """The global model, as of the last evaluation."""
        self._flat = FlatModel(self.model)
        parts = cut(self._flat.layout, protocol.num_fragments, virtual.fragmenter, virtual.merge)
        self._flat.cut(parts)
        protocol = replace(protocol, num_fragments=parts.num_fragments, start_learners=protocol.num_learners)
        self._outer, self._outer_reason = choose_outer(virtual.outer, protocol.rounds, protocol.sync_period)
        rules = merge_rules(self._flat.layout, virtual.merge)
        uplink = CODECS[virtual.uplink]
        self.syncer = VirtualSyncer(parts, rules, self._outer, uplink=uplink, downlink=CODECS[virtual.downlink])
        self.learners: dict[str, VirtualLearner] = {}
        self._script = Script()

        def hands(spec: LearnerSpec) -> DrowsyLearner:
            self.learners[spec.name] = VirtualLearner(
                setting,
                data,
                protocol,
                parts,
                uplink,
                self.syncer,
                factor=virtual.factor_of(spec.name),
                feedback=virtual.feedback,
            )
            step = (setting.batch_size * setting.context, setting.batch_size)
            return DrowsyLearner(self.learners[spec.name], self._script, step)

        self.world = World(
            protocol,
            [virtual.spec(m) for m in range(protocol.num_learners)],
            seed=setting.seed,
            costs=SyncerCosts(merge_s=virtual.merge_s),
            trace=trace,
            syncer_hands=DrowsySyncer(self.syncer, self._script),
            learner_hands=hands,
            state=state,
            learner_states=learner_states,
        )
        self.world.on_published = self._published
        self._evaluations: list[tuple[int, float, Evaluation]] = []
        self._stop_at: int | None = None

    def until(self, round: int | None) -> bool:
        """Go on until ``round`` is published; False if the run has come to its end before. None: to the end."""
        self._stop_at = round
        self.world.run(until=NEVER_S)
        return self.world.syncer.published_round == round

    def finish(self) -> VirtualResult:
        """Go on to the end."""
        self.until(None)
        if not self._evaluations or self._evaluations[-1][0] != self._rounds:
            raise RunFailed(
                f"the virtual run stopped at round {self.world.syncer.round}: {self.world.syncer.waiting_for}"
            )
        return VirtualResult(
            world=self.world,
            model=self.model,
            evaluations=tuple(self._evaluations),
            outer=self._outer,
            outer_reason=self._outer_reason,
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
            told={"evaluations": self._evaluations},
        )

    def resume(self, place: Path) -> None:
        """Be where the run was that was saved in ``place``. Raises :class:`StateError`."""
        round, tensors, rest = read_round(place, self.settings)
        rehearse(self._script, rest)
        self.until(round)
        wake_up(place, tensors, rest, world=self.world, script=self._script, hands=self.learners, syncer=self.syncer)
        self._evaluations = msgspec.convert(rest["told"]["evaluations"], list[tuple[int, float, Evaluation]])

    def _published(self, publish: Publish) -> None:
        round = publish.message.round
        if round == self._stop_at:
            self.world.engine.stop()
        if self._script.asleep:
            return
        self._on_round(round)
        if round % self._setting.eval_every_rounds == 0 or publish.message.finished:
            for p in range(len(self.syncer.parts.fragments)):
                self._flat.write(p, self.syncer.value(Fragment(p)))
            found = held_out(self.model, self._data, self._setting)
            self._evaluations.append((round, self.world.engine.now, found))
