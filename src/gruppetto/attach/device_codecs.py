"""The encodings of blocks in torch, for tensors that live on a GPU: the very bytes of :mod:`gruppetto.numerics`.

What a block and its codes are, :mod:`gruppetto.numerics.words` says; here it is done to a whole tensor at once, on
whatever device it lies on, in float32 and in integers, by operations that round alike everywhere. Encoded where it
lies, a fragment in four bits crosses the bus to the host in an eighth of its bytes.

>>> import torch
>>> payload = encode(torch.tensor([7.0, -2.4, 0.2]), "int4")
>>> payload.shape, decode(payload, 3, "int4")
(torch.Size([66]), tensor([ 7., -2.,  0.]))
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from gruppetto.errors import ProtocolError
from gruppetto.numerics import CODECS
from gruppetto.numerics.words import GROUP, HALF, LEAST, SCALE_BYTES

__all__ = ["DEVICE_CODECS", "decode", "encode", "encode_with_rest"]

MAGNITUDE, INFINITE, NOT_A_NUMBER = 0x7FFFFFFF, 0x7F800000, 0x7FC00000


@dataclass(frozen=True, slots=True, kw_only=True)
class _Codes:
    """``most``: the largest that a code can say. ``put``: float32 [blocks, 128] in units of the scale → uint8 codes
    [blocks, bytes]. ``read``: the inverse."""

    most: float
    put: Callable[[Tensor], Tensor]
    read: Callable[[Tensor], Tensor]


def encode(values: Tensor, codec: str) -> Tensor:
    """The payload of float32 values of any shape, row by row: uint8, on the same device."""
    assert values.dtype == torch.float32
    codes, flat = DEVICE_CODECS[codec], values.detach().reshape(-1)
    blocks = torch.nn.functional.pad(flat, (0, -flat.numel() % GROUP)).view(-1, GROUP)
    if not blocks.numel():
        return torch.empty(0, dtype=torch.uint8, device=values.device)
    largest = (blocks.view(torch.int32) & MAGNITUDE).amax(dim=1, keepdim=True)
    # Divisors are tensors of the device: by a number, torch would multiply with its reciprocal, and round otherwise.
    exact = largest.view(torch.float32) / torch.full_like(largest, codes.most, dtype=torch.float32)
    scale = (exact.view(torch.int32) + 0xFFFF) & ~0xFFFF
    scale = torch.where(largest >= LEAST, scale, torch.zeros_like(scale))
    scale = torch.where(largest >= INFINITE, torch.full_like(scale, NOT_A_NUMBER), scale)
    says = (largest >= LEAST) & (largest < INFINITE)
    one = torch.ones_like(exact)
    inverse = one / torch.where(says, scale.view(torch.float32), one)
    units = torch.where(says, blocks * inverse, torch.zeros_like(blocks))
    head = torch.cat(((scale >> 16) & 0xFF, (scale >> 24) & 0xFF), dim=1).to(torch.uint8)
    # Where nothing is said, all codes are zero: also that of a negative zero.
    body = torch.where(says, codes.put(units), torch.zeros((), dtype=torch.uint8, device=values.device))
    return torch.cat((head, body), dim=1).reshape(-1)


def decode(payload: Tensor, numel: int, codec: str) -> Tensor:
    """The ``numel`` float32 values that a uint8 payload holds. Raises :class:`ProtocolError` for a wrong length."""
    wanted = CODECS[codec].payload_bytes(numel)
    if payload.numel() != wanted:
        raise ProtocolError(f"{numel} values in {codec} are {wanted} bytes, but {payload.numel()} came")
    rows = payload.view(-1, CODECS[codec].word_bytes)
    head = rows[:, :SCALE_BYTES].to(torch.int32)
    scale = ((head[:, :1] << 16) | (head[:, 1:] << 24)).view(torch.float32)
    return (scale * DEVICE_CODECS[codec].read(rows[:, SCALE_BYTES:])).reshape(-1)[:numel]


def encode_with_rest(base: Tensor, theta: Tensor, rest: Tensor | None, codec: str) -> tuple[Tensor, Tensor]:
    """The payload of (base − θ) + ``rest``, and what it leaves unsaid of that, exactly, [numel].

    ``rest`` [numel] is what was left by the last payload that counted; None: nothing.
    """
    wanted = (base.detach() - theta.detach()).reshape(-1)
    if rest is not None:
        wanted += rest
    payload = encode(wanted, codec)
    return payload, wanted - decode(payload, wanted.numel(), codec)


def _put_int8(units: Tensor) -> Tensor:
    return units.round().to(torch.int8).view(torch.uint8)


def _read_int8(codes: Tensor) -> Tensor:
    return codes.contiguous().view(torch.int8).to(torch.float32)


def _put_int4(units: Tensor) -> Tensor:
    return _in_halves(units.round().to(torch.int32) & 15)


def _read_int4(codes: Tensor) -> Tensor:
    return ((_from_halves(codes) ^ 8) - 8).to(torch.float32)


def _put_fp4(units: Tensor) -> Tensor:
    # To the nearest power of two: from 1.5 times a power on to the next. Below 2⁻⁷ the nearest is zero.
    bits = units.view(torch.int32)
    size = bits & MAGNITUDE
    exponent = ((size + 0x00400000) >> 23) - 120
    exponent = torch.maximum(exponent, (size >= 120 << 23).to(torch.int32)).clamp(max=7)
    return _in_halves(exponent | ((bits >> 28) & 8))


def _read_fp4(codes: Tensor) -> Tensor:
    each = _from_halves(codes)
    return (((each & 8) << 28) | ((each & 7) << 23)).view(torch.float32) * 2.0**120


def _in_halves(codes: Tensor) -> Tensor:
    return (codes[:, :HALF] | (codes[:, HALF:] << 4)).to(torch.uint8)


def _from_halves(codes: Tensor) -> Tensor:
    return torch.cat((codes & 15, codes >> 4), dim=1).to(torch.int32)


DEVICE_CODECS: dict[str, _Codes] = {
    "int8": _Codes(most=127.0, put=_put_int8, read=_read_int8),
    "int4": _Codes(most=7.0, put=_put_int4, read=_read_int4),
    "fp4-e3m0": _Codes(most=1.0, put=_put_fp4, read=_read_fp4),
}
"""Those of blocks. A cast is one call of ``Tensor.to``."""
