"""What a maker makes is what its class makes."""

from __future__ import annotations

import copy
from dataclasses import FrozenInstanceError, replace
from typing import Any

import pytest

from gruppetto.protocol.actions import Apply, Fold, Pull, Send, TakeSnapshot
from gruppetto.protocol.events import Arrived, Folded, StepDone
from gruppetto.protocol.maker import maker
from gruppetto.protocol.membership import Member
from gruppetto.protocol.messages import Answer, Applied, ApplyMode, Ask, Progress
from gruppetto.protocol.settings import ProtocolSetting
from gruppetto.protocol.units import Epoch, Fragment, Incarnation, LearnerId, Round, Version

A, P, T, V, E, LIFE = LearnerId("a"), Fragment(3), Round(9), Version(7), Epoch(1), Incarnation(2)
ASK = Ask(epoch=E, round=T, fragments=(P,))
ANSWER: dict[str, Any] = {
    "learner": A, "incarnation": LIFE, "epoch": E, "round": T, "fragment": P, "base_version": V, "steps": 2,
    "tokens": 8, "total_tokens": 80, "cursor": 5, "layout_hash": "h",
}  # fmt: skip
PROGRESS: dict[str, Any] = {
    "learner": A, "incarnation": LIFE, "epoch": E, "clock": 9, "step_s": 1.5, "steps": 20, "tokens": 80, "cursor": 5,
}  # fmt: skip
MADE: list[tuple[type[Any], dict[str, Any]]] = [
    (Answer, ANSWER),
    (Answer, {**ANSWER, "finite": False, "norms": (1.0,), "parting": True}),
    (Progress, PROGRESS),
    (Applied, {"fragment": P, "version": V, "at_tokens": 80}),
    (Apply, {"fragment": P, "version": V, "mode": ApplyMode.CARRY, "blend_alpha": 0.5}),
    (Pull, {"fragment": P, "version": V}),
    (TakeSnapshot, {"fragments": (P,)}),
    (Fold, {"round": T, "fragment": P, "learner": A, "weight": 2.0}),
    (Send, {"to": A, "session": "s", "message": ASK}),
    (Arrived, {"fragment": P, "version": V}),
    (StepDone, {"tokens": 4, "cursor": 6}),
    (Folded, {"round": T, "fragment": P, "learner": A}),
]


@pytest.mark.parametrize(("cls", "values"), MADE, ids=lambda x: x.__name__ if isinstance(x, type) else "")
def test_it_is_what_the_class_itself_makes(cls: type[Any], values: dict[str, Any]) -> None:
    made, plain = maker(cls)(**values), cls(**values)
    assert type(made) is cls
    assert (made, hash(made), repr(made)) == (plain, hash(plain), repr(plain))
    assert replace(made) == copy.deepcopy(made) == plain
    name = next(iter(values))
    with pytest.raises(FrozenInstanceError):
        setattr(made, name, None)
    with pytest.raises(TypeError):
        maker(cls)(**{**values, "other": 1})
    with pytest.raises(TypeError):
        maker(cls)(**{other: value for other, value in values.items() if other != name})


@pytest.mark.parametrize("cls", [ProtocolSetting, Member])
def test_what_looks_at_its_values_or_makes_some_itself_is_refused(cls: type[Any]) -> None:
    with pytest.raises(AssertionError):
        maker(cls)
