"""A state directory with something in it: a model of one tensor, as it was after round 7."""

from __future__ import annotations

import numpy as np

from gruppetto.numerics import Layout, TensorSpec
from gruppetto.protocol.ledger import Ledger
from gruppetto.protocol.state import SyncerState
from gruppetto.protocol.units import Fragment, Round, Version
from gruppetto.runtime.store import Identity, Store

__all__ = ["IDENTITY", "LAYOUT", "THETA", "publish"]

LAYOUT = Layout(tensors=(TensorSpec(name="w", shape=(2, 3), dtype="float32"),))
THETA = np.arange(6, dtype=np.float32)
IDENTITY = Identity(fragments_asked=1, fragmenter="balanced", merge=(), optimizer="nesterov")


def publish(store: Store) -> None:
    """One fragment, published in round 7."""
    there = SyncerState(
        run_id=store.run_id,
        layout_hash=LAYOUT.layout_hash,
        epoch=store.claim_epoch(),
        round=Round(7),
        versions=(Version(7),),
        members=(),
        cursors=(),
        ledger=Ledger(num_fragments=1),
    )
    store.commit(there, {Fragment(0): (THETA, (THETA,))}, LAYOUT)
