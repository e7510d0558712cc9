"""All that does not learn, made ready from one setting: tokenizer, tokens to train on, tokens held out."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gruppetto.errors import DataError, SettingError
from gruppetto.train.corpus import Manifest, open_corpus
from gruppetto.train.setting import TrainSetting
from gruppetto.train.tokens import TokenArray, Tokenizer, encoded, make_tokenizer

__all__ = ["Data", "open_data", "open_tokenizer"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """``train`` and ``held_out`` are flat arrays of tokens with no document in common.

    With ``domains``, slot s is dealt from domain s mod their number alone; without, all slots from ``train``.
    """

    tokenizer: Tokenizer
    train: TokenArray
    held_out: TokenArray
    manifest: Manifest
    domains: tuple[TokenArray, ...] = ()

    def of_slot(self, slot: int) -> TokenArray:
        """What this slot is dealt from."""
        return self.domains[slot % len(self.domains)] if self.domains else self.train


def open_tokenizer(setting: TrainSetting, cache: Path) -> Tokenizer:
    """The tokenizer of a run alone; its corpus is read only where the tokenizer was learned from it."""
    return make_tokenizer(setting.data.tokenizer, lambda: open_corpus(setting.data.corpus, cache), cache)


def open_data(setting: TrainSetting, cache: Path) -> Data:
    """Read, or on first use make, the data of a run; ``cache`` is a directory that processes may share.

    Raises :class:`DataError` for a corpus that is missing, empty, not text, or smaller than a window, and
    :class:`SettingError` for a model that reads no text.
    """
    if setting.model.architecture == "vit":
        raise SettingError("reads images, and a corpus is text", where="model.architecture", fix="use llama or hf:NAME")
    corpus = open_corpus(setting.data.corpus, cache)
    tokenizer = make_tokenizer(setting.data.tokenizer, lambda: corpus, cache)
    key = corpus.manifest.sha256
    data = Data(
        tokenizer=tokenizer,
        train=encoded(corpus.train, tokenizer, cache, corpus_key=f"{key} train"),
        held_out=encoded(corpus.held_out, tokenizer, cache, corpus_key=f"{key} held-out"),
        manifest=corpus.manifest,
    )
    for part, tokens in (("train", data.train), ("held-out", data.held_out)):
        if len(tokens) < setting.context:
            raise DataError(
                f"its {part} part has {len(tokens)} tokens, fewer than the context of {setting.context}",
                where=setting.data.corpus,
                fix="use more text, or a smaller model.context",
            )
    return data
