"""What may be taken for a model, of the state directories that lie about."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.published import IDENTITY, THETA, publish

from gruppetto.errors import StateError
from gruppetto.runtime.saved_model import load_model
from gruppetto.runtime.store import Store


def saved(state: Path, shard: str) -> Path:
    """One fragment, published in round 7."""
    with Store(state, identity=replace(IDENTITY, shard=shard), run_id="tour") as store:
        publish(store)
    return state


def test_the_newest_weights_come_in_their_shapes(tmp_path: Path) -> None:
    round, model = load_model(saved(tmp_path, "1/1"))
    assert round == 7 and list(model) == ["w"] and np.array_equal(model["w"], THETA.reshape(2, 3))


def test_one_shard_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(StateError, match=r"holds shard 1/2 of a model.* start the syncers of all shards"):
        load_model(saved(tmp_path, "1/2"))


def test_nothing_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(StateError, match="holds no run"):
        load_model(tmp_path)
