"""Who may look. The same token as for everything else; a browser may carry it as a cookie.

A token that comes in an address (``?token=``) or by the form is exchanged for a cookie that scripts cannot read, that
no other site can make a browser send, and that is good for looking only: it is not the token, and no other endpoint of
the syncer takes it. It says until when it holds and is signed with the token, so it survives a restart of the syncer.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress

from aiohttp import web

from gruppetto.runtime.clock import wall_time_s
from gruppetto.runtime.setting import is_loopback

__all__ = ["Door"]

COOKIE = "gruppetto-look"
HOLDS_S = 12 * 3600


class Door:
    """``token``: what must be shown; None lets everybody in who can reach the address."""

    def __init__(self, token: str | None) -> None:
        self._token = token

    def lets_in(self, request: web.Request) -> bool:
        """Whether this request may look."""
        if self._token is None:
            return _is_for_us(request)
        shown = request.headers.get("Authorization", "").encode("utf-8", "replace")
        if hmac.compare_digest(shown, f"Bearer {self._token}".encode()):
            return True
        until, _, signature = request.cookies.get(COOKIE, "").partition(".")
        if not (until.isascii() and until.isdigit() and len(until) < 16):
            return False
        good = hmac.compare_digest(signature.encode("utf-8", "replace"), self._signature(until).encode())
        return good and wall_time_s() < int(until)

    @property
    def wants_a_token(self) -> bool:
        return self._token is not None

    def is_token(self, text: str) -> bool:
        """Whether somebody who came by an address or the form has shown the token."""
        return self._token is not None and hmac.compare_digest(text.encode("utf-8", "replace"), self._token.encode())

    def let_in(self, request: web.Request, response: web.StreamResponse) -> None:
        """Give the browser what it may look with."""
        until = str(int(wall_time_s()) + HOLDS_S)
        response.set_cookie(
            COOKIE,
            f"{until}.{self._signature(until)}",
            max_age=HOLDS_S,
            path="/",
            httponly=True,
            samesite="Strict",
            secure=request.secure,
        )

    def _signature(self, until: str) -> str:
        assert self._token is not None
        return hmac.new(self._token.encode(), f"gruppetto dashboard {until}".encode(), hashlib.sha256).hexdigest()


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
