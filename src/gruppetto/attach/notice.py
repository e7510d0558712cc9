"""How a learner is told that it has to leave: by a call, by a hook that the loop polls, or by SIGTERM."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from gruppetto.attach.setting import MAX_SECONDS
from gruppetto.errors import SettingError

__all__ = ["Notice", "NoticeHook"]

log = logging.getLogger("gruppetto.learner")

NoticeHook = Callable[[], object] | threading.Event
"""Says whether notice has been given: an event that is set, or a function whose answer is true."""


class Notice:
    """Whether this learner has had notice. ``within_s`` is how long leaving may take, unless :meth:`give` says more.

    Raises :class:`SettingError` for a hook that is none, or a time that is none.
    """

    def __init__(self, hook: NoticeHook | None, *, within_s: float, on_sigterm: bool) -> None:
        if hook is not None and not (callable(hook) or isinstance(hook, threading.Event)):
            raise SettingError(
                f"notice is {hook!r:.80}",
                where="Learner.notice",
                fix="pass a threading.Event, or a function that is true when it is time to leave",
            )
        self.within_s = within_s
        _check(within_s, "Learner.leave_within_s")
        self._poll = hook.is_set if isinstance(hook, threading.Event) else hook
        self._on_sigterm = on_sigterm
        self._before: Any = None
        self._handling = self._stopped = False
        self._said_trouble = False
        self.given = False

    def give(self, within_s: float | None = None) -> None:
        """From any thread, and from a signal handler: no lock is taken, nothing is waited for."""
        if within_s is not None:
            _check(within_s, "Learner.leave")
            self.within_s = within_s
        self.given = True

    def look(self) -> bool:
        """Ask the hook too. One that raises has given no notice: what it asks may be away for a while."""
        if not self.given and self._poll is not None:
            try:
                self.given = bool(self._poll())
            except Exception as wrong:
                if not self._said_trouble:
                    self._said_trouble = True
                    log.warning("the notice hook raised %r; taken for no notice, and not said again", wrong)
        return self.given

    def listen(self) -> None:
        """Take SIGTERM for notice, once: a second one does what it did before. Raises :class:`SettingError`."""
        if not self._on_sigterm:
            return
        if threading.current_thread() is not threading.main_thread():
            raise SettingError(
                "only the main thread can handle a signal",
                where="Learner.leave_on_sigterm",
                fix="enter the learner there, or call leave() in a handler of your own",
            )
        self._before = signal.signal(signal.SIGTERM, self._heard)
        self._handling, self._stopped = True, False

    def stop_listening(self) -> None:
        """SIGTERM does again what it did before. Harmless when called again, and from any thread.

        Only the main thread can put the old handler back. Called from another one, this one's stays until the next
        signal, or the next call from there, and hands the signal on.
        """
        self._stopped = True
        if self._handling and threading.current_thread() is threading.main_thread():
            self._handling = False
            # None: the handler was not Python's, and cannot be put back.
            signal.signal(signal.SIGTERM, signal.SIG_DFL if self._before is None else self._before)

    def _heard(self, number: int, frame: FrameType | None) -> None:
        for_somebody_else = self._stopped
        self.stop_listening()
        if for_somebody_else:
            os.kill(os.getpid(), number)
        else:
            self.give()


def _check(within_s: object, where: str) -> None:
    if isinstance(within_s, bool) or not isinstance(within_s, int | float) or not 0 <= within_s <= MAX_SECONDS:
        raise SettingError(
            f"{within_s!r:.80} is no time to leave in",
            where=where,
            fix=f"use a number of seconds, 0 to {MAX_SECONDS:g}",
        )
