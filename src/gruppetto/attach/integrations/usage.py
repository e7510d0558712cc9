"""What a batch uses, of whatever shape it is: tokens, by which a contribution is weighed, and examples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

__all__ = ["IGNORED", "examples_in", "tokens_in"]

IGNORED = -100
"""The label of what is not learned from."""


def tokens_in(batch: object) -> Tensor | int:
    """Tokens that are learned from: labels that count; without labels token numbers; of anything else its examples.

    Labels of a causal model are shifted by it, so the first of a row is never one. A tensor where it has to be counted
    on a device: reading it waits for that.

    >>> int(tokens_in({"input_ids": torch.zeros(2, 8, dtype=torch.long)}))
    16
    >>> labels = torch.tensor([[5, 5, 5, -100]])
    >>> int(tokens_in({"input_ids": torch.zeros(1, 4, dtype=torch.long), "labels": labels}))
    2
    >>> int(tokens_in((torch.zeros(4, 3, 8, 8), torch.zeros(4, dtype=torch.long))))
    4
    """
    if isinstance(batch, Mapping):
        labels, ids, mask = (batch.get(key) for key in ("labels", "input_ids", "attention_mask"))
        if isinstance(labels, Tensor) and labels.ndim >= 2 and isinstance(ids, Tensor) and labels.shape == ids.shape:
            return (labels[..., 1:] != IGNORED).sum()
        if isinstance(ids, Tensor):
            return mask.sum() if isinstance(mask, Tensor) and mask.shape == ids.shape else ids.numel()
    first = next(_tensors(batch), None)
    if first is not None and first.ndim >= 2 and not first.is_floating_point() and first.dtype != torch.uint8:
        return first.numel()
    return examples_in(batch)


def examples_in(batch: object) -> int:
    """The length of the first dimension of its first tensor; 1 if there is none.

    >>> examples_in([torch.zeros(4, 3), torch.zeros(4)])
    4
    """
    first = next(_tensors(batch), None)
    return 1 if first is None or first.ndim == 0 else len(first)


def _tensors(batch: object) -> Iterator[Tensor]:
    if isinstance(batch, Tensor):
        yield batch
    elif isinstance(batch, Mapping):
        for value in batch.values():
            yield from _tensors(value)
    elif isinstance(batch, Sequence) and not isinstance(batch, str | bytes):
        for value in batch:
            yield from _tensors(value)
