"""Which method of a core hears which event."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

__all__ = ["Dispatching"]


class Dispatching:
    """A core says ``HEARD_BY``, a method's name for each type of event, and finds the methods in ``_heard_by``.

    By name, so that a subclass may do one thing differently; looked up once for every class, since a core hears
    millions of events a day.

    >>> class Core(Dispatching):
    ...     HEARD_BY = {int: "_on_int"}
    ...     def _on_int(self, now, event): return event
    >>> class Other(Core):
    ...     def _on_int(self, now, event): return -event
    >>> [core._heard_by[int](core, 0.0, 3) for core in (Core(), Other())]
    [3, -3]
    """

    HEARD_BY: ClassVar[Mapping[type, str]] = {}
    _heard_by: ClassVar[dict[type, Callable[[Any, float, Any], None]]] = {}

    def __init_subclass__(cls, **of_others: Any) -> None:
        super().__init_subclass__(**of_others)
        cls._heard_by = {kind: getattr(cls, name) for kind, name in cls.HEARD_BY.items()}
