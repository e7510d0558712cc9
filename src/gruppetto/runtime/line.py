"""What a learner's client asks of whatever leads to its syncer: HTTP (http_client), or a mailbox (mailbox.client)."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Protocol, Self

import numpy as np
from numpy.typing import NDArray

from gruppetto.numerics.runs import Runs
from gruppetto.protocol.messages import Answer, Heartbeat
from gruppetto.protocol.units import Fragment, Incarnation, LearnerId, Version
from gruppetto.runtime.address import SyncerAddress
from gruppetto.runtime.heartbeat import Heartbeats
from gruppetto.runtime.http_client import HttpSyncer
from gruppetto.runtime.landing import Landing
from gruppetto.runtime.leases import Lease
from gruppetto.runtime.mailbox.address import MailboxAddress
from gruppetto.runtime.pacing import Bucket
from gruppetto.runtime.shard_map import ShardMap
from gruppetto.runtime.steps import Held
from gruppetto.runtime.wire import Frame

__all__ = ["Control", "Heart", "Line", "heart_of", "line_to"]


class Control(Protocol):
    """An open control connection, as :class:`~gruppetto.runtime.control_socket.ControlSocket`."""

    async def send(self, frame: Frame) -> None: ...

    async def receive(self, allowed: frozenset[str]) -> Frame: ...

    def stalled(self) -> None:
        """No answer comes to what was sent: whatever the next connections can be spared, they are."""

    async def close(self) -> None: ...


class Heart(Protocol):
    """Says "I live" from :meth:`start` to :meth:`stop`."""

    def start(self) -> None: ...

    def stop(self) -> None: ...


class Line(Protocol):
    """An asynchronous context manager; its calls are those of :class:`~gruppetto.runtime.http_client.HttpSyncer`."""

    address: SyncerAddress
    pace: Bucket | None
    bytes_up: int
    bytes_down: int

    @property
    def stall_s(self) -> float: ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    async def forget(self) -> None:
        """Drop all connections that wait for use: what has ended the control connection may have taken them along."""

    def room(self, numel: int) -> NDArray[np.float32]:
        """Fresh memory for bodies that are to go up."""

    def control(self) -> AbstractAsyncContextManager[Control]: ...

    async def directory(self, address: SyncerAddress | None = None) -> ShardMap | None: ...

    async def fetch_from(
        self,
        held: Held | None,
        fragment: Fragment,
        version: Version,
        layout_hash: str,
        into: Lease,
        *,
        runs: Runs | None = None,
        landing: Landing | None = None,
    ) -> tuple[Version, str]: ...

    async def contribute(
        self, answer: Answer, codec: str, body: memoryview, *, runs: Runs | None = None, again: bool = False
    ) -> tuple[bool, int]: ...

    async def seed(
        self,
        learner: LearnerId,
        incarnation: Incarnation,
        fragment: Fragment,
        body: memoryview,
        *,
        runs: Runs | None = None,
        again: bool = False,
    ) -> None: ...


def line_to(
    address: SyncerAddress, *, token: str | None, tls: ssl.SSLContext | None, stall_s: float, dial_s: float | None
) -> Line:
    """Raises :class:`SettingError` where what it takes is not installed."""
    if not isinstance(address, MailboxAddress):
        return HttpSyncer(address, token=token, tls=tls, stall_s=stall_s, dial_s=dial_s)
    from gruppetto.runtime.mailbox.client import MailSyncer  # learners that dial need nothing of it

    return MailSyncer(address, stall_s=stall_s)


def heart_of(
    line: Line,
    current: Callable[[], Heartbeat | None],
    *,
    period_s: float,
    token: str | None,
    tls: ssl.SSLContext | None,
    on_silence: Callable[[], None] = lambda: None,
) -> Heart:
    """Heartbeats over HTTP have a thread and a connection of their own; those through a mailbox go with the letters."""
    if isinstance(line, HttpSyncer):
        return Heartbeats(
            lambda: line.address,
            current,
            period_s=period_s,
            token=token,
            tls=tls,
            segments=line.segments,
            on_silence=on_silence,
        )
    from gruppetto.runtime.mailbox.client import MailSyncer

    assert isinstance(line, MailSyncer)
    return line.heart(current, period_s)
