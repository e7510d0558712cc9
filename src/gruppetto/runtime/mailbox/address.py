"""The address of a mailbox: a place in a bucket, and how the store that has it is reached."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import parse_qsl, urlsplit

from gruppetto.errors import AddressError
from gruppetto.runtime.address import SyncerAddress

__all__ = ["SCHEME", "MailboxAddress", "address_of"]

SCHEME = "s3://"
_USE = "use s3://BUCKET/PREFIX, with ?endpoint=URL, region=, profile= or poll=SECONDS where needed"
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_SEGMENT = re.compile(r"(?=.*[A-Za-z0-9])[A-Za-z0-9._-]{1,128}")
_WORD = re.compile(r"[A-Za-z0-9._-]{1,128}")
OPTIONS = frozenset({"endpoint", "region", "profile", "poll"})
MAX_PREFIX_CHARS = 512
LEAST_POLL_S, MOST_POLL_S = 0.02, 10.0
PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True, kw_only=True)
class MailboxAddress(SyncerAddress):
    """``s3://BUCKET/PREFIX``. ``secure``, ``host`` and ``port`` are those of the store.

    Credentials are never in it: the client of the store finds them where its programs always do.

    >>> box = MailboxAddress.parse("s3://lab/runs/tour?endpoint=http://127.0.0.1:5000&poll=0.1")
    >>> str(box), box.prefix, box.is_loopback, box.poll_s
    ('s3://lab/runs/tour', 'runs/tour', True, 0.1)
    >>> MailboxAddress.parse("s3://lab/../other")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    gruppetto.errors.AddressError: mailbox: 's3://lab/../other' is not a mailbox; use s3://BUCKET/PREFIX, ...
    """

    bucket: str
    prefix: str
    endpoint: str = ""
    """Of a store that is not Amazon's."""
    region: str = ""
    profile: str = ""
    """One of ``~/.aws``, by name. Without it: environment, web identity, or the role of the machine."""
    poll_s: float = 0.25
    """From one look to the next while something happens."""

    @classmethod
    def parse(cls, text: str) -> MailboxAddress:
        """Raises :class:`AddressError`."""
        wrong = AddressError(f"{text!r:.200} is not a mailbox", where="mailbox", fix=_USE)
        try:
            parts = urlsplit(text)
            userinfo, options = parts.username, dict(parse_qsl(parts.query, strict_parsing=bool(parts.query)))
        except (ValueError, TypeError, AttributeError):
            raise wrong from None
        unknown = sorted(options.keys() - OPTIONS)
        if userinfo is not None or any("key" in name.lower() or "secret" in name.lower() for name in unknown):
            # Not repeated in the message.
            raise AddressError(
                "the address holds credentials",
                where="mailbox",
                fix="leave them out; they come from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a role, or profile=",
            )
        if unknown:
            raise AddressError(f"an option {unknown[0][:40]!r} is not known", where="mailbox", fix=_USE)
        prefix = parts.path.strip("/")
        fits = parts.scheme == "s3" and _BUCKET.fullmatch(parts.netloc) and not parts.fragment
        if not fits or len(prefix) > MAX_PREFIX_CHARS or not all(map(_SEGMENT.fullmatch, prefix.split("/"))):
            raise wrong
        for name in ("region", "profile"):
            if name in options and not _WORD.fullmatch(options[name]):
                raise AddressError(f"{name} is {options[name]!r:.80}", where="mailbox", fix=_USE)
        endpoint = options.get("endpoint", "").rstrip("/")
        secure, host, port = _end(endpoint) if endpoint else (True, f"{parts.netloc}.s3.amazonaws.com", PORTS["https"])
        return cls(
            secure=secure,
            host=host,
            port=port,
            bucket=parts.netloc,
            prefix=prefix,
            endpoint=endpoint,
            region=options.get("region", ""),
            profile=options.get("profile", ""),
            poll_s=_poll(options.get("poll", "0.25")),
        )

    def url(self, path: str = "") -> str:
        """Nothing can be asked for there. Raises :class:`AddressError`."""
        raise AddressError(
            "a mailbox answers no requests", where=str(self), fix="ask the syncer on its own machine, or read its trace"
        )

    def __str__(self) -> str:
        return f"{SCHEME}{self.bucket}/{self.prefix}"


def address_of(text: str) -> SyncerAddress:
    """A syncer's address of either kind. Raises :class:`AddressError`.

    >>> str(address_of("s3://lab/tour")), str(address_of("localhost"))
    ('s3://lab/tour', 'http://localhost:7171')
    """
    is_mailbox = isinstance(text, str) and text.startswith(SCHEME)
    return MailboxAddress.parse(text) if is_mailbox else SyncerAddress.parse(text)


def _end(endpoint: str) -> tuple[bool, str, int]:
    """Scheme, host and port of a store."""
    try:
        parts = urlsplit(endpoint)
        host, port = parts.hostname, parts.port
        plain = parts.username is None and not parts.query and not parts.path
    except ValueError:
        parts, host, port, plain = urlsplit(""), None, None, False
    if parts.scheme not in PORTS or not host or not plain:
        # Not repeated: it may hold a secret.
        raise AddressError("the endpoint is not an address", where="mailbox", fix="use endpoint=https://HOST[:PORT]")
    return parts.scheme == "https", host, port or PORTS[parts.scheme]


def _poll(text: str) -> float:
    try:
        poll_s = float(text)
    except ValueError:
        poll_s = 0.0
    if not LEAST_POLL_S <= poll_s <= MOST_POLL_S:
        fix = f"use {LEAST_POLL_S:g} to {MOST_POLL_S:g} seconds"
        raise AddressError(f"poll is {text!r:.40}", where="mailbox", fix=fix)
    return poll_s
