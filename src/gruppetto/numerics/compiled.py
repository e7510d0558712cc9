"""How loops are compiled: serial, without the interpreter lock, cached on disk.

Elementwise arithmetic is plain float32, never fused or reordered, so it gives the bits that numpy gives. Only sums may
be reordered, and only where a function says so (:func:`reduction`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from numba import njit

__all__ = ["OVERLOADED", "kernel", "reduction"]

_Function = TypeVar("_Function", bound=Callable[..., Any])

OVERLOADED: dict[str, Any] = {"nogil": True, "error_model": "numpy"}
"""Options of a function that has one body for each kind of words."""


def kernel(function: _Function) -> _Function:
    """Compile as it is written."""
    return _compiled(function, False)


def reduction(function: _Function) -> _Function:
    """Compile; sums may be taken in any order."""
    # NaN and infinity must survive, and a product may not be fused into a sum: only the order is free.
    return _compiled(function, {"reassoc", "nsz"})


def _compiled(function: _Function, fastmath: bool | set[str]) -> _Function:
    options = {**OVERLOADED, "fastmath": fastmath}
    try:
        return cast(_Function, njit(cache=True, **options)(function))
    except RuntimeError:  # no writable place for the cache: compile once a process instead
        return cast(_Function, njit(**options)(function))
