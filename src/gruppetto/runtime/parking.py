"""Uploads that broke off, kept so that they may go on where they stopped.

They hold on to their buffers, of which there are few: whoever needs one takes it from the oldest. What nobody wants any
more goes at once, and what nobody has asked for in ``keep_s`` with the next look. In the end the checksum of the whole
decides, as ever; the checksum of what is there is told to the sender, who begins anew if it is not his.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from dataclasses import dataclass

from gruppetto.runtime.intake import Upload

__all__ = ["Parking"]

MAX_PARKED = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parked:
    upload: Upload
    wanted: Callable[[], bool]
    timer: asyncio.TimerHandle


class Parking:
    """By whatever names an upload: who sends it, for what, its length, and its checksum if that is known."""

    def __init__(self, keep_s: float) -> None:
        self._keep_s = keep_s
        self._parked: dict[Hashable, _Parked] = {}

    def __len__(self) -> int:
        return len(self._parked)

    def __contains__(self, name: Hashable) -> bool:
        return name in self._parked

    def park(self, name: Hashable, upload: Upload, wanted: Callable[[], bool]) -> None:
        """Keep it, as long as it is ``wanted``."""
        self._drop(name)
        if not upload.arrived:
            return
        while len(self._parked) >= MAX_PARKED:
            self.give_up_oldest()
        upload.keep()
        timer = asyncio.get_running_loop().call_later(self._keep_s, self._drop, name)
        self._parked[name] = _Parked(upload=upload, wanted=wanted, timer=timer)

    def fetch(self, name: Hashable) -> Upload | None:
        """The one that was parked under that name, to be gone on with as with a new one."""
        parked = self._parked.pop(name, None)
        if parked is None:
            return None
        parked.timer.cancel()
        return parked.upload

    def give_up_oldest(self) -> bool:
        """Somebody needs its buffer; False if there is none."""
        for name in self._parked:
            self._drop(name)
            return True
        return False

    def review(self) -> None:
        """Give up those that nobody wants any more."""
        for name in [name for name, parked in self._parked.items() if not parked.wanted()]:
            self._drop(name)

    def close(self) -> None:
        for name in list(self._parked):
            self._drop(name)

    def _drop(self, name: Hashable) -> None:
        upload = self.fetch(name)
        if upload is not None:
            upload.give_up()
