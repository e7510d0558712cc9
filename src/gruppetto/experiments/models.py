"""Models that experiments train, by name; small enough that thousands of steps take a minute."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from gruppetto.experiments.captions import CAPTION_BYTES, CaptionDecoder
from gruppetto.train.setting import ModelSetting

__all__ = ["MAKERS", "MODELS"]

MODELS: dict[str, ModelSetting] = {
    "mite": ModelSetting(dim=32, layers=2, heads=2, ffn_dim=96, context=64),
    "tiny": ModelSetting(),
    "vit": ModelSetting(architecture="vit", dim=48, layers=2, heads=4, ffn_dim=96, context=28 * 28 + 1),
    "moe": ModelSetting(architecture="hf:mixtral", dim=32, layers=2, heads=2, ffn_dim=48, context=64),
    "captioner": ModelSetting(dim=32, layers=2, heads=2, ffn_dim=96, context=28 * 28 + CAPTION_BYTES),
    "smollm2": ModelSetting(architecture="hf:smollm2", dim=576, layers=30, heads=9, kv_heads=3, ffn_dim=1536),
}
"""With bytes as tokens: ``mite`` 35 thousand parameters, ``tiny`` 218 thousand, ``moe`` a Mixtral with eight experts of
which each token takes two (and a load-balancing loss of each learner's own), 91 thousand;
``vit`` a vision transformer of 40 thousand, for images of 28 × 28; ``captioner`` a decoder of 37 thousand that reads
such an image and writes a line below it. ``smollm2`` is pre-trained, 135 million
(:mod:`gruppetto.experiments.pretrained`)."""

MAKERS: dict[str, Callable[[ModelSetting, int], nn.Module]] = {"captioner": CaptionDecoder}
"""Those that are made here: from setting and vocabulary, as :func:`gruppetto.train.model.build` makes the others."""
