from __future__ import annotations

import re
import typing
from dataclasses import fields, replace
from enum import Enum

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gruppetto.errors import ProtocolError
from gruppetto.numerics import Layout, TensorSpec
from gruppetto.protocol.messages import Answer, ApplyMode, Heartbeat, Hello, Progress, Welcome
from gruppetto.runtime import wire
from gruppetto.runtime.cut import cut
from gruppetto.runtime.plausible import is_name
from gruppetto.runtime.wire import (
    FROM_LEARNER,
    FROM_SYNCER,
    WIRE_VERSION,
    Frame,
    HelloFrame,
    ProgressFrame,
    WelcomeFrame,
    check_wire_version,
    decode_answer,
    decode_frame,
    encode_answer,
    encode_frame,
)

NAMES = st.text("abcXYZ019._-", min_size=1, max_size=20).filter(lambda name: name.strip("._-"))
ALL = frozenset(kind.__name__ for kind in Frame.__args__)


def strategy_for(hint: object, name: str = "") -> st.SearchStrategy:
    """Any value that the wire allows, by its type."""
    hint = getattr(hint, "__supertype__", hint)
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is tuple and args[-1] is ...:
        return st.lists(strategy_for(args[0]), max_size=4).map(tuple)
    if origin is tuple:
        return st.tuples(*(strategy_for(arg) for arg in args))
    if origin is dict:
        return st.dictionaries(NAMES, st.floats(allow_nan=False), max_size=4)
    if args:
        return st.one_of(*(strategy_for(arg) for arg in args))
    if hint in (None, type(None)):
        return st.none()
    if hint is bool:
        return st.booleans()
    if hint is int:
        return st.integers(-1, 2**31 if name == "incarnation" else 2**53)
    if hint is float:
        return st.floats(0, 1e9)
    if hint is str:
        return NAMES
    if isinstance(hint, type) and issubclass(hint, Enum):
        return st.sampled_from(hint)
    hints = typing.get_type_hints(hint)
    return st.builds(hint, **{f.name: strategy_for(hints[f.name], f.name) for f in fields(hint)})


@given(st.one_of(*(strategy_for(kind) for kind in Frame.__args__)))
def test_every_frame_comes_back_as_it_was(frame):
    assert decode_frame(encode_frame(frame), ALL) == frame


@given(strategy_for(Answer))
def test_an_answer_fits_into_a_header_without_what_only_its_body_can_tell(answer):
    header = encode_answer(answer)
    assert header.isascii() and decode_answer(header) == replace(answer, finite=True, norms=())


@given(st.binary(max_size=200))
def test_noise_is_a_protocol_error(data):
    with pytest.raises(ProtocolError):
        decode_frame(data, FROM_LEARNER)


@given(strategy_for(ProgressFrame), st.data())
def test_a_damaged_frame_is_a_protocol_error_or_still_plausible(frame, data):
    raw = bytearray(encode_frame(frame))
    raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = decode_frame(raw, ALL)
    except ProtocolError:
        return
    # Metrics may be anything, NaN included; all else is within its limits and so encodes and decodes again.
    assert encode_frame(decode_frame(encode_frame(found), ALL)) == encode_frame(found)


@given(st.text(max_size=100))
def test_noise_in_a_header_is_a_protocol_error(text):
    with pytest.raises(ProtocolError):
        decode_answer(text)


def progress(**change):
    given = {
        "learner": "a", "incarnation": 1, "epoch": 1, "clock": 1, "step_s": 0.5, "steps": 1, "tokens": 1, "cursor": 1
    }  # fmt: skip
    return Progress(**{**given, **change})


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"step_s": float("nan")}, "step_s"),
        ({"step_s": float("inf")}, "step_s"),
        ({"step_s": -1.0}, "step_s"),
        ({"tokens": 2**53 + 1}, "tokens"),
        ({"clock": -2}, "clock"),
        ({"learner": ""}, "learner"),
        ({"learner": "../../etc"}, "learner"),
        ({"learner": "x" * 129}, "learner"),
    ],
)
def test_implausible_values_are_named(change, where):
    with pytest.raises(ProtocolError, match=where):
        decode_frame(encode_frame(ProgressFrame(progress=progress(**change))), FROM_LEARNER)


def test_metrics_are_few_and_plainly_named():
    for metrics in ({str(i): 0.0 for i in range(33)}, {"a b": 1.0}):
        with pytest.raises(ProtocolError, match="metrics"):
            decode_frame(encode_frame(ProgressFrame(progress=progress(), metrics=metrics)), FROM_LEARNER)


def test_names_and_sizes_are_looked_at_first():
    beat = encode_frame(Heartbeat(learner="a", incarnation=1))
    with pytest.raises(ProtocolError, match="a Heartbeat may not come here"):
        decode_frame(beat, FROM_SYNCER)
    with pytest.raises(ProtocolError, match="unknown name"):
        decode_frame(msgspec.msgpack.encode(["Pickle", {}]), FROM_SYNCER)
    with pytest.raises(ProtocolError, match="at most"):
        decode_frame(bytes(wire.MAX_FRAME_BYTES + 1), FROM_LEARNER)
    deep = msgspec.msgpack.encode(["ProgressFrame", 1])[:-1] + b"\x91" * 100_000
    with pytest.raises(ProtocolError):
        decode_frame(deep, FROM_LEARNER)


