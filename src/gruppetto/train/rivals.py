"""What decoupled training is measured against, on the same model, the same slots of data and the same step.

``single`` is one learner alone: the least that many learners must beat. Data parallel averages every gradient
of M learners, the most they can hope for. Synchronous DiLoCo (2311.08105) averages their weights every H
steps. Round t of a rival is its t-th step, trained at the learning rate that a decoupled learner has in round
t.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from gruppetto.train.batches import Batches
from gruppetto.train.data import Data
from gruppetto.train.evaluate import Evaluation, evaluate
from gruppetto.train.inner import adamw, learning_rate
from gruppetto.train.log import TrainLog
from gruppetto.train.model import build
from gruppetto.train.setting import ModelSetting, TrainSetting
from gruppetto.train.step import StepResult, backward, update

__all__ = ["Course", "SynchronousDiloco", "lockstep_data_parallel", "single"]


@dataclass(kw_only=True)
class Course:
    """A training run from its first round to its last, logged and judged along the way.

    ``evaluate`` is None for those of many ranks that leave judging to the first.
    """

    setting: TrainSetting
    rounds: int
    log: TrainLog
    who: str
    evaluate: Callable[[], Evaluation] | None

    def run(self, step: Callable[[float], StepResult]) -> Evaluation | None:
        """Call ``step`` with the learning rate of each round; the last evaluation."""
        tokens, losses = 0, list[float]()
        self._judge("eval", round=0, tokens=0)
        for round in range(1, self.rounds + 1):
            result = step(learning_rate(self.setting.inner, round - 1, self.rounds))
            tokens += result.tokens
            losses.append(result.loss)
            if round % self.setting.log_every_rounds == 0 or round == self.rounds:
                mean = sum(losses) / len(losses)
                self.log.write(
                    "train",
                    who=self.who,
                    round=round,
                    step=round,
                    tokens=tokens,
                    loss=mean,
                    grad_norm=result.grad_norm,
                )
                losses.clear()
            if round % self.setting.eval_every_rounds == 0 and round < self.rounds:
                self._judge("eval", round=round, tokens=tokens)
        return self._judge("end", round=self.rounds, tokens=tokens)

    def _judge(self, kind: str, *, round: int, tokens: int) -> Evaluation | None:
        if self.evaluate is None:
            return None
        found = self.evaluate()
        self.log.write(
            "end" if kind == "end" else "eval",
            who=self.who,
            round=round,
            step=round,
            tokens=tokens,
            loss=found.loss,
            perplexity=found.perplexity,
        )
        return found


def held_out(model: nn.Module, data: Data, setting: TrainSetting) -> Evaluation:
    """The evaluation that every mode uses: same windows, same way."""
    return evaluate(model, data.held_out, context=setting.context, num_windows=setting.eval_windows)


def single(
    setting: TrainSetting, data: Data, *, rounds: int, log: TrainLog, slot: int = 0
) -> tuple[nn.Module, Evaluation]:
    """One learner on one slot, in this process; the trained model and its evaluation."""
    return lockstep_data_parallel(setting, data, num_learners=1, rounds=rounds, log=log, first_slot=slot)


def lockstep_data_parallel(
    setting: TrainSetting,
    data: Data,
    *,
    num_learners: int,
    rounds: int,
    log: TrainLog,
    first_slot: int = 0,
    make_model: Callable[[ModelSetting, int], nn.Module] = build,
) -> tuple[nn.Module, Evaluation]:
    """Data parallel in this process: every step averages the gradients of M batches, one from each slot.

    The same mathematics as M processes, for experiments on few cores.
    """
    model = make_model(setting.model, data.tokenizer.vocab_size)
    optimizer = adamw(model, setting.inner)
    shards = [Batches.of(data, setting, slot=first_slot + m) for m in range(num_learners)]

    def step(rate: float) -> StepResult:
        loss, tokens = 0.0, 0
        for shard in shards:
            batch = next(shard)
            loss += backward(model, batch, share=1 / num_learners) / num_learners
            tokens += batch[0].numel()
        grad_norm = update(model, optimizer, rate=rate, clip_norm=setting.inner.clip_norm)
        return StepResult(loss=loss, grad_norm=grad_norm, tokens=tokens)

    course = Course(
        setting=setting,
        rounds=rounds,
        log=log,
        who="learner-0",
        evaluate=lambda: held_out(model, data, setting),
    )
    found = course.run(step)
    assert found is not None
    return model, found


class SynchronousDiloco:
    """The outer half of textbook DiLoCo: every ``sync_period`` steps all average and restart together.

    With Δ the mean over learners of (what they started from − where they are): b ← μ·b + Δ; Θ ← Θ − η·(Δ +
    μ·b) (2311.08105, algorithm 1). ``average`` replaces a flat tensor by its mean over the learners, in
    place.

    A run that ends within a period ends with the mean of its learners, Θ ← Θ − Δ. The source has whole periods only
    and leaves this open; a momentum made for whole periods would carry Θ far beyond where a few steps have led.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        sync_period: int,
        outer_rate: float,
        outer_momentum: float,
        average: Callable[[Tensor], None],
    ) -> None:
        self.parameters = list(model.parameters())
        self.sync_period = sync_period
        self.outer_rate = outer_rate
        self.outer_momentum = outer_momentum
        self.average = average
        self.start = self._flat()
        self.momentum = torch.zeros_like(self.start)

    def after_step(self, step: int, *, last: bool) -> None:
        """Synchronise when a period is over, or the run is; ``step`` counts from 1."""
        whole = step % self.sync_period == 0
        if not whole and not last:
            return
        delta = self.start - self._flat()
        self.average(delta)
        if whole:
            self.momentum.mul_(self.outer_momentum).add_(delta)
            self.start -= self.outer_rate * (delta + self.outer_momentum * self.momentum)
        else:
            self.start -= delta
        self._set(self.start)

    @contextmanager
    def global_model(self) -> Iterator[None]:
        """While inside, the model has the weights that all learners last agreed on."""
        mine = self._flat()
        self._set(self.start)
        try:
            yield
        finally:
            self._set(mine)

    def _flat(self) -> Tensor:
        return torch.cat([parameter.detach().flatten() for parameter in self.parameters])

    @torch.no_grad()
    def _set(self, flat: Tensor) -> None:
        pieces = torch.split(flat, [parameter.numel() for parameter in self.parameters])
        for parameter, piece in zip(self.parameters, pieces, strict=True):
            parameter.copy_(piece.view_as(parameter))
