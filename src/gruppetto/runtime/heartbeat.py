"""A learner's heartbeats: on their own thread and connection, so a saturated data path never looks like death."""

from __future__ import annotations

import http.client
import ssl
import threading
from collections.abc import Callable

from gruppetto.protocol.messages import Heartbeat
from gruppetto.runtime.address import SyncerAddress
from gruppetto.runtime.wire import encode_frame

__all__ = ["Heartbeats"]


class Heartbeats:
    """Says "I live" every ``period_s`` as long as ``current`` gives something to say.

    Trouble is passed over in silence: the control connection is what reports it, and the next beat dials anew.
    """

    def __init__(
        self,
        address: SyncerAddress,
        current: Callable[[], Heartbeat | None],
        *,
        period_s: float,
        token: str | None,
        tls: ssl.SSLContext | None,
    ) -> None:
        self._address, self._current, self._period_s, self._tls = address, current, period_s, tls
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
                self._beat(heartbeat)
            self._stop.wait(self._period_s)
        self._hang_up()

    def _beat(self, heartbeat: Heartbeat) -> None:
        try:
            if self._connection is None:
                self._connection = self._dial()
            self._connection.request("POST", "/v1/heartbeat", body=encode_frame(heartbeat), headers=self._headers)
            self._connection.getresponse().read()
        except (OSError, http.client.HTTPException):
            self._hang_up()

    def _dial(self) -> http.client.HTTPConnection:
        host, port = self._address.host, self._address.port
        if self._address.secure:
            return http.client.HTTPSConnection(host, port, timeout=self._period_s, context=self._tls)
        return http.client.HTTPConnection(host, port, timeout=self._period_s)

    def _hang_up(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
