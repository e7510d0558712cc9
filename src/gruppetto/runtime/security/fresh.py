"""TLS contexts that notice when their files change: a renewed certificate counts from the next handshake on.

A file is looked at (not read) before every handshake. What cannot be used is not taken up: as long as a certificate and
its key do not fit each other, as between the writing of one and of the other, the pair before it goes on. Authorities
can be added in that way, never taken away: that needs another process, for which there is the standby.
"""

from __future__ import annotations

import logging
import re
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gruppetto.errors import SettingError, StateError
from gruppetto.runtime.complaints import Complaints
from gruppetto.runtime.security.expiry import days_left
from gruppetto.runtime.security.exposed import tell_exposure
from gruppetto.runtime.security.identity import Identity, Role, identity_in

__all__ = ["FreshContext", "PeerTls", "client_context", "refusal_in", "server_context"]

_log = logging.getLogger("gruppetto.security")

_ALERT = re.compile(r"ALERT_((?:BAD_|UNSUPPORTED_)?CERTIFICATE\w*|UNKNOWN_CA|ACCESS_DENIED)")

Look = tuple[tuple[int, int, int], ...]


class FreshContext(ssl.SSLContext):
    """Reads ``cert``, ``key`` and ``ca`` again when they have changed. Made by the functions below."""

    _files: tuple[Path | None, Path | None, Path | None]
    _seen: Look | None
    _complaints: Complaints

    def read(self, cert: Path | None, key: Path | None, ca: Path | None) -> None:
        """Take these files, now and whenever they change. Raises OSError or :class:`ssl.SSLError`."""
        self._files, self._complaints = (cert, key, ca), Complaints(_log)
        self._seen = _look(self._files)
        self._load()

    def expired(self, now: float) -> str:
        """Which certificate of ours has expired, if it has; ``now`` in seconds since 1970.

        A syncer on asyncio ends a handshake that it refuses without the alert that would say why.
        """
        cert = self._files[0]
        try:
            return f"{cert} has expired" if cert is not None and days_left(cert, now=now) <= 0 else ""
        except StateError as wrong:
            return str(wrong)

    @property
    def shows(self) -> Path | None:
        """The certificate that is shown."""
        return self._files[0]

    def refresh(self) -> None:
        """Take up what has changed, if it can be used."""
        seen = _look(self._files)
        if seen == self._seen:
            return
        self._seen = seen
        try:
            # Half of a pair would spoil the context that serves: tried on another one first.
            FreshContext(self.protocol).read(*self._files)
            self._load()
        except (OSError, ssl.SSLError) as wrong:
            where = ", ".join(str(file) for file in self._files if file is not None)
            self._complaints.note(("files",), f"{where}: cannot be used ({wrong}); what was read before goes on")
            self._seen = None  # looked at again at the next handshake
        else:
            _log.info("%s was read anew", self._files[0] or self._files[2])

    def _load(self) -> None:
        cert, key, ca = self._files
        if ca is not None:
            self.load_verify_locations(ca)
        if cert is not None:
            self.load_cert_chain(cert, key)
            tell_exposure(cert if key is None else key)

    def wrap_bio(self, *args: Any, **more: Any) -> ssl.SSLObject:
        self.refresh()
        return super().wrap_bio(*args, **more)

    def wrap_socket(self, *args: Any, **more: Any) -> ssl.SSLSocket:
        self.refresh()
        return super().wrap_socket(*args, **more)


def client_context(
    ca: Path | None = None, cert: Path | None = None, key: Path | None = None, *, checks_host: bool = True
) -> FreshContext:
    """How to check a server (default: by the system's authorities), and what to show it. Raises :class:`SettingError`.

    Without ``checks_host`` any certificate of the authority will do, and the caller looks whose it is.
    """
    context = FreshContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = checks_host
    _read(context, cert, key, ca)
    if ca is None:
        context.load_default_certs()
    return context


