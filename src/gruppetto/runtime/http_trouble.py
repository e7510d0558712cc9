"""Why HTTP has failed, in words, and whether it is for a person to mend."""

from __future__ import annotations

import errno
import os
import ssl

import aiohttp

from gruppetto.errors import AddressError, ConnectionLost
from gruppetto.runtime.address import SyncerAddress
from gruppetto.runtime.clock import wall_time_s
from gruppetto.runtime.security.fresh import FreshContext, refusal_in

__all__ = ["dial_trouble", "why_not"]


def dial_trouble(address: SyncerAddress, tls: ssl.SSLContext | None, wrong: Exception) -> AddressError | ConnectionLost:
    """What to raise when ``address`` could not be asked: is it for a person to mend, or does it pass by itself?"""
    where = str(address)
    match wrong:
        case aiohttp.WSServerHandshakeError(status=401 | 403):
            return AddressError(
                "the syncer refuses the token, or the certificate, or has revoked it",
                where=where,
                fix="pass this learner's own, or the token the syncer was started with",
            )
        case aiohttp.WSServerHandshakeError(status=status) if status < 500 and status not in (408, 429):
            return AddressError(f"no syncer answers there (HTTP {status})", where=where, fix="check the address")
        case aiohttp.ClientConnectorCertificateError() | ssl.SSLCertVerificationError():
            why = getattr(wrong, "certificate_error", wrong)
            return AddressError(
                f"its certificate cannot be trusted ({why})", where=where, fix="pass the authority's ca_file"
            )
        case aiohttp.ServerDisconnectedError() if isinstance(tls, FreshContext) and tls.shows:
            if expired := tls.expired(wall_time_s()):
                return AddressError(expired, where=where, fix="renew it: gruppetto certs renew")
            return ConnectionLost(f"{where} ends the connection; does it take {tls.shows}? Its log says")
        case _ if refusal_in(wrong):
            fix = "renew it, or use one of the syncer's own authority"
            return AddressError(
                f"it does not take this learner's certificate ({refusal_in(wrong)})", where=where, fix=fix
            )
        case aiohttp.InvalidURL():
            return AddressError("not an address", where=where, fix="use http://HOST:PORT or https://HOST:PORT")
        case _:
            return ConnectionLost(f"{where} cannot be reached ({why_not(wrong)})")


def why_not(wrong: BaseException) -> str:
    """A few words on why; an exception without a text is known by its name."""
    if isinstance(wrong, TimeoutError):
        return "nothing moved for too long"
    if isinstance(wrong, aiohttp.ClientConnectorError):
        number = wrong.os_error.errno
        if number is not None and number in errno.errorcode:
            return os.strerror(number)  # its own text repeats the address
        return wrong.os_error.strerror or str(wrong.os_error) or type(wrong.os_error).__name__
    return str(wrong) or type(wrong).__name__
