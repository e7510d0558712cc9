"""The road of bodies: what is said on a connection that carries nothing else.

It begins as ``GET /v1/bodies`` with ``Upgrade: gruppetto-bodies`` at the syncer's one port, behind the same TLS, token
and proxies as the control connection, and is switched over (RFC 9110, 7.8). From then on it carries one exchange after
another: a :class:`Request` and its body up, a :class:`Reply` and its body down. Both heads are msgpack behind four
bytes of length; paths and headers are those of :mod:`~gruppetto.runtime.wire`, where the same can be asked for with
plain HTTP.

Two things cannot be said there. A Request that ``resumes`` an upload which broke off waits, before its body, for a
Reply of status 100 that says from where. And whoever sends ``trails`` the CRC-32 of the body, four bytes, behind it
instead of naming it in the head, so that he need not read all of it before the first byte leaves.

Who is on the same machine need not send bodies at all (:mod:`~gruppetto.runtime.shared_memory`). A syncer that shares
memory says where its key is, in :data:`MEMORY_HEADER` of the reply to the upgrade; who shows the key with a Request
may have the body of the Reply named instead of sent, and says :data:`COPIED` when he has it. A body up is named
behind the key, and only its checksum follows; a Reply of status :data:`UNSEEN` asks for the body itself.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from gruppetto.errors import ProtocolError

__all__ = [
    "BODIES_PATH",
    "CONTINUE",
    "COPIED",
    "GREETING_END",
    "LENGTH_BYTES",
    "MAX_HEAD_BYTES",
    "MEMORY_HEADER",
    "TRAILER_BYTES",
    "UNSEEN",
    "UPGRADE",
    "Head",
    "Reply",
    "Request",
    "decode",
    "encode",
]

BODIES_PATH = "/v1/bodies"
UPGRADE = "gruppetto-bodies"
GREETING_END = b"\r\n\r\n"
MAX_HEAD_BYTES = 1 << 17
"""Runs of a rank may be many: they have the room that HTTP headers have, and as much again."""
LENGTH_BYTES = 4
CONTINUE = 100
TRAILER_BYTES = 4
MEMORY_HEADER = "Gruppetto-Memory"
"""The key, and behind a space where the body is; in a Reply only that."""
COPIED = b"\x01"
UNSEEN = 421
"""The memory that was named cannot be read from here."""


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked. ``length`` bytes of body follow, fewer when a Reply has said where to go on."""

    method: str
    path: str
    headers: dict[str, str]
    length: int = 0
    resumes: bool = False
    trails: bool = False


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it. ``length`` bytes follow. ``closes``: nothing more is read on this connection."""

    status: int
    headers: dict[str, str] = msgspec.field(default_factory=dict)
    length: int = 0
    closes: bool = False


Head = TypeVar("Head", Request, Reply)
_encoder = msgspec.msgpack.Encoder()
_decoders = {kind: msgspec.msgpack.Decoder(kind) for kind in (Request, Reply)}


def encode(head: Request | Reply) -> bytes:
    """The bytes of a head, its length before it."""
    data = _encoder.encode(head)
    return len(data).to_bytes(LENGTH_BYTES, "big") + data


def decode(data: bytes | bytearray, kind: type[Head]) -> Head:
    """A head, without its length. Raises :class:`ProtocolError`.

    >>> decode(encode(Reply(status=200))[4:], Reply).status
    200
    >>> decode(b"?", Reply)
    Traceback (most recent call last):
    ...
    gruppetto.errors.ProtocolError: not a Reply
    """
    try:
        head: Head = _decoders[kind].decode(data)  # type: ignore[assignment]
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as wrong:
        raise ProtocolError(f"not a {kind.__name__}") from wrong
    if head.length < 0:
        raise ProtocolError(f"a body of {head.length} bytes")
    return head
