"""Which learner is behind which connection."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from gruppetto.protocol.messages import Announcement, FromSyncer, Refusal, Welcome
from gruppetto.protocol.units import UNBORN, LearnerId
from gruppetto.runtime.complaints import Complaints
from gruppetto.runtime.connection import Connection
from gruppetto.runtime.wire import CloseCode, Frame, WelcomeFrame

__all__ = ["Switchboard"]


class Switchboard:
    """All control connections, by (learner, session): a name may have an old process and a new one for a moment.

    ``dress`` puts a Welcome into its frame; ``complaints`` hears of refusals.
    """

    def __init__(self, dress: Callable[[Welcome], WelcomeFrame], complaints: Complaints | None = None) -> None:
        self._dress = dress
        self._complaints = complaints if complaints is not None else Complaints(logging.getLogger("gruppetto.syncer"))
        self._connections: dict[tuple[LearnerId, str], Connection] = {}

    def __len__(self) -> int:
        return len(self._connections)

    def plug_in(self, connection: Connection) -> None:
        """Take a new connection. An older one of the same process is closed: it is dead and does not know it yet."""
        key = (connection.learner, connection.session)
        older = self._connections.get(key)
        if older is not None:
            older.close(CloseCode.REPLACED, "this learner has connected again")
        self._connections[key] = connection

    def unplug(self, connection: Connection) -> bool:
        """Forget a connection that has closed; False if another one had taken its place before."""
        if not self.is_current(connection):
            return False
        del self._connections[connection.learner, connection.session]
        return True

    def is_current(self, connection: Connection) -> bool:
        """It is the one that counts, and nothing has closed it."""
        current = self._connections.get((connection.learner, connection.session))
        return current is connection

    def send(self, to: LearnerId, session: str, message: FromSyncer) -> None:
        """Queue a message. One for a connection that has gone is dropped: whoever comes back gets a fresh Welcome."""
        connection = self._connections.get((to, session))
        if connection is None:
            return
        match message:
            case Welcome():
                connection.incarnation = message.incarnation
                if message.incarnation != UNBORN:  # a visitor takes nobody's name
                    self._close_others(connection)
                connection.put(self._dress(message))
            case Refusal():
                refuse(connection, message, self._complaints)
            case _:
                connection.put(message)

    def announce(self, to: Iterable[LearnerId], news: Announcement) -> None:
        """Queue an announcement for every welcomed connection of these learners."""
        wanted = set(to)
        for connection in self._connections.values():
            if connection.learner in wanted and connection.incarnation:
                connection.put(news)

    def close_all(self, code: int, text: str) -> None:
        for connection in self._connections.values():
            connection.close(code, text)

    def _close_others(self, welcomed: Connection) -> None:
        for connection in self._connections.values():
            if connection.learner == welcomed.learner and connection is not welcomed:
                connection.close(CloseCode.REPLACED, "a newer process has taken this learner's name")


def refuse(connection: Connection, refusal: Refusal, complaints: Complaints) -> None:
    """Say no, then close."""
    complaints.note(
        (connection.peer, connection.learner, refusal.reason.value),
        f"{connection.learner} ({connection.peer}) refused: {refusal.text}",
        logging.INFO,
    )
    frame: Frame = refusal
    connection.put(frame)
    connection.close(CloseCode.REFUSED, refusal.reason.value)
