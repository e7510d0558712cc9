"""What is to be said when a syncer that was asked has not answered: one line, with the cause and what to do."""

from __future__ import annotations

import http.client
import ssl

from gruppetto.errors import AddressError, ConnectionLost
from gruppetto.runtime.clock import wall_time_s
from gruppetto.runtime.security.fresh import FreshContext, refusal_in

__all__ = ["PapersWanted", "unanswered"]


class PapersWanted(AddressError):
    """Somebody listens there who wants to be shown, or can only be known by, other papers than whoever asks has."""


def unanswered(
    url: str, error: OSError | http.client.HTTPException, tls: ssl.SSLContext | None = None
) -> AddressError | ConnectionLost:
    """The error to raise from ``error``, by which urllib says that no answer came from ``url``.

    What whoever asks can mend is an :class:`AddressError`: another scheme; another certificate (:class:`PapersWanted`).
    """
    if isinstance(error, ssl.SSLError):
        return AddressError(f"TLS failed ({error.reason})", where=url, fix="check http or https")
    reason = getattr(error, "reason", error)
    if isinstance(reason, ssl.SSLCertVerificationError):
        what = f"its certificate cannot be trusted ({reason.verify_message})"
        return PapersWanted(what, where=url, fix="give --certs DIR of an operator or viewer, with its authority")
    if isinstance(reason, ssl.SSLError) and "WRONG_VERSION" in (reason.reason or ""):
        return AddressError("speaks no TLS", where=url, fix="say http:// instead of https://")
    if why := refusal_in(error):
        return PapersWanted(f"does not take this certificate ({why})", where=url, fix="renew it")
    if isinstance(tls, FreshContext) and (why := tls.expired(wall_time_s())):
        return PapersWanted(why, where=url, fix="renew it: gruppetto certs renew")
    return ConnectionLost(f"{url}: nobody answers ({reason}); is the syncer running there?")
