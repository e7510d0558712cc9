"""What a published fragment is labelled with in a bucket: an object begins with its label, the label's length in four
bytes before it, and then comes the body as the syncer publishes it."""

from __future__ import annotations

import msgspec

from gruppetto.errors import ProtocolError
from gruppetto.runtime.mailbox.letters import term_folder

__all__ = ["MAX_LABEL_BYTES", "Label", "fragment_name", "read_label", "write_label"]

MAX_LABEL_BYTES = 4096


class Label(msgspec.Struct, frozen=True, kw_only=True):
    """What is said of a body."""

    version: int
    codec: str
    layout: str
    checksum: str
    length: int


_decoder = msgspec.msgpack.Decoder(Label)


def fragment_name(term: int, fragment: int) -> str:
    """
    >>> fragment_name(7, 3)
    '00000007/fragment/00003'
    """
    return f"{term_folder(term)}/fragment/{fragment:05}"


def write_label(label: Label) -> bytes:
    said = msgspec.msgpack.encode(label)
    return len(said).to_bytes(4, "big") + said


def read_label(data: bytes) -> tuple[Label, int] | None:
    """The label, and where the body begins; None while it is not all there. Raises :class:`ProtocolError`.

    >>> label = Label(version=3, codec="fp32", layout="abc", checksum="00000000", length=8)
    >>> data = write_label(label)
    >>> read_label(data + bytes(8)) == (label, len(data)), read_label(data[:-1])
    (True, None)
    """
    length = int.from_bytes(data[:4], "big")
    if length > MAX_LABEL_BYTES - 4:
        raise ProtocolError(f"a label of {length} bytes")
    if len(data) < 4 + length:
        return None
    try:
        label = _decoder.decode(data[4 : 4 + length])
    except (msgspec.MsgspecError, UnicodeDecodeError) as wrong:
        raise ProtocolError("a malformed label") from wrong
    if label.version < 0 or label.length < 0:
        raise ProtocolError("a label of an impossible version or length")
    return label, 4 + length
