"""What else is looked at when a model is trained: each domain, accuracy, the use of experts, questions, fine-tuning."""

from __future__ import annotations

import copy
import tempfile
from pathlib import Path

import torch
from torch import Tensor, nn

from gruppetto.experiments.captions import CaptionDecoder, captions_right
from gruppetto.experiments.material import Material, open_material
from gruppetto.experiments.pretrained import load
from gruppetto.experiments.riddles import KINDS, riddles
from gruppetto.experiments.ride import Ride
from gruppetto.experiments.scoring import score
from gruppetto.experiments.store import Result
from gruppetto.train.batches import Batches, gather
from gruppetto.train.evaluate import evaluate
from gruppetto.train.export import export
from gruppetto.train.inner import adamw, learning_rate
from gruppetto.train.rivals import held_out
from gruppetto.train.setting import InnerSetting, TrainSetting
from gruppetto.train.step import train_step

__all__ = ["look_at"]

TUNING = InnerSetting(learning_rate=1e-3, warmup_rounds=10)
"""One recipe for whatever is tuned."""
AT_A_TIME = 256
QUESTIONS = 7
"""The seed of questions: every model is asked the same."""


def look_at(model: nn.Module, asked: Ride, setting: TrainSetting, material: Material, cache: Path) -> Result:
    """All that the ride and the model give to see. The model is left as it is."""
    found: Result = {}
    if asked.domains:
        for name, tokens in material.parts.items():
            judged = evaluate(model, tokens, context=setting.context, num_windows=setting.eval_windows)
            found[f"loss on {name}"] = judged.loss
    if setting.model.architecture == "vit":
        found["accuracy"] = _accuracy(model, setting, material)
    if isinstance(model, CaptionDecoder):
        found["captions right"] = captions_right(model, _held_out(setting, material))
    if hasattr(model, "router_aux_loss_coef"):
        found["balance"] = _balance(model, setting, material)
    if asked.questions:
        found |= _ask(model, asked, setting, material)
    if asked.tuned_on:
        found |= _tune(copy.deepcopy(model), asked, setting, open_material(asked.tuned_on, setting, cache))
    return found


@torch.no_grad()
def _accuracy(model: nn.Module, setting: TrainSetting, material: Material) -> float:
    """The share of all held-out images that are seen right."""
    windows = _held_out(setting, material)
    right = 0
    for begin in range(0, len(windows), AT_A_TIME):
        part = windows[begin : begin + AT_A_TIME]
        right += int((model(part).logits.argmax(-1) == part[:, -1]).sum().item())
    return right / len(windows)


def _held_out(setting: TrainSetting, material: Material) -> Tensor:
    """All held-out windows, int64 (n, context)."""
    return torch.from_numpy(material.data.held_out.reshape(-1, setting.context).astype("int64"))


@torch.no_grad()
def _balance(model: nn.Module, setting: TrainSetting, material: Material) -> float:
    """The load-balancing loss beside that of experts which are all used alike: 1 at the best."""
    tokens = material.data.held_out
    number = min(AT_A_TIME, len(tokens) // setting.context)
    input_ids = gather(tokens, torch.arange(number).numpy(), setting.context)
    return float(model(input_ids).aux_loss) / float(model.num_experts_per_tok)  # type: ignore[arg-type]


def _ask(model: nn.Module, asked: Ride, setting: TrainSetting, material: Material) -> Result:
    """Shares of questions answered rightly by what transformers load of the export; the same questions for all."""
    from transformers import AutoTokenizer

    found: Result = {}
    with tempfile.TemporaryDirectory() as place:
        export(model, setting.model, material.data.tokenizer, Path(place) / "model")
        loaded = load(Path(place) / "model")
        tokenizer = AutoTokenizer.from_pretrained(Path(place) / "model")

        def encode(text: str) -> list[int]:
            # What is longer than a window is cut later: no warning is wanted.
            ids: list[int] = tokenizer.encode(text, add_special_tokens=False, verbose=False)
            return ids

        for kind in KINDS:
            questions = riddles(material.data.held_out, material.data.tokenizer, kind, asked.questions, seed=QUESTIONS)
            scored = score(loaded, encode, questions, context=setting.context)
            found |= {f"{kind}, plain": scored.plain, f"{kind}, by length": scored.by_length}
    return found


def _tune(model: nn.Module, asked: Ride, setting: TrainSetting, material: Material) -> Result:
    """One learner's training on other material, with a fresh optimizer."""
    before = held_out(model, material.data, setting).loss
    optimizer, batches = adamw(model, TUNING), Batches.of(material.data, setting, slot=0)
    for step in range(asked.tuned_steps):
        rate = learning_rate(TUNING, step, asked.tuned_steps)
        train_step(model, optimizer, next(batches), rate=rate, clip_norm=TUNING.clip_norm)
    return {"before tuning": before, "after tuning": held_out(model, material.data, setting).loss}
