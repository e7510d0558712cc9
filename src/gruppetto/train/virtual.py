"""Virtual training: real tensors in virtual time, one process, the same result from the same seed on the same machine.

The cores, the syncer's parameters, the learners' snapshots and applies, the codecs and the training step are the
shipping ones; only the network is a heap (:mod:`gruppetto.sim.world`). So a learner may be 18 % slower or late by
200 ms, and the loss that this costs does not depend on what else the machine is doing. The instrument of every
quality experiment.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from torch import nn

from gruppetto.attach.holdings import Holdings
from gruppetto.attach.sharding import FlatModel
from gruppetto.errors import RunFailed, SettingError
from gruppetto.numerics import CODECS, Codec, Fragmentation, choose_outer, encode_difference, inspect
from gruppetto.numerics.outer import OuterSetting
from gruppetto.protocol.actions import Apply, Fold, Publish, TakeOuterStep
from gruppetto.protocol.events import OuterStepped
from gruppetto.protocol.messages import Answer, ApplyMode
from gruppetto.protocol.settings import ProtocolSetting
from gruppetto.protocol.units import Fragment, Version
from gruppetto.runtime.cut import cut, merge_rules
from gruppetto.runtime.intake import Body
from gruppetto.runtime.parameters import Parameters
from gruppetto.sim import LearnerSpec, Link, Pace, SyncerCosts, World
from gruppetto.trace.log import TraceWriter
from gruppetto.train.batches import Batches
from gruppetto.train.data import Data
from gruppetto.train.evaluate import Evaluation
from gruppetto.train.inner import adamw, learning_rate
from gruppetto.train.model import build
from gruppetto.train.rivals import held_out
from gruppetto.train.setting import TrainSetting
from gruppetto.train.step import train_step

__all__ = ["VirtualResult", "VirtualSetting", "train_virtually"]

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
    step_s: tuple[float, ...] = (1.0,)
    """Step time of each learner; the last one serves all further learners."""
    jitter: float = 0.1
    latency_s: float = 0.02
    merge_s: float = 0.05

    def spec(self, m: int) -> LearnerSpec:
        pace = Pace(step_s=self.step_s[min(m, len(self.step_s) - 1)], jitter=self.jitter)
        return LearnerSpec(name=f"learner-{m}", pace=pace, link=Link(latency_s=self.latency_s))


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
) -> VirtualResult:
    """Train ``protocol.num_learners`` learners for ``protocol.rounds`` rounds in this process.

    ``on_round`` is called with the number of every published round, for whoever shows progress. Raises
    :class:`SettingError` for settings that contradict each other, :class:`RunFailed` if rounds stop closing.
    """
    virtual = virtual or VirtualSetting()
    if protocol.rounds is None:
        raise SettingError("a virtual run needs an end", where="run.rounds", fix="give a number of rounds")
    if protocol.slots > setting.data.slots:
        setting = replace(setting, data=replace(setting.data, slots=protocol.slots))
    global_model = build(setting.model, data.tokenizer.vocab_size)
    flat = FlatModel(global_model)
    parts = cut(flat.layout, protocol.num_fragments, virtual.fragmenter, virtual.merge)
    flat.cut(parts)
    protocol = replace(protocol, num_fragments=parts.num_fragments, start_learners=protocol.num_learners)
    outer, reason = choose_outer(virtual.outer, protocol.rounds, protocol.sync_period)
    rules = merge_rules(flat.layout, virtual.merge)
    syncer = _Syncer(parts, rules, outer, uplink=CODECS[virtual.uplink], downlink=CODECS[virtual.downlink])
    world = World(
        protocol,
        [virtual.spec(m) for m in range(protocol.num_learners)],
        seed=setting.seed,
        costs=SyncerCosts(merge_s=virtual.merge_s),
        trace=trace,
        syncer_hands=syncer,
        learner_hands=lambda spec: _Learner(setting, data, protocol, parts, CODECS[virtual.uplink], syncer),
    )
    evaluations: list[tuple[int, float, Evaluation]] = []

    def published(publish: Publish) -> None:
        round = publish.message.round
        on_round(round)
        if round % setting.eval_every_rounds == 0 or publish.message.finished:
            for p in range(parts.num_fragments):
                flat.write(p, syncer.value(Fragment(p)))
            evaluations.append((round, world.engine.now, held_out(global_model, data, setting)))

    world.on_published = published
    world.run(until=NEVER_S)
    if not evaluations or evaluations[-1][0] != protocol.rounds:
        raise RunFailed(f"the virtual run stopped at round {world.syncer.round}: {world.syncer.waiting_for}")
    return VirtualResult(
        world=world, model=global_model, evaluations=tuple(evaluations), outer=outer, outer_reason=reason
    )


class _Syncer:
    """The syncer's hands: the parameters of the real service, without its threads and disk."""

    def __init__(
        self, parts: Fragmentation, rules: dict[str, str], outer: OuterSetting, *, uplink: Codec, downlink: Codec
    ) -> None:
        self.parts, self.uplink, self.downlink = parts, uplink, downlink
        self._parameters = Parameters(parts, rules=rules, outer=outer, downlink=downlink)

    def seed(self, weights: object) -> None:
        assert isinstance(weights, list)
        for p, theta in enumerate(weights):
            self._parameters.seed(Fragment(p), self._body(Fragment(p), theta.view(np.uint8), CODECS["fp32"]))

    def is_finite(self, contribution: object) -> bool:
        assert isinstance(contribution, Body)
        return contribution.inspection.finite

    def fold(self, fold: Fold, contribution: object) -> None:
        assert isinstance(contribution, Body)
        self._parameters.fold(fold.fragment, contribution, self.uplink, fold.weight)

    def outer_step(self, action: TakeOuterStep) -> OuterStepped:
        report = self._parameters.outer_step(action.fragments, action.round)
        return OuterStepped(round=action.round, zero=report.zero, not_finite=report.not_finite)

    def publish(self, publish: Publish) -> None:
        self._parameters.publish(fragment for fragment, _ in publish.message.versions)

    def read(self, fragment: Fragment, version: Version) -> object:
        value = self._parameters.current(fragment)
        assert value is not None and value.version == version
        # The buffer may be used again once the value is retired; what is on its way must not change.
        body = value.body.copy()
        self._parameters.release(value)
        return body

    def value(self, fragment: Fragment) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
        """Θ of one fragment."""
        body = self.read(fragment, self._version(fragment))
        assert isinstance(body, np.ndarray)
        return self.downlink.decode(body, self.parts.fragments[fragment].numel)

    def contribution(self, fragment: Fragment, payload: np.ndarray[tuple[int, ...], np.dtype[np.uint8]]) -> Body:
        """What the gate would make of an uploaded body."""
        return self._body(fragment, payload, self.uplink)

    def _version(self, fragment: Fragment) -> Version:
        value = self._parameters.current(fragment)
        assert value is not None
        self._parameters.release(value)
        return value.version

    def _body(self, fragment: Fragment, payload: np.ndarray[tuple[int, ...], np.dtype[np.uint8]], codec: Codec) -> Body:
        seen = inspect(payload, codec, self.parts.fragments[fragment])
        return Body(payload.data, seen, lambda: None)