LAYOUT = Layout(
    tensors=(
        TensorSpec(name="embed_tokens.weight", shape=(50, 8), dtype="float32"),
        TensorSpec(name="h.0.weight", shape=(8, 8), dtype="float32"),
        TensorSpec(name="h.0.bias", shape=(), dtype="bfloat16"),
    )
)


def hello_frame():
    return HelloFrame.of(Hello(learner="a", session="s", layout_hash=LAYOUT.layout_hash), LAYOUT)


def test_the_layout_comes_with_the_hello_and_must_match_its_hash():
    frame = decode_frame(encode_frame(hello_frame()), {"HelloFrame"})
    assert frame.to_layout() == LAYOUT
    short = HelloFrame(hello=frame.hello, layout=frame.layout[:-1])
    with pytest.raises(ProtocolError, match="hash"):
        short.to_layout()
    twice = HelloFrame(hello=frame.hello, layout=frame.layout * 2)
    with pytest.raises(ProtocolError, match="named twice"):
        twice.to_layout()


def welcome_frame(parts):
    welcome = Welcome(
        run_id="r", epoch=1, incarnation=1, slot=0, cursor=0, round=0, versions=(), seed=True, begun=False,
        num_fragments=parts.num_fragments, sync_period=4, snapshot_window=2, apply=ApplyMode.OVERWRITE,
        blend_alpha=0.5, rounds=None,
    )  # fmt: skip
    return WelcomeFrame(
        welcome=welcome, fragmenter="balanced", fragments_asked=24, merge=((r"^h\.", "mean"),), uplink="bf16",
        downlink="fp32", layout_hash=LAYOUT.layout_hash, fragmentation_hash=parts.fragmentation_hash, liveness_s=10.0,
        run={"train": {"lr": 1e-3}},
    )  # fmt: skip


def test_a_learner_cuts_its_model_as_the_syncer_did_or_says_so():
    parts = cut(LAYOUT, 24, "balanced", [(r"^h\.", "mean")])
    frame = decode_frame(encode_frame(welcome_frame(parts)), FROM_SYNCER)
    assert frame.run == {"train": {"lr": 1e-3}}
    assert frame.to_fragmentation(LAYOUT) == parts
    with pytest.raises(ProtocolError, match="cuts the model differently"):
        welcome_frame(cut(LAYOUT, 2)).to_fragmentation(LAYOUT)


def test_signs_alone_are_no_name():
    for name in (".", "..", "-", "_.-", "", "a/b", "a" * 129):
        assert not is_name(name)
    for name in ("a", "0", ".a", "..a", "a.", "-7"):
        assert is_name(name)


def test_too_many_tensors_are_refused_before_they_are_looked_at():
    row = ("w", (1,), "float32")
    hello = Hello(learner="a", session="s", layout_hash="x")
    most = HelloFrame(hello=hello, layout=(row,) * wire.MAX_TENSORS)
    assert decode_frame(encode_frame(most), {"HelloFrame"}) == most
    with pytest.raises(ProtocolError, match="65537 tensors; at most 65536"):
        decode_frame(encode_frame(HelloFrame(hello=hello, layout=(row,) * (wire.MAX_TENSORS + 1))), {"HelloFrame"})


def test_the_first_difference_to_a_known_layout_is_named():
    frame = hello_frame()
    first, *rest = frame.layout
    for rows, said in (
        (frame.layout, ""),
        ((("other", *first[1:]), *rest), "tensor 0 is .* here and 'other'"),
        (frame.layout[:-1], f"{len(frame.layout)} tensors here, {len(frame.layout) - 1} there"),
        ((*frame.layout, first), f"{len(frame.layout)} tensors here, {len(frame.layout) + 1} there"),
    ):
        found = HelloFrame(hello=frame.hello, layout=rows).difference_from(LAYOUT)
        assert re.fullmatch(f"{said}.*" if said else "", found), found


@pytest.mark.parametrize(("theirs", "whose"), [(1, "learner"), (WIRE_VERSION + 1, "syncer")])
def test_another_version_is_named_with_what_to_upgrade_whatever_else_it_says(theirs: int, whose: str) -> None:
    hello = msgspec.msgpack.encode(("HelloFrame", {"wire": theirs, "greetings": ["of", "another", "kind"]}))
    with pytest.raises(ProtocolError) as wrong:
        check_wire_version(hello)
    said = str(wrong.value)
    assert f"wire version {theirs}, this syncer {WIRE_VERSION}; upgrade Gruppetto at the {whose}" in said
    assert len(said) < 120 and "\n" not in said  # a close frame has room for so much
    check_wire_version(msgspec.msgpack.encode(("Heartbeat", {"wire": theirs})))
    check_wire_version(b"noise")
