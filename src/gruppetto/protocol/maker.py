"""Frozen values, made quickly where they are made at every step of every learner.

What ``dataclass`` writes to fill a frozen object has to get round the guard that keeps its fields from being set, one
by one, and that takes longer than deciding what they are. A maker fills an object of a twin class, which has the same
slots and no guard, and makes it what it is when it is complete. What comes out is no different.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, Field, fields
from typing import Any, ParamSpec, TypeVar

__all__ = ["maker"]

P = ParamSpec("P")
T = TypeVar("T")


def maker(cls: Callable[P, T]) -> Callable[P, T]:
    """A function that makes a ``cls``, a frozen dataclass with slots that takes keywords only, quickly.

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True, slots=True, kw_only=True)
    ... class Point:
    ...     x: int
    ...     y: int = 0
    >>> new_point = maker(Point)
    >>> new_point(x=1), new_point(y=2, x=1) == Point(x=1, y=2)
    (Point(x=1, y=0), True)
    """
    parts: tuple[Field[Any], ...] = fields(cls)  # type: ignore[arg-type]
    assert all(part.kw_only and part.default_factory is MISSING for part in parts), cls
    assert not hasattr(cls, "__post_init__"), cls
    names = [part.name for part in parts]
    known = {f"usual_{part.name}": part.default for part in parts if part.default is not MISSING}
    asked = [f"{name}=usual_{name}" if f"usual_{name}" in known else name for name in names]
    lines = [
        f"def make(*, {', '.join(asked)}):",
        "value = Twin()",
        *(f"value.{name} = {name}" for name in names),
        "value.__class__ = cls",
        "return value",
    ]
    written: dict[str, Callable[P, T]] = {}
    exec("\n    ".join(lines), {"Twin": type("Twin", (), {"__slots__": names}), "cls": cls, **known}, written)
    return written["make"]