class _Learner:
    """A learner's hands: model, optimizer, data, and the vectors of the real library."""

    def __init__(
        self,
        setting: TrainSetting,
        data: Data,
        protocol: ProtocolSetting,
        parts: Fragmentation,
        uplink: Codec,
        syncer: _Syncer,
    ) -> None:
        self._setting, self._data = setting, data
        assert protocol.rounds is not None
        self._rounds = protocol.rounds
        self._parts, self._uplink, self._syncer = parts, uplink, syncer
        self._model = build(setting.model, data.tokenizer.vocab_size)
        self._optimizer = adamw(self._model, setting.inner)
        self._holdings = Holdings(FlatModel(self._model))
        self._holdings.cut(parts, ApplyMode(protocol.apply))
        self._batches: Batches | None = None

    def train(self, round: int, slot: int, cursor: int) -> tuple[int, int]:
        if self._batches is None:
            self._batches = Batches.of(self._data, self._setting, slot=slot, cursor=cursor)
        rate = learning_rate(self._setting.inner, round, self._rounds)
        batch = next(self._batches)
        self._holdings.before_write()
        result = train_step(self._model, self._optimizer, batch, rate=rate, clip_norm=self._setting.inner.clip_norm)
        return result.tokens, self._batches.cursor

    def seed(self) -> object:
        weights = []
        for p in range(self._parts.num_fragments):
            lease = self._holdings.seed_part(Fragment(p))
            weights.append(lease.values.copy())
            lease.release()
        return weights

    def snapshot(self, fragments: Sequence[Fragment]) -> None:
        self._holdings.take_snapshots(tuple(fragments))

    def contribution(self, answer: Answer) -> object:
        offer = self._holdings.offer(answer)
        payload = encode_difference(offer.base.values, offer.theta.values, self._uplink)
        offer.release()
        return self._syncer.contribution(answer.fragment, payload)

    def apply(self, action: Apply, value: object) -> None:
        if value is None:
            self._holdings.apply(action)
            return
        assert isinstance(value, np.ndarray)
        lease = self._holdings.lend(action.fragment)
        self._syncer.downlink.decode(value, len(lease.values), out=lease.values)
        self._holdings.arrive(action.fragment, action.version, lease)
        self._holdings.apply(action)
