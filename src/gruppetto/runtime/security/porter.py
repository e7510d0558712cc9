"""The porter of a syncer: says who asks, whether he may, and whether not too often; and shows out who may not stay.

Every request is looked at, also on a connection on which others went before it: whoever is revoked is refused from the
next request on, and what he has under way is broken off by :meth:`Porter.look`.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiohttp import web

from gruppetto.runtime.clock import Clock, MonotonicClock, wall_time_s
from gruppetto.runtime.security.allowance import REQUESTS, Allowance
from gruppetto.runtime.security.identity import MAY, Deed, Identity, identity_in, serial_in
from gruppetto.runtime.security.roster import Roster

__all__ = ["LOOK_EVERY_S", "Porter", "Refusal", "Shown"]

LOOK_EVERY_S = 1.0
"""Between two looks at the files of who counts."""
MAX_ALLOWANCES = 8192
"""Kept of identities and kinds of requests; of those that have been away longest a full one is as good."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """An identity, and what was shown for it."""

    identity: Identity
    serial: str = ""
    """Of its certificate; empty: a token was shown."""
    token: str = ""
    expires_at: float | None = None

    def __repr__(self) -> str:  # never the token
        return f"Shown({self.identity}, by {'certificate' if self.serial else 'token'})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why somebody may not ask for something, now or ever. ``status``: as in HTTP. ``kind``: to complain of it once."""

    status: int
    kind: str
    text: str
    wait_s: float = 0.0


class Porter:
    """Knows the identities of ``directory`` (see :mod:`~gruppetto.runtime.security.places`). Raises
    :class:`StateError` for lists that cannot be read."""

    def __init__(self, directory: Path, *, clock: Clock | None = None, wall: Callable[[], float] = wall_time_s) -> None:
        self._roster = Roster(directory)
        self._clock, self._wall = MonotonicClock() if clock is None else clock, wall
        self._allowances: OrderedDict[tuple[Identity, str], Allowance] = OrderedDict()
        self._inside: dict[object, tuple[Shown, asyncio.BaseTransport | None]] = {}

    def who(self, request: web.Request) -> Shown | None:
        """Whose request it is; None: nobody's who counts.

        What a request says of itself (a token) goes before what its connection says (a certificate), and a wrong one is
        wrong whatever the connection says.
        """
        authorization = request.headers.get("Authorization")
        if authorization is not None:
            scheme, _, token = authorization.partition(" ")
            identity = self._roster.of_token(token.strip()) if scheme.lower() == "bearer" else None
            return None if identity is None else Shown(identity=identity, token=token.strip())
        certificate = request.get_extra_info("peercert")
        return self._of_certificate(certificate) if certificate else None

    def _of_certificate(self, certificate: dict[str, Any]) -> Shown | None:
        identity, serial = identity_in(certificate), serial_in(certificate)
        if identity is None or not serial or self._roster.is_revoked(serial):
            return None
        expires_at = float(ssl.cert_time_to_seconds(certificate["notAfter"]))
        return Shown(identity=identity, serial=serial, expires_at=expires_at)

    def is_revoked(self, serial: str) -> bool:
        return self._roster.is_revoked(serial)

    def of_token(self, token: str) -> Identity | None:
        """Whose token that is."""
        return self._roster.of_token(token)

    def knows_digest(self, digest: str) -> bool:
        """A token of that digest still counts."""
        return self._roster.knows_digest(digest)

    def may(self, shown: Shown, deed: Deed) -> bool:
        return deed in MAY[shown.identity.role]

    def wait_s(self, shown: Shown, kind: str) -> float:
        """How long this identity is to wait before it asks for that kind of thing again; 0: it may now."""
        key = shown.identity, kind
        allowance = self._allowances.pop(key, None) or Allowance(REQUESTS[kind])
        self._allowances[key] = allowance
        if len(self._allowances) > MAX_ALLOWANCES:
            self._allowances.popitem(last=False)
        return allowance.take(self._clock.now())

    def refusal(self, shown: Shown, deed: Deed, kind: str) -> Refusal | None:
        """Why he may not ask for that; None: he may, and it counts as one thing of that kind."""
        who = shown.identity
        if not self.may(shown, deed):
            return Refusal(status=403, kind=f"deed {who}", text=f"{who} may not {deed.value} here")
        if (wait_s := self.wait_s(shown, kind)) > 0:
            text = f"{who} asks too often; come again"
            return Refusal(status=429, kind=f"rate {who} {kind}", text=text, wait_s=wait_s)
        return None

    @contextmanager
    def inside(self, shown: Shown, transport: asyncio.BaseTransport | None) -> Iterator[None]:
        """A request is being served."""
        visit = object()
        self._inside[visit] = shown, transport
        try:
            yield
        finally:
            del self._inside[visit]

    def look(self) -> list[Identity]:
        """See whether anybody counts no more, and break off what he has under way; whom that has met."""
        if not self._roster.look():
            return []
        met = []
        for shown, transport in list(self._inside.values()):
            if self._counts(shown):
                continue
            met.append(shown.identity)
            if isinstance(transport, asyncio.Transport):
                transport.abort()
        return met

    def _counts(self, shown: Shown) -> bool:
        if shown.serial:
            return not self._roster.is_revoked(shown.serial)
        return self._roster.of_token(shown.token) == shown.identity

    def expiries(self) -> dict[str, float]:
        """Days until the certificates expire with which something is under way, by identity."""
        now = self._wall()
        found: dict[str, float] = {}
        for shown, _ in self._inside.values():
            if shown.expires_at is not None:
                days = (shown.expires_at - now) / 86_400
                found[str(shown.identity)] = min(days, found.get(str(shown.identity), days))
        return dict(sorted(found.items()))
