"""Until when a certificate holds, read from its file without a library that can do everything."""

from __future__ import annotations

import datetime as dt
import ssl
from pathlib import Path

from gruppetto.errors import StateError

__all__ = ["WARN_DAYS", "days_left", "expiry_of"]

WARN_DAYS = 14.0
"""Before a certificate expires the alarm is raised; renewing takes a command."""
UTC_TIME, GENERALIZED_TIME, VERSION = 0x17, 0x18, 0xA0


def days_left(path: Path, *, now: float) -> float:
    """Days until the first certificate in ``path`` expires, below 0 when it has. Raises :class:`StateError`."""
    return (expiry_of(path) - now) / 86_400


def expiry_of(path: Path) -> float:
    """When the first certificate in ``path`` expires, in seconds since 1970. Raises :class:`StateError`."""
    try:
        text = path.read_text(encoding="ascii")
        end = text.index("-----END CERTIFICATE-----")
        pem = text[text.index("-----BEGIN CERTIFICATE-----") : end] + "-----END CERTIFICATE-----\n"
        return _not_after(ssl.PEM_cert_to_DER_cert(pem))
    except (OSError, ValueError, IndexError) as wrong:
        raise StateError(f"is no certificate that can be read ({wrong})", where=str(path), fix="restore it") from wrong


def _not_after(der: bytes) -> float:
    """RFC 5280, section 4.1: a certificate begins with version, serial, signature, issuer, validity."""
    _, body, _ = _item(_item(der, 0)[1], 0)
    at = 0
    tag, _, after = _item(body, at)
    if tag == VERSION:
        at = after
    for _ in range(3):
        _, _, at = _item(body, at)
    _, validity, _ = _item(body, at)
    _, _, second = _item(validity, 0)
    tag, said, _ = _item(validity, second)
    if tag not in (UTC_TIME, GENERALIZED_TIME):
        raise ValueError("its validity is no time")
    text = said.decode("ascii")
    if tag == UTC_TIME:
        # Two digits of a year are of 1950 to 2049.
        text = ("19" if int(text[:2]) >= 50 else "20") + text
    return dt.datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=dt.UTC).timestamp()


def _item(data: bytes, at: int) -> tuple[int, bytes, int]:
    """Tag and content of the DER item at ``at``, and where the next one begins."""
    tag, length, at = data[at], data[at + 1], at + 2
    if length >= 0x80:
        count = length & 0x7F
        if not 1 <= count <= 4:
            raise ValueError("a length of too many bytes")
        length, at = int.from_bytes(data[at : at + count], "big"), at + count
    if at + length > len(data):
        raise ValueError("it ends too early")
    return tag, data[at : at + length], at + length
