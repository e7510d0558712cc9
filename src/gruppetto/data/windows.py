"""A file of token numbers as a sequence of windows, read where it lies."""

from __future__ import annotations

from pathlib import Path
from typing import Any, SupportsIndex

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray
from torch import Tensor

from gruppetto.errors import DataError
from gruppetto.home import at_home

__all__ = ["TokenWindows"]


class TokenWindows:
    """Windows of ``context`` tokens each, one after the other; what is left over at the end is not used.

    ``tokens``: a one-dimensional array of whole numbers, or a file that is mapped into memory: ``.npy``, or numbers of
    ``dtype`` and nothing else (nanoGPT's ``train.bin``). An item is {"input_ids", "labels"}, both int64 (context,);
    labels are the inputs themselves, as models want them that shift them. Raises :class:`DataError`.

    >>> windows = TokenWindows(np.arange(10), context=4)
    >>> len(windows), windows[1]["input_ids"]
    (2, tensor([4, 5, 6, 7]))
    """

    def __init__(self, tokens: str | Path | NDArray[Any], *, context: int, dtype: DTypeLike = np.uint16) -> None:
        where = "TokenWindows"
        if isinstance(tokens, str | Path):
            where, tokens = str(tokens), _mapped(at_home(tokens), dtype)
        if not isinstance(tokens, np.ndarray):
            raise DataError(
                f"is a {type(tokens).__name__}", where=where, fix="give a numpy array, or the path of a file"
            )
        if tokens.ndim != 1 or tokens.dtype.kind not in "iu":
            raise DataError(
                f"holds {tokens.dtype} {tokens.shape}", where=where, fix="give one row of whole numbers, the tokens"
            )
        if not isinstance(context, SupportsIndex) or context < 1:
            raise DataError(f"context is {context!r:.80}", where=where, fix="use a whole number of tokens, 1 or more")
        if len(tokens) < context:
            raise DataError(
                f"{len(tokens)} tokens make no window of {context}",
                where=where,
                fix="use more text or a shorter context",
            )
        self._tokens, self._context = tokens, context

    def __len__(self) -> int:
        return len(self._tokens) // self._context

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        if not 0 <= index < len(self):
            raise IndexError(index)
        start = index * self._context
        ids = torch.from_numpy(np.asarray(self._tokens[start : start + self._context], np.int64))
        return {"input_ids": ids, "labels": ids.clone()}


def _mapped(path: Path, dtype: DTypeLike) -> NDArray[Any]:
    try:
        if path.suffix == ".npy":
            found: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
            return found
        return np.memmap(path, dtype=dtype, mode="r")
    except (OSError, ValueError, TypeError) as wrong:
        raise DataError(f"cannot be read ({wrong})", where=str(path), fix="name a file of token numbers") from wrong
