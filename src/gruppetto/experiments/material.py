"""What experiments train on: a corpus as the trainer knows them."""

from __future__ import annotations

from pathlib import Path

from gruppetto.train.data import Data, open_data
from gruppetto.train.setting import TrainSetting

__all__ = ["open_material"]


def open_material(setting: TrainSetting, cache: Path) -> Data:
    """The data of a ride. Raises :class:`DataError`."""
    cache.mkdir(parents=True, exist_ok=True)
    return open_data(setting, cache)
