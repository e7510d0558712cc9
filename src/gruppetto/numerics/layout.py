"""The layout of a model: which tensors it has, in which order, shape and dtype.

Learners and syncer compare layouts by hash before a single value travels, so that a mismatch is one refused
message and never a scrambled model.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from gruppetto.errors import LayoutError

__all__ = ["Layout", "TensorSpec", "first_difference"]

DTYPES = frozenset({"float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"})
"""What can be averaged. Integer buffers are not trained and do not belong in a layout."""

MAX_TENSORS = 1_000_000
MAX_NAME_LENGTH = 1024
MAX_DIMENSIONS = 16
MAX_NUMEL = 2**44  # 16 T elements: far beyond any model, far below the end of int64


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """One tensor: its name, shape and dtype.

    >>> TensorSpec(name="h.0.weight", shape=(4, 8), dtype="bfloat16").numel
    32
    """

    name: str
    shape: tuple[int, ...]
    dtype: str

    def __post_init__(self) -> None:
        name = self.name if isinstance(self.name, str) else repr(self.name)
        where = f"tensor {name[:80]!r}"
        if not isinstance(self.name, str) or not 0 < len(self.name) <= MAX_NAME_LENGTH:
            raise LayoutError(f"a name of {len(name)} characters", where=where, fix=f"use 1 to {MAX_NAME_LENGTH}")
        if self.dtype not in DTYPES:
            raise LayoutError(
                f"dtype {self.dtype!r} cannot be averaged", where=where, fix=f"use one of {', '.join(sorted(DTYPES))}"
            )
        if len(self.shape) > MAX_DIMENSIONS:
            raise LayoutError(f"{len(self.shape)} dimensions", where=where, fix=f"use {MAX_DIMENSIONS} or fewer")
        if any(type(size) is not int or size < 0 for size in self.shape):
            raise LayoutError(f"shape {self.shape}", where=where, fix="every size is a whole number, 0 or more")
        if self.numel > MAX_NUMEL:
            raise LayoutError(f"shape {self.shape} is absurdly large", where=where, fix="check the shape")

    @property
    def numel(self) -> int:
        """The number of elements; 1 for a scalar."""
        return math.prod(self.shape)

    def __str__(self) -> str:
        return f"{self.name!r} {self.dtype} {self.shape}"


@dataclass(frozen=True, kw_only=True)
class Layout:
    """All tensors of a model, in the order in which the model names them.

    >>> tiny = Layout(tensors=(TensorSpec(name="w", shape=(2, 3), dtype="float32"),))
    >>> tiny.numel, Layout.from_dict(tiny.to_dict()) == tiny
    (6, True)
    """

    tensors: tuple[TensorSpec, ...]

    def __post_init__(self) -> None:
        if not 0 < len(self.tensors) <= MAX_TENSORS:
            raise LayoutError(f"{len(self.tensors)} tensors", where="layout", fix=f"use 1 to {MAX_TENSORS}")
        seen: set[str] = set()
        for tensor in self.tensors:
            if tensor.name in seen:
                raise LayoutError(
                    f"{tensor.name!r} is named twice", where="layout", fix="name a shared (tied) tensor once"
                )
            seen.add(tensor.name)
        if self.numel > MAX_NUMEL:
            raise LayoutError(f"{self.numel} elements is absurdly large", where="layout", fix="check the shapes")

    @cached_property
    def numel(self) -> int:
        """The number of elements of the whole model."""
        return sum(tensor.numel for tensor in self.tensors)

    @cached_property
    def layout_hash(self) -> str:
        """32 hexadecimal digits (128 bits of SHA-256) over names, shapes, dtypes and their order."""
        canonical = json.dumps(self.to_dict(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()[:32]

    def to_dict(self) -> dict[str, Any]:
        """Plain values that any JSON or msgpack writer takes."""
        return {"tensors": [{"name": t.name, "shape": list(t.shape), "dtype": t.dtype} for t in self.tensors]}

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Layout:
        """The layout that :meth:`to_dict` wrote. Raises :class:`LayoutError` for anything else."""
        try:
            rows = plain["tensors"]
            if len(rows) > MAX_TENSORS:  # before a hostile list is turned into objects
                raise LayoutError(f"{len(rows)} tensors", where="layout", fix=f"use 1 to {MAX_TENSORS}")
            return cls(
                tensors=tuple(
                    TensorSpec(name=row["name"], shape=tuple(row["shape"]), dtype=row["dtype"]) for row in rows
                )
            )
        except (KeyError, TypeError) as broken:
            raise LayoutError(
                f"not a layout ({type(broken).__name__}: {broken})",
                where="layout",
                fix="send {'tensors': [{'name', 'shape', 'dtype'}, ...]}",
            ) from broken


def first_difference(here: Layout, there: Layout) -> str:
    """The first difference between two layouts in one sentence, or "" if they are equal.

    >>> def one(size): return Layout(tensors=(TensorSpec(name="w", shape=(size,), dtype="float32"),))
    >>> first_difference(one(2), one(3))
    "tensor 0 is 'w' float32 (2,) here and 'w' float32 (3,) there"
    """
    for index, (mine, theirs) in enumerate(zip(here.tensors, there.tensors, strict=False)):
        if mine != theirs:
            return f"tensor {index} is {mine} here and {theirs} there"
    if len(here.tensors) == len(there.tensors):
        return ""
    more, fewer, side = (here, there, "here") if len(here.tensors) > len(there.tensors) else (there, here, "there")
    extra = more.tensors[len(fewer.tensors)]
    return f"{len(here.tensors)} tensors here, {len(there.tensors)} there: {extra} is only {side}"
