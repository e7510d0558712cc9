"""The safetensors format, written piece by piece: a header, then the tensors' raw bytes, without a copy of either.

>>> header = tensors_header([("w", (2, 3)), ("b", (3,))])
>>> len(header) % 8, header[8:50]
(0, b'{"b":{"data_offsets":[24,36],"dtype":"F32"')
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from math import prod

__all__ = ["tensors_header"]


def tensors_header(tensors: Sequence[tuple[str, tuple[int, ...]]], metadata: Mapping[str, str] | None = None) -> bytes:
    """What precedes the float32 values of ``tensors`` (name, shape), laid end to end in this order, little-endian."""
    entries: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    offset = 0
    for name, shape in tensors:
        end = offset + 4 * prod(shape)
        entries[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(entries, separators=(",", ":"), sort_keys=True).encode()
    text += b" " * (-len(text) % 8)  # the tensors begin at a multiple of eight
    return len(text).to_bytes(8, "little") + text
