"""Batches hold the windows that the order names, and a cursor is enough to go on."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from gruppetto.errors import SettingError, StateError
from gruppetto.train.batches import Batches
from gruppetto.train.data import Data
from gruppetto.train.setting import TrainSetting


def test_a_batch_is_the_windows_of_its_slot(setting: TrainSetting, data: Data) -> None:
    batches = Batches.of(data, setting, slot=1)
    next(batches)
    input_ids, labels = next(batches)
    assert input_ids.shape == (setting.batch_size, setting.context)
    assert input_ids.dtype == torch.int64
    assert torch.equal(input_ids, labels)
    for row, window in zip(input_ids.tolist(), batches.slot.windows(4, 4).tolist(), strict=True):
        assert row == data.train[window * setting.context : (window + 1) * setting.context].tolist()


def test_a_cursor_is_enough_to_go_on(setting: TrainSetting, data: Data) -> None:
    first = Batches.of(data, setting, slot=2)
    for _ in range(5):
        next(first)
    assert first.cursor == 5 * setting.batch_size
    second, third = Batches.of(data, setting, slot=2, cursor=first.cursor), Batches.of(data, setting, slot=2)
    third.load_state_dict(first.state_dict())
    expected = next(first)[0]
    assert torch.equal(next(second)[0], expected)
    assert torch.equal(next(third)[0], expected)


def test_a_cursor_into_other_data_is_refused(setting: TrainSetting, data: Data) -> None:
    saved = Batches.of(data, setting, slot=0).state_dict()
    for other in (
        Batches.of(data, setting, slot=1),
        Batches.of(data, replace(setting, seed=1), slot=0),
        Batches.of(data, replace(setting, model=replace(setting.model, context=16)), slot=0),
    ):
        with pytest.raises(StateError, match="data cursor"):
            other.load_state_dict(saved)


def test_a_slot_that_the_run_has_not_is_refused(setting: TrainSetting, data: Data) -> None:
    with pytest.raises(SettingError, match=r"data\.slots"):
        Batches.of(data, setting, slot=4)
