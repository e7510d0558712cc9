"""The way between one learner and the syncer: messages keep their order, take their time, are lost when it breaks."""

from __future__ import annotations

from collections.abc import Callable

from gruppetto.sim.engine import Engine

__all__ = ["Road"]


class Road:
    """Both ways of one connection. What was sent before it broke never arrives.

    >>> engine, heard = Engine(), []
    >>> road = Road(engine, latency_s=1.0)
    >>> road.up(lambda: heard.append("lost")); road.breaks(); road.up(lambda: heard.append("first"))
    >>> road.delays_s.append(5.0); road.up(lambda: heard.append("second"))
    >>> road.delays_s.clear(); road.up(lambda: heard.append("third"))
    >>> _ = engine.run(until=10.0); heard
    ['first', 'second', 'third']
    """

    def __init__(self, engine: Engine, *, latency_s: float) -> None:
        self._engine, self._usual_s = engine, latency_s
        self.life = 0
        """Rises when it breaks."""
        self.cuts = 0
        """How many mishaps keep it closed now."""
        self.delays_s: list[float] = []
        """What comes on top of the latency now."""
        self._last_up_s = self._last_down_s = 0.0

    @property
    def latency_s(self) -> float:
        return self._usual_s + sum(self.delays_s)

    def breaks(self) -> None:
        self.life += 1

    def up(self, arrive: Callable[[], None]) -> None:
        """To the syncer."""
        self._last_up_s = self._travel(arrive, self._last_up_s)

    def down(self, arrive: Callable[[], None]) -> None:
        """To the learner."""
        self._last_down_s = self._travel(arrive, self._last_down_s)

    def _travel(self, arrive: Callable[[], None], last_s: float) -> float:
        """When it is there: not before what was sent before it."""
        life, there_s = self.life, max(last_s, self._engine.now + self.latency_s)
        self._engine.at(there_s, lambda: arrive() if life == self.life else None)
        return there_s
