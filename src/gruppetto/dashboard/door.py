"""Who may look. The same token as for everything else; a browser may carry it as a cookie.

A token that comes in an address (``?token=``) or by the form is exchanged for a cookie that scripts cannot read, that
no other site can make a browser send, and that is good for looking only: it is not the token, and no other endpoint of
the syncer takes it. It says until when it holds and is signed with the token, so it survives a restart of the syncer.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import secrets

from aiohttp import web

from gruppetto.runtime.clock import wall_time_s
from gruppetto.runtime.security.identity import MAY, Deed
from gruppetto.runtime.security.porter import Porter
from gruppetto.runtime.security.roster import token_digest
from gruppetto.runtime.setting import is_loopback

__all__ = ["Door"]

COOKIE = "gruppetto-look"
HOLDS_S = 12 * 3600


class Door:
    """``token``: what must be shown; None lets everybody in who can reach the address. With a ``porter`` those may look
    whom he knows, and a token is that of a viewer, an operator or a learner."""

    def __init__(self, token: str | None, *, porter: Porter | None = None) -> None:
        self._token, self._porter = token, porter
        self._key = secrets.token_bytes(32) if token is None else token.encode()

    def lets_in(self, request: web.Request) -> bool:
        """Whether this request may look."""
        if self._porter is not None:
            shown = self._porter.who(request)
            if shown is not None:
                return self._porter.may(shown, Deed.LOOK) and self._porter.wait_s(shown, "looks") <= 0
            return "Authorization" not in request.headers and self._has_cookie(request)
        if self._token is None:
            return _is_for_us(request)
        said = request.headers.get("Authorization", "").encode("utf-8", "replace")
        if hmac.compare_digest(said, f"Bearer {self._token}".encode()):
            return True
        return self._has_cookie(request)

    def _has_cookie(self, request: web.Request) -> bool:
        until, _, rest = request.cookies.get(COOKIE, "").partition(".")
        signature, _, whose = rest.partition(".")
        if not (until.isascii() and until.isdigit() and len(until) < 16):
            return False
        good = hmac.compare_digest(signature.encode("utf-8", "replace"), self._signature(until, whose).encode())
        if self._porter is not None and not (good and self._porter.knows_digest(whose)):
            return False  # the token that was given for it has been taken back
        return good and wall_time_s() < int(until)

    @property
    def wants_a_token(self) -> bool:
        return self._token is not None or self._porter is not None

    def is_token(self, text: str) -> bool:
        """Whether somebody who came by an address or the form has shown the token."""
        if self._porter is not None:
            identity = self._porter.of_token(text)
            return identity is not None and Deed.LOOK in MAY[identity.role]
        return self._token is not None and hmac.compare_digest(text.encode("utf-8", "replace"), self._token.encode())

    def let_in(self, request: web.Request, response: web.StreamResponse, token: str) -> None:
        """Give the browser what it may look with, for the ``token`` that it has shown."""
        whose = "" if self._porter is None else token_digest(token)
        until = str(int(wall_time_s()) + HOLDS_S)
        response.set_cookie(
            COOKIE,
            f"{until}.{self._signature(until, whose)}.{whose}".removesuffix("."),
            max_age=HOLDS_S,
            path="/",
            httponly=True,
            samesite="Strict",
            secure=request.secure,
        )

    def _signature(self, until: str, whose: str) -> str:
        said = f"gruppetto dashboard {until} {whose}".rstrip()
        return hmac.new(self._key, said.encode("utf-8", "replace"), hashlib.sha256).hexdigest()


def _is_for_us(request: web.Request) -> bool:
    """What is open to this machine is not open to a web page that has made its own name point here."""
    host = request.host.rpartition(":")[0] if request.host.rpartition(":")[2].isdigit() else request.host
    if not is_loopback(request.remote or ""):
        return True
    host = host.removeprefix("[").removesuffix("]")
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost"
    return True
