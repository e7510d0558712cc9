"""Windows of the data as tensors, with a cursor that is all there is to remember."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gruppetto.errors import StateError
from gruppetto.train.data import Data
from gruppetto.train.order import Slot
from gruppetto.train.setting import TrainSetting
from gruppetto.train.tokens import TokenArray

__all__ = ["Batches", "gather"]


class Batches(Iterator[tuple[Tensor, Tensor]]):
    """The endless batches of one slot: (input_ids, labels), both int64 (batch_size, context).

    Labels are the inputs themselves; the model shifts them. ``cursor`` counts the windows handed out so far,
    so it keeps its meaning when the batch size changes, and a batch depends on nothing but slot and cursor.
    """

    def __init__(self, tokens: TokenArray, *, context: int, batch_size: int, slot: Slot, cursor: int = 0) -> None:
        assert slot.num_windows == len(tokens) // context, "the slot was made for other data"
        self.tokens = tokens
        self.context = context
        self.batch_size = batch_size
        self.slot = slot
        self.cursor = cursor

    @classmethod
    def of(cls, data: Data, setting: TrainSetting, *, slot: int, cursor: int = 0) -> Batches:
        """The batches of one slot of a run; :class:`SettingError` when the run has no such slot."""
        tokens = data.of_slot(slot)
        return cls(
            tokens,
            context=setting.context,
            batch_size=setting.batch_size,
            slot=Slot(
                seed=setting.seed,
                slot=slot,
                num_slots=setting.data.slots,
                num_windows=len(tokens) // setting.context,
            ),
            cursor=cursor,
        )

    def __next__(self) -> tuple[Tensor, Tensor]:
        input_ids = gather(self.tokens, self.slot.windows(self.cursor, self.batch_size), self.context)
        self.cursor += self.batch_size
        return input_ids, input_ids

    def state_dict(self) -> dict[str, int]:
        return {**self._identity(), "cursor": self.cursor}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved cursor; :class:`StateError` if it was a cursor into something else."""
        for name, mine in self._identity().items():
            if state.get(name) != mine:
                raise StateError(
                    f"was saved with {name} {state.get(name)}, but this run has {mine}",
                    where="data cursor",
                    fix="resume with the corpus, context, seed and slots of the saved run",
                )
        self.cursor = int(state["cursor"])

    def _identity(self) -> dict[str, int]:
        slot = self.slot
        return {
            "seed": slot.seed,
            "slot": slot.slot,
            "num_slots": slot.num_slots,
            "num_windows": slot.num_windows,
            "context": self.context,
        }


def gather(tokens: TokenArray, windows: np.ndarray[Any, np.dtype[np.int64]], context: int) -> Tensor:
    """The windows' tokens, int64 (len(windows), context)."""
    places = windows[:, None] * context + np.arange(context)
    return torch.from_numpy(tokens[places].astype(np.int64))
