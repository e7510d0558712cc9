"""Models that experiments train, by name; small enough that thousands of steps take a minute."""

from __future__ import annotations

from gruppetto.train.setting import ModelSetting

__all__ = ["MODELS"]

MODELS: dict[str, ModelSetting] = {
    "mite": ModelSetting(dim=32, layers=2, heads=2, ffn_dim=96, context=64),
    "tiny": ModelSetting(),
}
"""With bytes as tokens: ``mite`` 35 thousand parameters, ``tiny`` 218 thousand."""
