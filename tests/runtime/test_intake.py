from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gruppetto.errors import ProtocolError
from gruppetto.numerics import CODECS, FragmentSpec, Piece, inspect
from gruppetto.runtime import intake
from gruppetto.runtime.intake import Intake
from gruppetto.runtime.wire import checksum

SPEC = FragmentSpec(
    index=0,
    pieces=(Piece(name="a", start=0, stop=5, offset=0), Piece(name="b", start=0, stop=8, offset=5)),
    numel=13,
)


def encoded(codec, values=None):
    chosen = np.linspace(-2, 2, 13, dtype=np.float32) if values is None else values
    return CODECS[codec].encode(chosen).tobytes()


def upload_in_parts(codec, data, edges):
    intake = Intake(CODECS[codec], 20, 1)
    with intake.open(SPEC, len(data), checksum(data)) as upload:
        for start, stop in pairwise(edges):
            upload.write(data[start:stop])
        body = upload.finish()
    assert bytes(body.payload) == data
    assert not intake.has_room()
    body.release()
    body.release()
    assert intake.has_room()
    return body.inspection.norm_sq


@pytest.mark.parametrize("codec", sorted(CODECS))
@pytest.mark.parametrize("stride", [8, 1 << 18])
def test_a_body_cut_anywhere_is_the_same_body_to_the_last_bit_of_its_norms(codec, stride, monkeypatch):
    monkeypatch.setattr(intake, "INSPECT_BYTES", stride)
    data = encoded(codec)
    uncut = upload_in_parts(codec, data, [0, len(data)])
    assert np.allclose(uncut, inspect(data, CODECS[codec], SPEC).norm_sq, rtol=1e-6)

    @given(st.sets(st.integers(1, len(data) - 1), max_size=6))
    def cut_anywhere(cuts):
        assert np.array_equal(upload_in_parts(codec, data, sorted({0, len(data), *cuts})), uncut)

    cut_anywhere()


def test_what_is_not_finite_is_seen():
    values = np.zeros(13, np.float32)
    values[7] = np.inf
    data = encoded("bf16", values)
    with Intake(CODECS["bf16"], 13, 1).open(SPEC, len(data), checksum(data)) as upload:
        upload.write(data)
        assert not upload.finish().inspection.finite


def test_every_way_to_be_wrong_gives_the_buffer_back():
    data = encoded("fp32")
    room = Intake(CODECS["fp32"], 13, 1)
    with pytest.raises(ProtocolError, match="53 are announced"):
        room.open(SPEC, 53, 0)
    with pytest.raises(ProtocolError, match="4 bytes too early"), room.open(SPEC, 52, 0) as upload:
        upload.write(data[:-4])
        upload.finish()
    with pytest.raises(ProtocolError, match="longer than the 52"), room.open(SPEC, 52, 0) as upload:
        upload.write(data)
        upload.write(b"x")
    with pytest.raises(ProtocolError, match="checksum"), room.open(SPEC, 52, checksum(data) ^ 1) as upload:
        upload.write(data)
        upload.finish()
    assert room.has_room()


def test_room_is_bounded_and_told():
    room = Intake(CODECS["fp32"], 13, 2)
    told = []
    room.on_room = lambda: told.append(1)
    first, second = (room.open(SPEC, 52, 0) for _ in range(2))
    assert not room.has_room()
    with first:
        pass
    assert room.has_room() and told == [1]
    with second:
        pass
