"""Reading a published fragment out of a bucket, straight into its place, and believing nothing that it says."""

from __future__ import annotations

from contextlib import aclosing

from gruppetto.errors import ConnectionLost, ProtocolError
from gruppetto.numerics.codec import CASTS, Codec
from gruppetto.protocol.units import Fragment, Version
from gruppetto.runtime.landing import Landing
from gruppetto.runtime.mailbox.bucket import Bucket
from gruppetto.runtime.mailbox.label import MAX_LABEL_BYTES, Label, fragment_name, read_label

__all__ = ["fetch_value"]


async def fetch_value(
    bucket: Bucket, term: int, fragment: Fragment, version: Version, layout_hash: str, landing: Landing, numel: int
) -> tuple[Version, str, int]:
    """The newest value of a fragment of ``numel`` elements; its version, its checksum, and its bytes.

    Raises :class:`ConnectionLost` for what may be right the next time (an older version than ``version``, a damaged
    body, a store that is away), :class:`ProtocolError` for what is no such fragment.
    """
    label, head = None, bytearray()
    async with aclosing(bucket.stream(fragment_name(term, fragment), None, MAX_LABEL_BYTES + 4 * numel)) as chunks:
        async for chunk in chunks:
            data = chunk
            if label is None:
                head += chunk
                if (parsed := read_label(bytes(head[:MAX_LABEL_BYTES]))) is None:
                    continue
                label, begins = parsed
                landing.begin(Version(label.version), _fitting(label, fragment, version, layout_hash, numel), 0)
                data = memoryview(bytes(head[begins:]))
            if len(data) > landing.missing_bytes:
                raise ProtocolError(f"fragment {fragment} is longer than it says")
            landing.room()[: len(data)] = data
            landing.wrote(len(data))
    if label is None or landing.missing_bytes or label.checksum != f"{landing.crc:08x}":
        landing.forget()
        raise ConnectionLost(f"fragment {fragment} was damaged on its way (checksum)")
    landing.finish()
    return Version(label.version), label.checksum, label.length


def _fitting(label: Label, fragment: Fragment, version: Version, layout_hash: str, numel: int) -> Codec:
    """The encoding of what this label stands before, if it can be the fragment that is wanted."""
    codec = CASTS.get(label.codec)
    if codec is None or label.length != codec.payload_bytes(numel):
        raise ProtocolError(f"fragment {fragment} came as {label.length} bytes in no known encoding")
    if label.layout != layout_hash:
        raise ProtocolError(f"fragment {fragment} came from a model of another layout")
    if label.version < version:
        raise ConnectionLost(f"fragment {fragment} is there in version {label.version}, not yet {version}")
    return codec
