"""The encodings in torch against the compiled ones, bit for bit; on a GPU too, where there is one."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gruppetto.attach.device_codecs import DEVICE_CODECS, decode, encode, encode_with_rest
from gruppetto.errors import ProtocolError
from gruppetto.numerics import CODECS
from gruppetto.numerics import encode_with_rest as compiled_with_rest

each_codec = pytest.mark.parametrize("codec", DEVICE_CODECS)
without_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
each_device = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=without_gpu)])
sizes = st.sampled_from([0, 1, 63, 64, 65, 127, 128, 129, 1025, 2100])


def some(seed: int, numel: int) -> np.ndarray:
    """Blocks of very unlike sizes, ties between codes, zeros of both signs, and now and then what is not finite."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(numel) * 10.0 ** rng.uniform(-42, 37, -(-numel // 128)).repeat(128)[:numel]
    ties = rng.random(numel) < 0.2
    x[ties] = rng.integers(-14, 15, numel)[ties] / 2
    with np.errstate(over="ignore"):
        x = x.astype(np.float32)
    x[rng.random(numel) < 0.02] = -0.0
    if numel and rng.random() < 0.3:
        x[rng.integers(numel)] = rng.choice([np.nan, np.inf, -np.inf])
    return x


def test_all_encodings_of_blocks_are_there() -> None:
    assert set(DEVICE_CODECS) == {name for name, codec in CODECS.items() if codec.block_numel > 1}


@each_device
@each_codec
@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 2**32 - 1), numel=sizes)
def test_the_bytes_are_those_of_the_compiled_loops(codec: str, device: str, seed: int, numel: int) -> None:
    x = some(seed, numel)
    payload = encode(torch.from_numpy(x).to(device), codec).cpu().numpy()
    np.testing.assert_array_equal(payload, CODECS[codec].encode(x))
    anything = np.random.default_rng(seed).integers(0, 256, payload.size).astype(np.uint8)
    for body in (payload, anything):
        back = decode(torch.from_numpy(body).to(device), numel, codec).cpu().numpy()
        np.testing.assert_array_equal(back, CODECS[codec].decode(body, numel))


@each_device
@each_codec
@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 2**32 - 1), numel=sizes, owes=st.booleans())
def test_what_is_left_is_what_the_compiled_loops_leave(
    codec: str, device: str, seed: int, numel: int, owes: bool
) -> None:
    rng = np.random.default_rng(seed)
    base, theta, rest = (rng.standard_normal(numel).astype(np.float32) for _ in range(3))
    left = np.empty(numel, np.float32)
    wanted = compiled_with_rest(base, theta, rest if owes else None, CODECS[codec], left)
    there = [torch.from_numpy(v).to(device) for v in (base, theta, rest)]
    payload, over = encode_with_rest(there[0], there[1], there[2] if owes else None, codec)
    np.testing.assert_array_equal(payload.cpu().numpy(), wanted)
    np.testing.assert_array_equal(over.cpu().numpy().view(np.uint32), left.view(np.uint32))


@each_codec
def test_any_shape_and_stride(codec: str) -> None:
    x = torch.randn(7, 30, 5).transpose(0, 2)
    assert torch.equal(encode(x, codec), encode(x.contiguous(), codec))
    assert encode(torch.tensor(2.0), codec).numel() == CODECS[codec].word_bytes
    with pytest.raises(ProtocolError, match=f"400 values in {codec}"):
        decode(encode(torch.zeros(3), codec), 400, codec)
