"""How loops are compiled: serially, with the interpreter lock given back, and kept on disk for the next process.

The compiled loops of the package live in four files: :mod:`~gruppetto.numerics.reading`,
:mod:`~gruppetto.numerics.squares` and :mod:`~gruppetto.numerics.writing` hold what differs between kinds of words,
:mod:`~gruppetto.numerics.kernels` the passes over a fragment into which that is built. numba's own cache on disk goes
by the file of a pass alone and would not notice a change in another one: here the key says of which state all are.

* Elementwise arithmetic is plain float32, never fused or reordered, so it gives the bits that numpy gives.
  Only sums of squares may be reordered.
* Inputs that are only read arrive as read-only views (:func:`read_only`), because numba compiles anew for
  every kind of array it meets.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
from numba import njit
from numba.core.caching import FunctionCache
from numpy.typing import NDArray

__all__ = ["BODIES", "Float32", "kernel", "read_only", "reduction"]

Float32 = NDArray[np.float32]

_Function = TypeVar("_Function", bound=Callable[..., Any])
_Array = TypeVar("_Array", bound=NDArray[Any])

BODIES: dict[str, Any] = {"nogil": True, "error_model": "numpy"}
"""Options of a function that has one body for each kind of words."""

SOURCES = ("compiling", "kernels", "reading", "squares", "words", "writing")


def _stamp() -> tuple[tuple[int, int], ...]:
    """Of the files whose code ends up in a kernel: time and size, which is what numba looks at in its own."""
    try:
        found = [Path(__file__).with_name(f"{name}.py").stat() for name in SOURCES]
    except OSError:  # not installed as files
        return ()
    return tuple((of.st_mtime_ns, of.st_size) for of in found)


class _StampedCache(FunctionCache):  # type: ignore[misc]
    stamp = _stamp()

    def _index_key(self, sig: Any, codegen: Any) -> Any:
        return (*super()._index_key(sig, codegen), self.stamp)


def kernel(function: _Function) -> _Function:
    """Compile as it is written."""
    return _compiled(function, False)


def reduction(function: _Function) -> _Function:
    """Compile; sums may be taken in any order."""
    # NaN and infinity must survive, and a product may not be fused into a sum: only the order is free.
    return _compiled(function, {"reassoc", "nsz"})


def _compiled(function: _Function, fastmath: bool | set[str]) -> _Function:
    compiled = njit(**BODIES, fastmath=fastmath)(function)
    with suppress(RuntimeError):  # no writable place for it: compile once a process instead
        compiled._cache = _StampedCache(function)
    return cast(_Function, compiled)


def read_only(values: _Array) -> _Array:
    """A view of ``values`` that cannot be written: the one kind of input array the kernels are compiled for."""
    view = values.view()
    view.flags.writeable = False
    return view
