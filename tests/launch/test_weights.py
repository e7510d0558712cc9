"""Where the weights of a run are looked for: with the syncer that serves it, or in what one that is gone has left."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from tests.ports import HeldPort
from tests.published import IDENTITY, THETA, publish

from gruppetto.config import load_run
from gruppetto.config.write import write_run
from gruppetto.errors import ConnectionLost
from gruppetto.launch.weights import find_weights
from gruppetto.runtime.store import Store


def leave(state: Path, url: str) -> Store:
    """A syncer that has published round 7, and said where it listens; closed, it is gone as one that was killed."""
    state.mkdir(parents=True)
    store = Store(state, identity=IDENTITY)
    publish(store)
    (state / "endpoint.json").write_text(json.dumps({"url": url, "pid": 1}), encoding="utf-8")
    return store


@pytest.mark.parametrize("settings", [True, False])
def test_of_a_syncer_that_was_killed_the_state_is_read_and_its_address_is_nobodys(
    settings: bool, tmp_path: Path
) -> None:
    if settings:
        write_run(load_run(), tmp_path / "run.toml")
    with closing(HeldPort()) as port:
        leave(tmp_path / "syncer", f"http://{port.address}").close()
        for source in (tmp_path, tmp_path / "syncer"):
            found = find_weights(str(source))
            assert found.round == 7 and np.array_equal(found.tensors["w"], THETA.reshape(2, 3))


def test_a_syncer_that_lives_is_asked_and_that_it_does_not_answer_is_said(tmp_path: Path) -> None:
    with (
        closing(HeldPort()) as port,
        closing(leave(tmp_path / "syncer", f"http://{port.address}")),
        pytest.raises(ConnectionLost),
    ):
        find_weights(str(tmp_path))
