"""A loop that does not notice when its process stands still: for time limits in tests, on cores that others use too.

Time passes by waiting alone. Between two things that happen to both ends of a connection within one loop there is
none of it, however long the process was not let run; so that a limit which has to be short for the test's sake ends
what it is to end, and nothing else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from gruppetto.runtime.clock import MonotonicClock

__all__ = ["LoopClock", "SteadyLoop", "run"]

BUSY_S = 0.001
"""So much passes at most with a turn of the loop in which something happens: for ever is nobody busy."""

Told = TypeVar("Told")


class SteadyLoop(asyncio.SelectorEventLoop):
    """Its time is what it has waited in vain for something to happen, and little more."""

    def __init__(self) -> None:
        self._passed_s = 0.0
        super().__init__()
        real, select = MonotonicClock(), self._selector.select  # type: ignore[attr-defined]

        def steady(timeout: float | None = None) -> Any:
            began = real.now()
            found = select(timeout)
            waited_s = real.now() - began
            self._passed_s += timeout if timeout and not found else min(waited_s, timeout or BUSY_S, BUSY_S)
            return found

        self._selector.select = steady  # type: ignore[attr-defined]

    def time(self) -> float:
        return self._passed_s


class LoopClock:
    """The running loop's time, for who is given a clock."""

    def __init__(self) -> None:
        self.now = asyncio.get_running_loop().time


def run(story: Coroutine[Any, Any, Told], *, within_s: float = 120.0) -> Told:
    """What comes of it, in a loop of its own; a :class:`TimeoutError` if it never ends."""

    async def bounded() -> Told:
        return await asyncio.wait_for(story, within_s)

    with asyncio.Runner(loop_factory=SteadyLoop) as runner:
        return runner.run(bounded())
