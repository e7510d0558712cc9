"""Every exception that Gruppetto raises, in one tree.

::

    GruppettoError
    ├── UserError             you can fix it: the message says what, where and how     (exit 2)
    │   ├── SettingError      a setting is unknown, impossible or contradicts another
    │   ├── DataError         a corpus, tokenizer or file cannot be used as asked
    │   ├── LayoutError       a model does not match the layout of the run
    │   ├── StateError        a state directory or checkpoint cannot be used as asked
    │   └── AddressError      an address cannot be listened on, or is not a syncer
    ├── ProtocolError         the other side said something that it may not say
    │   └── Refused           the syncer refused us by name; ``reason`` tells why
    ├── ConnectionLost        the link is down; retried by itself unless asked otherwise
    ├── SteppedDown           another syncer has the authority over the run              (exit 3)
    └── RunFailed             a run stopped before its end                              (exit 1)
        └── Stopped           ... because a signal asked for it              (exit 128 + signal)

Our own mistakes are assertions, never one of these.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Mapping
from types import MappingProxyType
from typing import NoReturn

__all__ = [
    "MEANINGS",
    "AddressError",
    "ConnectionLost",
    "DataError",
    "GruppettoError",
    "LayoutError",
    "ProtocolError",
    "Refused",
    "RunFailed",
    "SettingError",
    "StateError",
    "SteppedDown",
    "Stopped",
    "UserError",
]


class GruppettoError(Exception):
    """The root of everything that Gruppetto raises on purpose."""

    exit_code = 1

    def exit(self) -> NoReturn:
        """End the script with one line on standard error and ``exit_code``.

        For whoever wants no traceback::

            try:
                main()
            except gruppetto.GruppettoError as error:
                error.exit()
        """
        print(f"{sys.argv[0]}: {self}", file=sys.stderr)
        sys.exit(self.exit_code)


MAX_WORDS = 400
"""Characters of each part of a message. What somebody has typed or a file holds may be of any length."""


def _cut(words: str) -> str:
    """Without the middle, if it is too long; what would end a line, or speak to a terminal, as an escape."""
    if len(words) > MAX_WORDS:
        words = f"{words[: MAX_WORDS - 120]} … {words[-100:]}"
    if words.isprintable():
        return words
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in words)


class UserError(GruppettoError, ValueError):
    """A mistake that the user can fix.

    One line: what is wrong, where, and the fix. A value that is longer than a message should be is cut in the middle.

    >>> print(UserError("num_learners is 0", where="run.toml: run.num_learners", fix="use 1 or more"))
    run.toml: run.num_learners: num_learners is 0; use 1 or more
    >>> print(UserError("does not exist", where="a\\nb"))
    a\\nb: does not exist
    """

    exit_code = 2

    def __init__(self, what: str, *, where: str = "", fix: str = "") -> None:
        self.what, self.where, self.fix = _cut(what), _cut(where), _cut(fix)
        super().__init__(f"{self.where + ': ' if where else ''}{self.what}{'; ' + self.fix if fix else ''}")


class SettingError(UserError):
    """A setting is unknown, impossible or contradicts another."""


class DataError(UserError):
    """A corpus, tokenizer or data file cannot be used as asked."""


class LayoutError(UserError):
    """A model does not match the layout that the run is made of."""


class StateError(UserError):
    """A state directory or a checkpoint cannot be used as asked."""


class AddressError(UserError):
    """An address cannot be listened on, cannot be reached, or is not a syncer."""


class ProtocolError(GruppettoError):
    """A peer said something that the protocol does not allow."""


class Refused(ProtocolError):
    """The syncer refused this learner.

    ``reason`` is one of the names in :class:`gruppetto.protocol.messages.RefusalReason`; the text says what to do.
    """

    exit_code = 2

    def __init__(self, reason: str, text: str) -> None:
        self.reason, self.text = reason, text
        super().__init__(f"refused by the syncer ({reason}): {text}")


class ConnectionLost(GruppettoError):
    """The link to the syncer is down."""


class SteppedDown(GruppettoError):
    """Another syncer has taken over the run that this one served. It is not to be started again."""

    exit_code = 3


class RunFailed(GruppettoError):
    """A run stopped before its end."""


class Stopped(RunFailed):
    """A signal asked for an end, and all is put away: the exit code is 130 after SIGINT and 143 after SIGTERM.

    >>> stopped = Stopped(signal.SIGTERM, where="runs/a", more=" at round 3")
    >>> print(stopped, stopped.exit_code)
    runs/a: stopped by SIGTERM at round 3 143
    """

    def __init__(self, number: int, *, where: str = "", more: str = "") -> None:
        super().__init__(f"{where + ': ' if where else ''}stopped by {signal.Signals(number).name}{more}")
        self.exit_code = 128 + number


MEANINGS: Mapping[type[GruppettoError], tuple[str, str]] = MappingProxyType(
    {
        UserError: (
            "Something that was typed, written into a file or passed to a function cannot be.",
            "The end of the message is the fix. Nothing was begun.",
        ),
        SettingError: (
            "A key that does not exist, a value that cannot be, or two settings that exclude each other.",
            "Change the setting that is named. docs/settings.md has every key; a similar one is proposed.",
        ),
        DataError: (
            "A corpus, tokenizer or file of tokens is missing, empty, too short, or made for another model.",
            "Look at the file that is named, and at what is expected of it.",
        ),
        LayoutError: (
            "Names, shapes or kinds of the trainable tensors are not those of the run; or a file is of another model.",
            "Build the model that the others train; the first tensor that differs is named.",
        ),
        StateError: (
            "A state directory or checkpoint is another run's, another version's, in use, damaged, or not there.",
            "Use the directory of this run, or an empty one. What is damaged is named; an older checkpoint may do.",
        ),
        AddressError: (
            "A port is taken, a host is not this machine's, a token or certificate is wrong, or something else "
            "answers there.",
            "gruppetto doctor --syncer URL says which of these it is.",
        ),
        ProtocolError: (
            "The other side is of another version, or not Gruppetto at all; or bytes were damaged on the way.",
            "Install the same version on both sides. It never changes the state of who hears it.",
        ),
        Refused: (
            "The syncer knows this learner's request and does not take it: the reasons are below.",
            "As the reason says. A refused learner is not to be started again unchanged.",
        ),
        ConnectionLost: (
            'The syncer is gone or out of reach, and on_disconnect = "raise" or connect_timeout_s ended the wait.',
            "Start the syncer again, or give the learner the standby's address too; by default training goes on.",
        ),
        SteppedDown: (
            "This syncer hung or was cut off for longer than its lease, and a standby serves the run now.",
            "Nothing, or start it again as the next standby. It must not be restarted as a syncer by itself.",
        ),
        RunFailed: (
            "A process of the run died too often, a disk took no commit, or what must hold did not.",
            "The message names who and why; logs lie in the run directory. gruppetto resume goes on from a checkpoint.",
        ),
        Stopped: (
            "Ctrl-C, or SIGTERM from whatever watches the process.",
            "Nothing: all is put away. The same command, or gruppetto resume, goes on.",
        ),
    }
)
"""(what is usually behind it, what to do) of every error. docs/errors.md is written from it."""
