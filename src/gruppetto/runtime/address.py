"""Where a learner finds its syncer, and the papers it shows there."""

from __future__ import annotations

import ipaddress
import ssl
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from gruppetto.errors import AddressError
from gruppetto.home import at_home
from gruppetto.runtime.security.fresh import client_context

__all__ = ["SyncerAddress", "tls_context"]

DEFAULT_PORT = 7171

_USE = "use http://HOST:PORT or https://HOST:PORT"


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncerAddress:
    """The base address of a syncer.

    >>> SyncerAddress.parse("https://syncer.example:7171/").url("/healthz")
    'https://syncer.example:7171/healthz'
    >>> SyncerAddress.parse("localhost")
    SyncerAddress(secure=False, host='localhost', port=7171)
    >>> SyncerAddress.parse("ftp://syncer.example")
    Traceback (most recent call last):
    ...
    gruppetto.errors.AddressError: syncer: 'ftp://syncer.example' is not an address; use http://HOST:PORT or https://HOST:PORT
    """

    secure: bool
    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> SyncerAddress:
        """``http[s]://HOST[:PORT]``; a bare ``HOST[:PORT]`` is http. Raises :class:`AddressError`."""
        if not isinstance(text, str):  # from a caller without type checks
            raise AddressError(f"{text!r:.80} is not an address", where="syncer", fix=_USE)
        try:
            parts = urlsplit(text if "://" in text else f"http://{text}")
            host, port = parts.hostname, parts.port
        except ValueError:
            parts, host, port = urlsplit(""), None, None
        if parts.username is not None:
            # Not repeated in the message: it may be a secret.
            raise AddressError("the address holds a user name", where="syncer", fix="pass the secret as token=")
        if parts.scheme == "s3":
            fix = "ask the syncer on its own machine, by its state directory"
            raise AddressError("a mailbox answers no requests", where="syncer", fix=fix)
        plain = parts.path in ("", "/") and not parts.query and not parts.fragment
        if parts.scheme not in ("http", "https") or not host or not plain or port == 0:
            raise AddressError(f"{text!r} is not an address", where="syncer", fix=_USE)
        return cls(secure=parts.scheme == "https", host=host, port=port or DEFAULT_PORT)

    @classmethod
    def parse_all(cls, text: str) -> tuple[SyncerAddress, ...]:
        """One address, or several with commas between them: a syncer and its standbys, in the order to be tried.

        >>> [str(address) for address in SyncerAddress.parse_all("http://a:7171, b")]
        ['http://a:7171', 'http://b:7171']
        """
        parts = [part.strip() for part in text.split(",")] if isinstance(text, str) else [text]
        return tuple(dict.fromkeys(map(cls.parse, parts)))

    def url(self, path: str = "") -> str:
        """The address of ``path``, which begins with a slash."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.secure else 'http'}://{host}:{self.port}{path}"

    def __str__(self) -> str:
        return self.url()

    @property
    def is_loopback(self) -> bool:
        """It stays on this machine."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


def tls_context(
    ca_file: str | Path | None = None, cert_file: str | Path | None = None, key_file: str | Path | None = None
) -> ssl.SSLContext:
    """How to check the syncer (``ca_file``; default: the system's authorities) and what to show it (a certificate).

    Files that change are read again (:mod:`gruppetto.runtime.security.fresh`). Raises :class:`SettingError` for one
    that cannot be used.
    """
    files = [None if file is None else at_home(file) for file in (ca_file, cert_file, key_file)]
    return client_context(*files)
