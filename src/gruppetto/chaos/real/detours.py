"""How the processes of a run under chaos are called. The launcher asks, at every start."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gruppetto.chaos.real.levers import Places

__all__ = ["Detours"]

RIDER = "gruppetto.chaos.real.rider"


class Detours:
    """As riders, and learners by way of their proxies."""

    def __init__(self, places: Places, ports: Mapping[str, int]) -> None:
        self._places, self._ports = places, ports

    def command(self, name: str, verb: Sequence[str]) -> list[str]:
        return ["-m", RIDER, str(self._places.root), name, *verb]

    def syncer_for(self, learner: str, syncer: str) -> str:
        # The proxy knows who is in charge at every moment.
        return f"http://127.0.0.1:{self._ports[learner]}"
