"""A learner's heartbeats: on their own thread and connection, so a saturated data path never looks like death."""

from __future__ import annotations

import http.client
import socket
import ssl
import threading
from collections.abc import Callable

from gruppetto.protocol.messages import Heartbeat
from gruppetto.runtime.address import SyncerAddress
from gruppetto.runtime.clock import wall_time_s
from gruppetto.runtime.dialling import Segments, connected_within
from gruppetto.runtime.headers import WALL_HEADER
from gruppetto.runtime.wire import encode_frame

__all__ = ["Heartbeats"]

SILENCE = 3
"""Beats in a row without an answer."""


class Heartbeats:
    """Says "I live" every ``period_s`` as long as ``current`` gives something to say, to whom ``address`` names then.

    Trouble is passed over in silence: the control connection is what reports it, and the next beat dials anew. But a
    syncer that hangs keeps its connections: ``on_silence`` is called when a few beats in a row got no answer.
    """

    def __init__(
        self,
        address: Callable[[], SyncerAddress],
        current: Callable[[], Heartbeat | None],
        *,
        period_s: float,
        token: str | None,
        tls: ssl.SSLContext | None,
        segments: Segments | None = None,
        on_silence: Callable[[], None] = lambda: None,
    ) -> None:
        self._address, self._current, self._period_s, self._tls = address, current, period_s, tls
        self._on_silence = on_silence
        self._segments = Segments() if segments is None else segments
        self._unanswered = 0
        self._dialled: SyncerAddress | None = None
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._connection: http.client.HTTPConnection | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gruppetto-heartbeat", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """No more beats; returns when the thread has ended, within one period at most."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            heartbeat = self._current()
            if heartbeat is not None:
                self.beat(heartbeat)
            self._stop.wait(self._period_s)
        self._hang_up()

    def beat(self, heartbeat: Heartbeat) -> bool:
        """Say it now; whether there was an answer within a period."""
        address = self._address()
        if address != self._dialled:
            self._hang_up()
            self._dialled, self._unanswered = address, 0
        try:
            if self._connection is None:
                self._connection = self._dial(address)
            told = {**self._headers, WALL_HEADER: f"{wall_time_s():.3f}"}
            self._connection.request("POST", "/v1/heartbeat", body=encode_frame(heartbeat), headers=told)
            self._connection.getresponse().read()
            self._unanswered = 0
            return True
        except (OSError, http.client.HTTPException):
            self._hang_up()
            self._unanswered += 1
            if self._unanswered >= SILENCE:
                self._unanswered = 0
                self._on_silence()
            return False

    def _dial(self, address: SyncerAddress) -> http.client.HTTPConnection:
        host, port, period_s = address.host, address.port, self._period_s
        made = connected_within(host, port, self._segments, period_s)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if not address.secure:
            connection = http.client.HTTPConnection(host, port, timeout=period_s)
        else:
            tls = ssl.create_default_context() if self._tls is None else self._tls
            connection = http.client.HTTPSConnection(host, port, timeout=period_s, context=tls)
            try:
                made = tls.wrap_socket(made, server_hostname=host)
            except BaseException:
                made.close()
                raise
        connection.sock = made
        return connection

    def _hang_up(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
