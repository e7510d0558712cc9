"""What a syncer's process looks at once a second: who counts no more, who stands at the door, what expires."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from gruppetto.errors import StateError
from gruppetto.runtime.clock import wall_time_s
from gruppetto.runtime.security.expiry import WARN_DAYS, days_left
from gruppetto.runtime.security.porter import LOOK_EVERY_S, Porter
from gruppetto.runtime.security.strangers import Strangers

__all__ = ["Watch"]

_log = logging.getLogger("gruppetto.security")

EXPIRY_EVERY_S = 60.0


class Watch:
    """``files``: certificates by what they are for. ``warn`` is told in words what expires soon; "" when nothing does
    any more."""

    def __init__(
        self,
        *,
        porter: Porter | None,
        strangers: Strangers,
        files: Mapping[str, Path],
        warn: Callable[[str], None],
        wall: Callable[[], float] = wall_time_s,
    ) -> None:
        self._porter, self._strangers, self._files = porter, strangers, files
        self._warn, self._wall, self._warned = warn, wall, ""
        self._lasting: dict[str, float] = {}

    async def run(self) -> None:
        """Until it is cancelled."""
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            self.look()
            if loop.time() >= due:
                self.look_at_expiry()
                due = loop.time() + EXPIRY_EVERY_S
            await asyncio.sleep(LOOK_EVERY_S)

    def look(self) -> None:
        """Show out who may not stay."""
        self._strangers.sweep()
        if self._porter is not None:
            for identity in self._porter.look():
                _log.warning("%s counts no more; what it had under way is broken off", identity)

    def look_at_expiry(self) -> None:
        """Find out what expires soon, and say so."""
        lasting = dict(self._porter.expiries()) if self._porter is not None else {}
        for what, path in self._files.items():
            try:
                lasting[what] = days_left(path, now=self._wall())
            except StateError as wrong:
                _log.debug("%s", wrong)  # being replaced; what is served with is in memory
        self._lasting = lasting
        soon = {what: days for what, days in lasting.items() if days < WARN_DAYS}
        text = "; ".join(
            f"the certificate of {what} {f'expires in {days:.1f} days' if days > 0 else 'has expired'}"
            for what, days in sorted(soon.items(), key=lambda each: each[1])
        )
        about = ", ".join(sorted(soon))
        if about != self._warned:
            self._warned = about
            self._warn(text)

    def account(self) -> dict[str, Any]:
        """What a status says of it."""
        return {
            "identities": self._porter is not None,
            "days_left": {what: round(days, 2) for what, days in self._lasting.items()},
        }
