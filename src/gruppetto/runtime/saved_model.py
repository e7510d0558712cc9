"""The model in a state directory that no syncer is using: for who wants the weights of a run that is over, or dead."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np

from gruppetto.errors import StateError
from gruppetto.numerics.deal import WHOLE
from gruppetto.numerics.kernels import Float32
from gruppetto.protocol.units import Round
from gruppetto.runtime.cut import cut
from gruppetto.runtime.store import Store, holds_commits

__all__ = ["load_model"]

_log = logging.getLogger("gruppetto.syncer")


def load_model(state: Path) -> tuple[Round, dict[str, Float32]]:
    """The newest closed round and all tensors of Θ by name, float32, in the order of the layout.

    Raises :class:`StateError` if there is no model, only a part of one, nothing of a fragment is good, or a syncer is
    using the files.
    """
    if not holds_commits(state):
        raise StateError("holds no run", where=str(state), fix="name the state directory of one")
    with Store(state, identity=None) as store:
        if store.state is None or not store.state.versions:
            raise StateError("holds no weights yet", where=str(state), fix="let the run close a round first")
        layout, identity = store.layout(), store.identity
        if identity.shard != WHOLE:
            raise StateError(
                f"holds shard {identity.shard} of a model",
                where=str(state),
                fix="start the syncers of all shards again and read the model from them",
            )
        parts = cut(layout, identity.fragments_asked, identity.fragmenter, identity.merge)
        model = {tensor.name: np.empty(tensor.numel, np.float32) for tensor in layout.tensors}
        for p, _, theta, _ in store.load():
            for piece in parts.fragments[p].pieces:
                model[piece.name][piece.start : piece.stop] = theta[piece.offset : piece.offset + piece.numel]
        for text in store.found:
            _log.warning("%s: %s; what is older is taken instead", state, text)
        shapes = {tensor.name: tensor.shape for tensor in layout.tensors}
        return store.state.round, {name: values.reshape(shapes[name]) for name, values in model.items()}
