"""Contributions and initial weights that come in pieces, at the service: half of one is never merged."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.runtime.conftest import answer

from gruppetto.errors import ProtocolError
from gruppetto.numerics.runs import Runs
from gruppetto.protocol.messages import Answer
from gruppetto.protocol.units import Fragment, Incarnation, LearnerId
from gruppetto.runtime.service import SyncerService
from gruppetto.runtime.wire import checksum

ONES = np.ones(4, np.float32)
LEFT, RIGHT = Runs.of([(0, 1), (3, 4)]), Runs.of([(1, 3)])


def send(service: SyncerService, of: Answer, runs: Runs, values: np.ndarray) -> str:
    """The piece of a float32 contribution; what the syncer says of it."""
    body = np.concatenate([values[start:stop] for start, stop in runs]).view(np.uint8)
    if not service.wants(of):
        return service.turn_away(of, runs)
    with service.open_contribution(of, "fp32", body.size, checksum(body), runs) as upload:
        upload.write(body)
        return service.contribute(of, upload)


@pytest.fixture
def waiting(world, tensors):
    """Two learners whose weights are all ones, both needed; both have made a step."""
    w = world(tensors(4), num_learners=2, min_quorum=2, num_fragments=1, sync_period=1, overlap_steps=0)
    a, b = (w.learner(name, ONES, lambda theta, cursor: 0.9 * theta) for name in "ab")
    w.join(a, b)
    a.step(), b.step()
    return w, a, b


def test_two_pieces_are_one_contribution_and_half_is_none(waiting) -> None:
    w, a, b = waiting
    mine = np.array([0.1, 0.2, 0.3, 0.4], np.float32)
    assert b.link.contribute(answer(b), "fp32", (0.1 * ONES).view(np.uint8)) == "taken"
    assert send(w.service, answer(a), LEFT, mine) == "held"
    assert w.service.status()["round"] == 0, "the round needs it whole"
    assert send(w.service, answer(a), LEFT, mine) == "held", "sent again, as its reply was lost"
    assert send(w.service, answer(a), RIGHT, mine) == "taken"
    assert w.service.status()["round"] == 1
    np.testing.assert_allclose(w.theta(), 1 - 0.76 * (0.1 + mine) / 2, rtol=1e-6)
    assert send(w.service, answer(a), RIGHT, mine) == "dropped"
    assert w.service.status()["tokens"]["merged"] == 20


def test_a_newer_contribution_takes_the_place_of_half_an_older_one(waiting) -> None:
    w, a, _ = waiting
    older, newer = answer(a), answer(a, steps=2, tokens=20, total_tokens=20)
    a.step()
    assert send(w.service, older, LEFT, ONES) == "held"
    assert send(w.service, newer, LEFT, 2 * ONES) == "held"
    assert send(w.service, older, RIGHT, ONES) == "dropped", "it does not complete the newer one, nor throw it away"
    assert send(w.service, newer, RIGHT, 2 * ONES) == "taken"
    assert w.service.status()["rejected"] == {}


def test_halves_of_a_life_that_is_over_give_their_room_back(waiting) -> None:
    w, a, _ = waiting
    assert send(w.service, answer(a), LEFT, ONES) == "held"
    engine = w.service.engine
    assert engine is not None and len(engine.halves) == 1
    a.goodbye()
    w.service.drop_halves()
    assert len(engine.halves) == 0


def test_what_is_no_piece_is_refused(waiting) -> None:
    w, a, _ = waiting
    with pytest.raises(ProtocolError, match="without elements"):
        w.service.runs_of(Fragment(0), "")
    with pytest.raises(ProtocolError, match="reach element 9 of 4"):
        w.service.runs_of(Fragment(0), Runs.of([(0, 9)]).encode())
    with pytest.raises(ProtocolError, match="has 8 bytes, 12 are announced"):
        w.service.room_for(answer(a), "fp32", 12, RIGHT)
    assert send(w.service, replace(answer(a), incarnation=Incarnation(9)), RIGHT, ONES) == "dropped"


def test_initial_weights_may_come_in_pieces(world, tensors) -> None:
    w = world(tensors(4), num_learners=1, num_fragments=1, sync_period=1)
    a = w.learner("a", ONES, lambda theta, cursor: theta)
    a.connect()
    who = LearnerId("a"), Incarnation(1)
    weights = np.arange(4, dtype=np.float32)
    for runs in (RIGHT, LEFT):
        assert w.service.borrow_model() is None
        body = np.concatenate([weights[start:stop] for start, stop in runs]).view(np.uint8)
        room = w.service.room_for_seed(*who, Fragment(0), runs)
        assert room.has_room()
        with w.service.open_seed(*who, Fragment(0), body.size, checksum(body), runs) as upload:
            upload.write(body)
            w.service.seed(*who, Fragment(0), upload)
    np.testing.assert_array_equal(w.theta(), weights)
