"""A question of your own, to a model of your own, in virtual time: copy this file and change what is marked.

    python experiments/own_question.py --rounds 120 --seeds 3       # a table, and own-question.png

Here: does a small GRU want another η and another H than the Llamas of docs/evidence.md? Four learners, the last one
half as fast, beside data parallel on as many tokens as four equal ones would have. Optimizer and schedule of the
learners are those of :mod:`gruppetto.train.inner`; where you want another one, attach to your own loop
(docs/attach.md).
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from gruppetto.numerics.outer import OuterSetting
from gruppetto.protocol import ProtocolSetting
from gruppetto.sim.tally import spread
from gruppetto.train.data import Data, open_data
from gruppetto.train.log import TrainLog
from gruppetto.train.rivals import lockstep_data_parallel
from gruppetto.train.setting import DataSetting, InnerSetting, ModelSetting, TrainSetting
from gruppetto.train.virtual import VirtualResult, VirtualRun, VirtualSetting
from gruppetto.train.virtual_learner import LearnerTensors

LEARNERS, STEP_S = 4, (1.0, 1.0, 1.0, 2.0)
ARMS = [(eta, mu, period) for eta, mu in ((0.7, 0.5), (1.0, 0.0)) for period in (4, 24)]  # change this


class Gru(nn.Module):  # change this: it is called with tokens and labels, and answers with .loss and .logits
    def __init__(self, vocab_size: int, width: int = 48) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab_size, width)
        self.gru = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, vocab_size)

    def forward(self, input_ids: Tensor, labels: Tensor) -> SimpleNamespace:
        logits = self.head(self.gru(self.embed(input_ids))[0])
        loss = nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        return SimpleNamespace(loss=loss, logits=logits)


def make_model(setting: ModelSetting, vocab_size: int) -> nn.Module:
    """The same first weights for all learners."""
    with torch.random.fork_rng(devices=[]):
        torch.random.set_rng_state(torch.Generator().manual_seed(setting.seed).get_state())
        return Gru(vocab_size)


class Tensors(LearnerTensors):
    """A learner of it."""

    def make_model(self) -> nn.Module:
        return make_model(self._recipe.setting.model, self._recipe.vocab_size)


def ask(eta: float, mu: float, period: int, setting: TrainSetting, data: Data, rounds: int) -> VirtualResult:
    """One run of learners."""
    protocol = ProtocolSetting(num_learners=LEARNERS, rounds=rounds, sync_period=period, num_fragments=period)
    world = VirtualSetting(outer=OuterSetting(lr=eta, momentum=mu), step_s=STEP_S)
    with VirtualRun(setting, data, protocol, world, make_model=make_model, make_tensors=Tensors) as run:
        return run.finish()


def main(arguments: list[str] | None = None) -> dict[str, list[float]]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=120)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--corpus", default="python-stdlib", help="or text:PATH")
    parser.add_argument("--cache", type=Path, default=Path(".cache/experiments"))
    parser.add_argument("--out", type=Path, default=Path("own-question.png"))
    args = parser.parse_args(arguments)

    losses: dict[str, list[float]] = {}
    curves: dict[str, list[tuple[int, float]]] = {}
    for seed in range(args.seeds):
        setting = TrainSetting(
            model=ModelSetting(seed=seed, context=64),  # of it only the context counts
            data=DataSetting(corpus=args.corpus),
            inner=InnerSetting(learning_rate=3e-3),
            batch_size=4,
            eval_every_rounds=max(1, args.rounds // 6),
            seed=seed,
        )
        data = open_data(setting, args.cache)
        with tempfile.TemporaryDirectory() as place, TrainLog(Path(place) / "log", clock=lambda: 0.0) as log:
            _, found = lockstep_data_parallel(
                setting, data, num_learners=LEARNERS, rounds=args.rounds, log=log, make_model=make_model
            )
        losses.setdefault("data parallel", []).append(found.loss)
        for eta, mu, period in ARMS:
            name = f"η = {eta:g}, μ = {mu:g}, H = {period}"
            result = ask(eta, mu, period, setting, data, args.rounds)
            losses.setdefault(name, []).append(result.loss)
            curves.setdefault(name, [(point.round, point.loss) for point in result.curve])  # of the first seed
    print("| | held-out nats | beside data parallel |\n|---|---|---|")
    for name, found_losses in losses.items():
        shares = [100 * (mine / other - 1) for mine, other in zip(found_losses, losses["data parallel"], strict=True)]
        print(f"| {name} | {_told(found_losses, '.3f')} | {_told(shares, '+.1f')} % |")
    _draw(curves, args.out)
    return losses


def _told(values: list[float], form: str) -> str:
    mean, half = spread(values)
    return format(mean, form) + ("" if half is None else f" ± {half:{form.lstrip('+')}}")


def _draw(curves: dict[str, list[tuple[int, float]]], place: Path) -> None:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return
    picture = Figure(figsize=(7, 4), layout="constrained")
    axes: Any = picture.subplots()
    for name, points in curves.items():
        axes.plot(*zip(*points, strict=True), marker="o", ms=3, label=name)
    axes.set(xlabel="rounds", ylabel="held-out nats per token")
    axes.legend()
    picture.savefig(place)


if __name__ == "__main__":
    main()