def server_context(
    cert: Path, key: Path, *, clients: Path | None = None, required: bool = False, says: Complaints | None = None
) -> FreshContext:
    """How to serve, and how to check whoever shows a certificate: by the authority in ``clients``.

    ``required``: without one nobody comes in. ``says`` hears once of every kind of handshake that failed. Raises
    :class:`SettingError`.
    """
    context = FreshContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    if clients is not None:
        context.verify_mode = ssl.CERT_REQUIRED if required else ssl.CERT_OPTIONAL
    if says is not None:
        context.sslobject_class = _telling(says)
    _read(context, cert, key, clients)
    return context


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerTls:
    """What learners show each other, each its own certificate. It names no host, so whose it is is looked at."""

    ca: Path
    cert: Path
    key: Path

    def as_donor(self) -> FreshContext:
        """Every guest has to show one. Raises :class:`SettingError`."""
        return server_context(self.cert, self.key, clients=self.ca, required=True)

    def as_guest_of(self, donor: str) -> FreshContext:
        """Any learner of the run could listen there; this one alone will do. Raises :class:`SettingError`."""
        context = client_context(self.ca, self.cert, self.key, checks_host=False)
        context.sslobject_class = _expecting(Identity(role=Role.LEARNER, name=donor))
        return context


def _expecting(whose: Identity) -> type[ssl.SSLObject]:
    class Expecting(ssl.SSLObject):
        """Part of the handshake: nothing is said to anybody else."""

        def do_handshake(self) -> None:
            super().do_handshake()
            found = identity_in(self.getpeercert() or {})
            if found != whose:
                raise ssl.SSLCertVerificationError(f"it has the certificate of {found or 'nobody'}, not of {whose}")

    return Expecting


def refusal_in(wrong: BaseException | None) -> str:
    """Why the other side has refused our certificate, if that is what is wrong; "".

    In TLS 1.3 a client hears of it when it reads for the first time, by an alert.

    >>> refusal_in(ssl.SSLError(1, "[SSL: SSLV3_ALERT_CERTIFICATE_EXPIRED] sslv3 alert certificate expired (_ssl.c:1)"))
    'certificate expired'
    """
    seen = 0
    while wrong is not None and seen < 5:
        if found := _ALERT.search(str(wrong)):
            return found.group(1).lower().replace("_", " ")
        wrong, seen = wrong.__cause__ or wrong.__context__, seen + 1
    return ""


def _telling(says: Complaints) -> type[ssl.SSLObject]:
    class Telling(ssl.SSLObject):
        """asyncio drops a connection whose handshake fails without a word."""

        def do_handshake(self) -> None:
            try:
                super().do_handshake()
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                raise
            except ssl.SSLCertVerificationError as wrong:
                says.note(("tls", wrong.verify_message), f"a certificate was refused: {wrong.verify_message}")
                raise
            except ssl.SSLError as wrong:
                kind = str(wrong.reason or type(wrong).__name__)
                says.note(("tls", kind), f"a TLS handshake failed: {kind.lower().replace('_', ' ')}")
                raise

    return Telling


def _read(context: FreshContext, cert: Path | None, key: Path | None, ca: Path | None) -> None:
    if key is not None and cert is None:
        raise SettingError("a key without its certificate", where=str(key), fix="give cert_file too")
    try:
        context.read(cert, key, ca)
    except (OSError, ssl.SSLError, TypeError, ValueError) as wrong:
        files = ", ".join(str(file) for file in (ca, cert, key) if file is not None)
        raise SettingError(
            f"cannot be used ({getattr(wrong, 'strerror', None) or wrong})",
            where=files,
            fix="give PEM files that this user may read",
        ) from wrong


def _look(files: tuple[Path | None, ...]) -> Look:
    """What changes when a file does; zeros for one that is not there."""
    found = []
    for file in files:
        try:
            status = None if file is None else Path(file).stat()
        except OSError:
            status = None
        found.append((0, 0, 0) if status is None else (status.st_mtime_ns, status.st_size, status.st_ino))
    return tuple(found)
