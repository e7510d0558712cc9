from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gruppetto.errors import ProtocolError
from gruppetto.numerics import CODECS, fragment
from gruppetto.numerics.codec import CASTS
from gruppetto.numerics.inspection import inspect
from gruppetto.numerics.layout import Layout, TensorSpec
from gruppetto.numerics.runs import Runs
from gruppetto.runtime.assembly import Assemblies
from gruppetto.runtime.intake import Body, Intake
from gruppetto.runtime.wire import checksum

LAYOUT = Layout(tensors=tuple(TensorSpec(name=f"w{n}", shape=(n,), dtype="float32") for n in (7, 20, 3)))
SPEC = fragment(LAYOUT, 1).fragments[0]


def assemblies(codec: str = "bf16", num_bodies: int = 2) -> Assemblies[str]:
    return Assemblies(Intake(CODECS[codec], SPEC.numel, num_bodies))


def send(to: Assemblies[str], body: np.ndarray, runs: Runs, *, key: str = "a", step: int = 1 << 20) -> Body | None:
    """A piece of ``body``, in chunks of so many bytes."""
    word = to.intake.codec.word_bytes
    piece = np.concatenate([body[start * word : stop * word] for start, stop in runs])
    with to.open(key, SPEC, runs, piece.size, checksum(piece)) as upload:
        for at in range(0, piece.size, step):
            upload.write(piece[at : at + step].tobytes())
        return to.finish(key, upload)


@given(
    codec=st.sampled_from(sorted(CASTS)),
    owner=st.lists(st.integers(0, 3), min_size=SPEC.numel, max_size=SPEC.numel),
    order=st.permutations(range(4)),
    step=st.integers(1, 50),
    again=st.integers(0, 3),
)
def test_pieces_in_any_order_are_the_whole(
    codec: str, owner: list[int], order: list[int], step: int, again: int
) -> None:
    to = assemblies(codec)
    body = CODECS[codec].encode(np.random.default_rng(0).standard_normal(SPEC.numel).astype(np.float32))
    pieces = [Runs.of((i, i + 1) for i, who in enumerate(owner) if who == rank) for rank in order]
    pieces = [piece for piece in pieces if piece.bounds]
    whole: Body | None = None
    for i, runs in enumerate(pieces):
        assert whole is None and len(to) == (i > 0)
        if i == again and i < len(pieces) - 1:
            assert send(to, body, runs) is None  # its answer was lost: it is sent once more
        whole = send(to, body, runs, step=step)
    assert whole is not None and len(to) == 0
    assert bytes(whole.payload) == body.tobytes()
    np.testing.assert_array_equal(whole.inspection.norm_sq, inspect(body, CODECS[codec], SPEC).norm_sq)


def test_a_piece_that_is_damaged_or_cut_short_counts_only_when_it_comes_whole() -> None:
    to, body = assemblies(), np.arange(60, dtype=np.uint8)
    left, right = Runs.of([(0, 10)]), Runs.of([(10, 30)])
    assert send(to, body, left) is None
    with pytest.raises(ProtocolError, match="checksum"), to.open("a", SPEC, right, 40, 1) as upload:
        upload.write(bytes(40))
        to.finish("a", upload)
    with pytest.raises(ProtocolError, match="39 bytes too early"), to.open("a", SPEC, right, 40, 0) as upload:
        upload.write(b"x")
        to.finish("a", upload)
    with pytest.raises(ProtocolError, match="longer than"), to.open("a", SPEC, right, 40, 0) as upload:
        upload.write(bytes(41))
    whole = send(to, body, right)
    assert whole is not None and bytes(whole.payload) == body.tobytes()


def test_pieces_that_overlap_or_have_another_length_are_refused() -> None:
    to, body = assemblies(), np.arange(60, dtype=np.uint8)
    send(to, body, Runs.of([(0, 10)]))
    with pytest.raises(ProtocolError, match="overlap"):
        send(to, body, Runs.of([(9, 30)]))
    with pytest.raises(ProtocolError, match="has 4 bytes, 5 are announced"):
        to.open("a", SPEC, Runs.of([(28, 30)]), 5, 0)


def test_half_answers_are_bounded_and_go_when_nobody_wants_them() -> None:
    to, body, left = assemblies(num_bodies=2), np.zeros(60, np.uint8), Runs.of([(0, 10)])
    for key in "ab":
        assert to.has_room(key, left)
        send(to, body, left, key=key)
    assert not to.has_room("c", left)
    assert to.has_room("a", Runs.of([(10, 30)])), "what completes one needs no room"
    with to.open("a", SPEC, Runs.of([(10, 30)]), 40, checksum(bytes(40))) as coming:
        assert not to.has_room("a", Runs.of([(10, 30)])), "it is on its way"
        to.drop(lambda key: key == "a")
        assert not to.has_room("c", left), "somebody still writes to its buffer"
        coming.write(bytes(40))
        assert to.finish("a", coming) is None
    assert to.has_room("c", left)
    assert list(to) == ["b"]
