"""What decoupled learners are compared with in virtual time: other systems under the same mishaps, with their loss.

When a rival makes which step, and with whom, is what the simulator of clusters says (:mod:`gruppetto.sim.elastic`,
:mod:`gruppetto.sim.rivals`), every learner being one slice; the tensors are those of :mod:`gruppetto.train.rivals`. Of
the mishaps, kills of learners count, and guests: a rival has no syncer, and its links are as good as they need be.

========================  =========================================================================================
``data-parallel``         stops at every kill; a spare stands in, and what was done since the last checkpoint is done
                          again. Knows no guests.
``elastic``               pauses, and goes on without whoever is away; pauses, and takes in whoever is there.
``diloco``                synchronous DiLoCo: all meet every H steps, and at the end, and wait for the last one.
                          Knows no guests.
========================  =========================================================================================

A step takes as long as the slowest of those who make it together.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from gruppetto.errors import SettingError
from gruppetto.protocol.settings import ProtocolSetting
from gruppetto.sim import LearnerSpec
from gruppetto.sim.elastic import ElasticCosts, ElasticJob
from gruppetto.sim.failures import Fault
from gruppetto.sim.mishaps import SYNCER, Mishap, MishapKind
from gruppetto.sim.paper import FITTED
from gruppetto.sim.rivals import RestartCosts
from gruppetto.train.batches import Batches
from gruppetto.train.data import Data
from gruppetto.train.inner import adamw, learning_rate
from gruppetto.train.model import build
from gruppetto.train.rivals import SynchronousDiloco, held_out
from gruppetto.train.setting import TrainSetting
from gruppetto.train.step import backward, train_step, update
from gruppetto.train.virtual import Point
from gruppetto.train.virtual_setting import VirtualSetting

__all__ = ["RivalCosts", "RivalResult", "System", "train_rival"]

System = Literal["data-parallel", "elastic", "diloco"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RivalCosts:
    """In virtual seconds; by default what the simulator found to fit the paper's table."""

    scale_down_s: float = FITTED.elastic.scale_down_s
    scale_up_s: float = FITTED.elastic.scale_up_s
    restart: RestartCosts = FITTED.restart

    @property
    def elastic(self) -> ElasticCosts:
        return ElasticCosts(slice_chips=1, scale_down_s=self.scale_down_s, scale_up_s=self.scale_up_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class RivalResult:
    """``curve``: held-out loss by virtual time, from the first weights on; ``goodput``: learner·time in steps that were
    kept / all of it, over the learners of the run without guests."""

    curve: tuple[Point, ...]
    goodput: float

    @property
    def loss(self) -> float:
        return self.curve[-1].loss

    @property
    def ended_s(self) -> float:
        return self.curve[-1].at_s


@dataclass(frozen=True, slots=True)
class _Step:
    """Who made it, and when; ``spent_s``: the time of all of them together."""

    done_s: float
    learners: tuple[int, ...]
    spent_s: float


def train_rival(
    system: System,
    setting: TrainSetting,
    data: Data,
    protocol: ProtocolSetting,
    virtual: VirtualSetting | None = None,
    *,
    costs: RivalCosts | None = None,
    on_round: Callable[[int], None] = lambda round: None,
) -> RivalResult:
    """Train on as many tokens as ``protocol.num_learners`` learners have in ``protocol.rounds`` steps.

    Raises :class:`SettingError`.
    """
    virtual = virtual or VirtualSetting()
    if system not in get_args(System):
        raise SettingError(f"{system!r} is no rival", where="system", fix=f"use one of {', '.join(get_args(System))}")
    if protocol.rounds is None:
        raise SettingError("a virtual run needs an end", where="run.rounds", fix="give a number of rounds")
    if system != "elastic" and virtual.guests:
        raise SettingError(f"{system} knows no guests", where="virtual.guests", fix="use elastic, or leave them out")
    if virtual.batch_sizes:
        fix = "leave them out: its learners take equal batches"
        raise SettingError(f"{system} has one batch size", where="virtual.batch_sizes", fix=fix)
    specs = virtual.specs(protocol)
    if protocol.slots > setting.data.slots:
        setting = replace(setting, data=replace(setting.data, slots=protocol.slots))
    course = _Course(setting, data, protocol.num_learners, protocol.rounds, on_round)
    paces = _paces(specs, setting.seed)
    match system:
        case "data-parallel":
            course.data_parallel(_restarting(specs, virtual.mishaps, paces, (costs or RivalCosts()).restart))
        case "elastic":
            course.data_parallel(_elastic(specs, virtual.mishaps, paces, (costs or RivalCosts()).elastic))
        case "diloco":
            periods = _periods(protocol.rounds, protocol.sync_period)
            meetings = _meetings(specs, virtual.mishaps, paces, (costs or RivalCosts()).elastic, periods)
            course.diloco(meetings, periods, protocol.sync_period)
    return course.result()


# ── when ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _paces(specs: Sequence[LearnerSpec], seed: int) -> list[Callable[[], float]]:
    """How long the next step of each learner takes, by the same random numbers as a decoupled one's."""
    rngs = [random.Random(f"{seed}/{spec.name}") for spec in specs]
    return [lambda spec=spec, rng=rng: spec.pace.next_step_s(rng) for spec, rng in zip(specs, rngs, strict=True)]  # type: ignore[misc]


def _faults(specs: Sequence[LearnerSpec], mishaps: Sequence[Mishap]) -> list[Fault]:
    """Kills, and guests that leave, as faults of one slice each."""
    places = {spec.name: place for place, spec in enumerate(specs)}
    kills = [m for m in mishaps if m.kind is MishapKind.KILL and m.who != SYNCER]
    faults = [Fault(at_s=m.at_s, first_chip=places[m.who], num_chips=1, down_s=m.lasts_s) for m in kills]
    faults += [
        Fault(at_s=spec.leaves_at, first_chip=place, num_chips=1, down_s=math.inf, notice=True)
        for place, spec in enumerate(specs)
        if spec.leaves_at is not None
    ]
    return sorted(faults, key=lambda fault: (fault.at_s, fault.first_chip))


def _restarting(
    specs: Sequence[LearnerSpec], mishaps: Sequence[Mishap], paces: Sequence[Callable[[], float]], costs: RestartCosts
) -> Iterator[_Step]:
    """Steps that were made again were the same steps: of each, the time at which it was last made."""
    everybody = tuple(range(len(specs)))
    kills = iter(_faults(specs, mishaps))
    kill = next(kills, None)
    now = kept_s = 0.0
    made: list[_Step] = []  # since the last checkpoint
    lengths: list[float] = []  # of steps to make again
    while True:
        step_s = lengths.pop(0) if lengths else max(pace() for pace in paces)
        while kill is not None and kill.at_s < now:
            kill = next(kills, None)
        if kill is not None and kill.at_s < now + step_s:
            lengths = [step.spent_s / len(specs) for step in made] + [step_s] + lengths
            made, now = [], kill.at_s + costs.restart_s
            kept_s = now
            continue
        now += step_s
        made.append(_Step(now, everybody, step_s * len(specs)))
        if now - kept_s >= costs.checkpoint_s:
            yield from made
            made, kept_s = [], now


def _elastic(
    specs: Sequence[LearnerSpec], mishaps: Sequence[Mishap], paces: Sequence[Callable[[], float]], costs: ElasticCosts
) -> Iterator[_Step]:
    later = [(place, spec.joins_at) for place, spec in enumerate(specs) if spec.joins_at > 0]
    job = ElasticJob(first_chip=0, chips=len(specs), faults=_faults(specs, mishaps), costs=costs, later=later)
    now = 0.0
    while True:
        step_s = max(paces[place]() for place in job.present) if job.present else 0.0
        stretch = job.train(now, step_s)
        now = stretch.done_s
        if stretch.steps:
            yield _Step(now, job.present, (stretch.done_s - stretch.began_s) * stretch.chips)


def _periods(rounds: int, sync_period: int) -> list[int]:
    """The steps of each; the last period may be shorter.

    >>> _periods(30, 12)
    [12, 12, 6]
    """
    return [min(sync_period, rounds - begun) for begun in range(0, rounds, sync_period)]


def _meetings(
    specs: Sequence[LearnerSpec],
    mishaps: Sequence[Mishap],
    paces: Sequence[Callable[[], float]],
    costs: ElasticCosts,
    periods: Sequence[int],
) -> Iterator[_Step]:
    """Each step stands for a period of all."""
    faults = _faults(specs, mishaps)
    jobs = [ElasticJob(first_chip=place, chips=1, faults=faults, costs=costs) for place in range(len(specs))]
    met = 0.0
    for period in periods:
        ends, spent_s = [], 0.0
        for place, job in enumerate(jobs):
            now, made = met, 0
            while made < period:
                stretch = job.train(now, paces[place]())
                spent_s += stretch.done_s - stretch.began_s
                now, made = stretch.done_s, made + stretch.steps
            ends.append(now)
        met = max(ends)
        yield _Step(met, tuple(range(len(specs))), spent_s)


# ── what ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class _Course:
    """A rival's training, to a number of tokens; its learning rate follows them."""

    def __init__(
        self, setting: TrainSetting, data: Data, num_learners: int, rounds: int, on_round: Callable[[int], None]
    ) -> None:
        self._setting, self._data, self._on_round = setting, data, on_round
        self._num_learners, self._rounds = num_learners, rounds
        self._model = build(setting.model, data.tokenizer.vocab_size)
        self._shards: dict[int, Batches] = {}
        self._tokens = self._judged = 0
        self._spent_s = 0.0
        self._curve = [self._judge(0.0)]

    def data_parallel(self, steps: Iterator[_Step]) -> None:
        optimizer = adamw(self._model, self._setting.inner)
        while not self._is_over:
            step, rate = next(steps), self._rate
            for m in step.learners:
                backward(self._model, next(self._shard(m)), share=1 / len(step.learners))
            update(self._model, optimizer, rate=rate, clip_norm=self._setting.inner.clip_norm)
            self._made(step, len(step.learners))

    def diloco(self, meetings: Iterator[_Step], periods: Sequence[int], sync_period: int) -> None:
        outer = SynchronousDiloco(
            self._model, sync_period=sync_period, outer_rate=0.7, outer_momentum=0.9, average=lambda delta: None
        )
        learners = [build(self._setting.model, self._data.tokenizer.vocab_size) for _ in range(self._num_learners)]
        optimizers = [adamw(learner, self._setting.inner) for learner in learners]
        for meeting, period in zip(meetings, periods, strict=True):
            first = self._round
            for m, (learner, optimizer) in enumerate(zip(learners, optimizers, strict=True)):
                _copy(self._model, learner)
                for i in range(period):
                    rate = learning_rate(self._setting.inner, first + i, self._rounds)
                    clip_norm = self._setting.inner.clip_norm
                    train_step(learner, optimizer, next(self._shard(m)), rate=rate, clip_norm=clip_norm)
            _mean(learners, self._model)
            outer.after_step(first + period, last=first + period == self._rounds)
            self._made(meeting, self._num_learners * period)

    def result(self) -> RivalResult:
        goodput = self._spent_s / (self._num_learners * self._curve[-1].at_s)
        return RivalResult(curve=tuple(self._curve), goodput=goodput)

    @property
    def _round(self) -> int:
        """The round in which decoupled learners would have been trained on as much."""
        return self._tokens // (self._num_learners * self._setting.tokens_per_step)

    @property
    def _rate(self) -> float:
        return learning_rate(self._setting.inner, self._round, self._rounds)

    @property
    def _is_over(self) -> bool:
        return self._round >= self._rounds

    def _shard(self, m: int) -> Batches:
        if m not in self._shards:
            self._shards[m] = Batches.of(self._data, self._setting, slot=m)
        return self._shards[m]

    def _made(self, step: _Step, batches: int) -> None:
        self._tokens += batches * self._setting.tokens_per_step
        self._spent_s += step.spent_s
        self._on_round(self._round)
        due = self._round // self._setting.eval_every_rounds
        if due > self._judged or self._is_over:
            self._judged = due
            self._curve.append(self._judge(step.done_s))

    def _judge(self, at_s: float) -> Point:
        loss = held_out(self._model, self._data, self._setting).loss
        return Point(round=self._round, at_s=at_s, consumed=self._tokens, merged=self._tokens, loss=loss)


@torch.no_grad()
def _copy(source: nn.Module, target: nn.Module) -> None:
    for ours, theirs in zip(target.parameters(), source.parameters(), strict=True):
        ours.copy_(theirs)


@torch.no_grad()
def _mean(models: Sequence[nn.Module], into: nn.Module) -> None:
    """Every parameter becomes the mean of theirs."""
    rows: Iterator[tuple[Tensor, ...]] = zip(*(model.parameters() for model in models), strict=True)
    for target, of_all in zip(into.parameters(), rows, strict=True):
        target.copy_(torch.stack(of_all).mean(0))
