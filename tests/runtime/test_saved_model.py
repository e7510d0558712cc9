"""What may be taken for a model, of the state directories that lie about."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gruppetto.errors import StateError
from gruppetto.numerics import Layout, TensorSpec
from gruppetto.protocol.ledger import Ledger
from gruppetto.protocol.state import SyncerState
from gruppetto.protocol.units import Fragment, Round, Version
from gruppetto.runtime.saved_model import load_model
from gruppetto.runtime.store import Identity, Store

LAYOUT = Layout(tensors=(TensorSpec(name="w", shape=(2, 3), dtype="float32"),))
THETA = np.arange(6, dtype=np.float32)


def saved(state: Path, shard: str) -> Path:
    """One fragment, published in round 7."""
    identity = Identity(fragments_asked=1, fragmenter="balanced", merge=(), optimizer="nesterov", shard=shard)
    with Store(state, identity=identity, run_id="tour") as store:
        there = SyncerState(
            run_id="tour",
            layout_hash=LAYOUT.layout_hash,
            epoch=store.claim_epoch(),
            round=Round(7),
            versions=(Version(7),),
            members=(),
            cursors=(),
            ledger=Ledger(num_fragments=1),
        )
        store.commit(there, {Fragment(0): (THETA, (THETA,))}, LAYOUT)
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
