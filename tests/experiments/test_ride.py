"""A ride is known by what it says, for ever."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from gruppetto.experiments.ride import Ride

OTHERS = (7, 0.7, "x", True, False, (2,), (0.7, 0.7), ((1, "nan"),), "elastic")


def test_hashes_are_for_ever() -> None:
    """Results of years are found by them: whoever changes one of these throws all results away."""
    unequal = Ride(seed=3, learners=8, step_s=(1.0, 1.18), outer=(0.4, 0.9), uplink="int4")
    assert Ride().hash == "2afb9b83f9314e5d029766197f539792"
    assert unequal.hash == "fc22a4a7fd0efeef5b69f70751379d18"


def test_a_default_said_aloud_is_not_another_ride() -> None:
    assert Ride(jitter=float("0.1"), apply="".join(("over", "write")), step_s=(1.0,)).hash == Ride().hash
    read = msgspec.convert(msgspec.json.decode(msgspec.json.encode(Ride(learners=8))), Ride)
    assert read.hash == Ride(learners=8).hash


def changed(field: str) -> Iterator[Ride]:
    for value in OTHERS:
        try:
            ride = Ride().but(**{field: value})
        except msgspec.ValidationError:
            continue
        if getattr(ride, field) != getattr(Ride(), field):
            yield ride


def test_every_field_counts() -> None:
    fields: tuple[Any, ...] = msgspec.structs.fields(Ride)
    hashes = {next(changed(field.name)).hash for field in fields}
    assert len(hashes) == len(fields) and Ride().hash not in hashes


def test_what_is_not_known_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError, match="unknown field"):
        Ride().but(nonsense=1)
    with pytest.raises(msgspec.ValidationError):
        Ride().but(learners="many")
