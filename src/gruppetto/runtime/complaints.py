"""Telling the log about what peers do wrong, without letting them fill it."""

from __future__ import annotations

import logging

__all__ = ["Complaints"]

MAX_KINDS = 256
"""Complaints that are told apart. What comes beyond them is counted together."""


class Complaints:
    """Logs a complaint the first time, and again when there have been 10 of its kind, 100, 1000, …

    >>> logger = logging.Logger("demo")
    >>> logger.addHandler(handler := logging.StreamHandler(__import__("sys").stdout))
    >>> complaints = Complaints(logger)
    >>> for _ in range(25):
    ...     complaints.note(("10.0.0.7", "token"), "10.0.0.7: a wrong token")
    10.0.0.7: a wrong token (once; more of its kind are counted)
    10.0.0.7: a wrong token (10 times by now)
    """

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._counts: dict[tuple[str, ...], int] = {}

    def note(self, kind: tuple[str, ...], text: str, level: int = logging.WARNING) -> None:
        """Count one complaint of this ``kind``: who it is about, and what."""
        if kind not in self._counts and len(self._counts) >= MAX_KINDS:
            kind = ()
        times = self._counts[kind] = self._counts.get(kind, 0) + 1
        if times == 1:
            self._log.log(level, "%s (once; more of its kind are counted)", text)
        elif _is_power_of_ten(times):
            self._log.log(level, "%s (%d times by now)", text, times)


def _is_power_of_ten(number: int) -> bool:
    return str(number).rstrip("0") == "1"
