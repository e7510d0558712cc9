"""What the head of a download says of the body that comes behind it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gruppetto.errors import ProtocolError
from gruppetto.numerics.codec import CASTS, CODECS, Codec
from gruppetto.protocol.units import Fragment, Version
from gruppetto.runtime.headers import BASE_HEADER, CODEC_HEADER, LAYOUT_HEADER, OFFSET_HEADER, VERSION_HEADER
from gruppetto.runtime.steps import Held

__all__ = ["Coming", "what_comes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Coming:
    """A value of a fragment, or the step to one from the value that is here."""

    version: Version
    codec: Codec
    offset: int
    """So many bytes of the body are left out at its beginning."""
    is_step: bool


def what_comes(
    headers: Mapping[str, str],
    length: int | None,
    fragment: Fragment,
    numel: int,
    layout_hash: str,
    held: Held | None,
) -> Coming:
    """``length``: bytes of the body; ``held``: the value that was named when it was asked for.

    Raises :class:`ProtocolError` for what cannot be ``numel`` elements of this model.
    """
    is_step = held is not None and headers.get(BASE_HEADER) == held.name
    codec = (CODECS if is_step else CASTS).get(headers.get(CODEC_HEADER, ""))
    version = Version(_number(headers, VERSION_HEADER))
    offset = _number(headers, OFFSET_HEADER) if headers.get(OFFSET_HEADER) else 0
    if codec is None or length is None or offset + length != codec.payload_bytes(numel):
        raise ProtocolError(f"fragment {fragment} came as {length} bytes in no known encoding")
    if headers.get(LAYOUT_HEADER) != layout_hash:
        raise ProtocolError(f"fragment {fragment} came from a model of another layout")
    return Coming(version=version, codec=codec, offset=offset, is_step=is_step)


def _number(headers: Mapping[str, str], header: str) -> int:
    text = headers.get(header, "")
    if not (text.isascii() and text.isdigit() and len(text) <= 16):
        raise ProtocolError(f"header {header} is {text[:40]!r}, not a number")
    return int(text)
