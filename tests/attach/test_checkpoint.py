from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from gruppetto.attach.checkpoint import from_state_dict, rests_of, to_state_dict
from gruppetto.errors import StateError
from gruppetto.numerics import Layout, TensorSpec
from gruppetto.protocol.learner import LearnerState
from gruppetto.protocol.units import Round, Version

LAYOUT = Layout(
    tensors=(
        TensorSpec(name="w", shape=(2, 3), dtype="bfloat16"),
        TensorSpec(name="b", shape=(), dtype="float32"),
    )
)
STATE = LearnerState(
    run_id="run-1",
    clock=12,
    newest_round=Round(11),
    fragments=((Version(11), 1, 16), (Version(10), 2, 32)),
    steps=12,
    tokens=192,
    cursor=12,
)


def saved() -> dict[str, Any]:
    bases = {"w": torch.arange(6.0).reshape(2, 3), "b": torch.tensor(0.5)}
    return to_state_dict(STATE, layout_hash=LAYOUT.layout_hash, cut_hash="cut", bases=bases)


def test_there_and_back() -> None:
    state, cut_hash, bases = from_state_dict(saved(), LAYOUT)
    assert (state, cut_hash) == (STATE, "cut")
    assert torch.equal(bases["w"], torch.arange(6.0).reshape(2, 3))
    assert torch.equal(bases["b"], torch.tensor(0.5))


def test_it_is_flat_and_plain() -> None:
    assert all(isinstance(value, torch.Tensor | int | str) for value in saved().values())


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        ({"format": 99}, "format is 99"),
        ({"layout_hash": "another"}, "another layout"),
        ({"core": "{"}, "damaged"),
        ({"core": '{"run_id": "x"}'}, "damaged"),
        ({"base.w": torch.zeros(3)}, "damaged"),
        ({"base.w": None}, "damaged"),
        ({"base.w": torch.zeros(2, 3).numpy()}, "'w' is no float32 tensor"),
        ({"base.w": torch.zeros(2, 3, dtype=torch.complex64)}, "'w' is no float32 tensor"),
        ({"base.w": torch.zeros(2, 3, device="meta")}, "'w' is no float32 tensor"),
        ({"base.w": torch.full((2, 3), torch.nan)}, "base of 'w' holds NaN"),
        ({"cut_hash": ...}, "damaged"),
    ],
)
def test_what_is_not_ours_is_refused(damage: dict[str, Any], says: str) -> None:
    plain = saved() | damage
    plain = {key: value for key, value in plain.items() if value is not ...}
    with pytest.raises(StateError, match=says):
        from_state_dict(plain, LAYOUT)


@pytest.mark.parametrize("other", [None, [1], "x"])
def test_what_is_no_dictionary_is_refused(other: Any) -> None:
    with pytest.raises(StateError, match=f"it is a {type(other).__name__}"):
        from_state_dict(other, LAYOUT)


@pytest.mark.parametrize("damage", [{"rest.w": None}, {"rest.b": ...}, {"rest.w": torch.zeros(3)}])
def test_what_is_owed_is_looked_at_too(damage: dict[str, Any]) -> None:
    whole = {"rest.w": torch.zeros(2, 3), "rest.b": torch.zeros(())}
    assert rests_of(whole, LAYOUT).keys() == {"w", "b"}
    with pytest.raises(StateError, match="what it owes is incomplete or damaged"):
        rests_of({key: value for key, value in (whole | damage).items() if value is not ...}, LAYOUT)


@pytest.mark.parametrize(
    "change",
    [
        {"cursor": -5},
        {"cursor": 2**70},
        {"tokens": -1},
        {"run_id": "a b"},
        {"fragments": ((Version(-2), 0, 0), (Version(10), 2, 32))},
        {"fragments": ((Version(11), -1, 16), (Version(10), 2, 32))},
    ],
)
def test_counts_that_the_wire_would_not_carry_are_refused(change: dict[str, Any]) -> None:
    plain = to_state_dict(replace(STATE, **change), layout_hash=LAYOUT.layout_hash, cut_hash="cut", bases={})
    with pytest.raises(StateError, match="damaged"):
        from_state_dict(saved() | {"core": plain["core"]}, LAYOUT)
