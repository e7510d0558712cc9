"""Malformed frames by the thousand, at the service itself: the core never hears of them."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
from tests.runtime.security.attacks.site_of_a_run import LAYOUT, answer_of
from tests.runtime.security.attacks.test_hostile import frames_of

from gruppetto.chaos.malformed import malformed_frames
from gruppetto.errors import ProtocolError
from gruppetto.protocol.units import LearnerId
from gruppetto.runtime.service import NotYours
from gruppetto.runtime.wire import decode_answer, encode_answer

Made = Callable[..., Any]


def step(theta: np.ndarray, cursor: int) -> np.ndarray:
    return theta - 1


def test_the_core_hears_of_nothing_that_is_malformed_or_not_ones_own(world: Made) -> None:
    w = world(LAYOUT, num_fragments=1, sync_period=1, overlap_steps=0)
    good = w.learner("a", np.zeros(7, np.float32), step)
    w.join(good)
    w.step_all(2)
    bad = LearnerId("b")
    made = malformed_frames([*frames_of("b"), *frames_of("a")], random.Random(1))
    seen: Counter[str] = Counter()
    for n in range(3000):
        frame, service = next(made), w.service
        engine = service.engine
        before = engine.core.snapshot() if n % 50 == 0 else None
        try:
            match n % 3:
                case 0:
                    connection = service.greet(frame, "nowhere", speaker=bad)
                    assert connection.learner == "b"
                    with suppress(ProtocolError):
                        service.receive(connection, next(made))
                    service.lost(connection)
                case 1:
                    service.heartbeat(frame, speaker=bad)
                case _:
                    decode_answer(frame.hex() if n % 2 else encode_answer(answer_of("b", 1))[: n % 200])
            seen["good"] += 1
        except NotYours:
            seen["not his"] += 1
        except ProtocolError as wrong:
            seen["malformed"] += 1
            assert len(str(wrong)) < 5000
            if before is not None:
                assert engine.core.snapshot() == before
        if n % 375 == 0:
            w.step_all()
    assert seen["malformed"] > 2000 and seen["not his"] > 2
    w.step_all()
    status = w.service.status()
    assert status["learners"]["a"]["merged_rounds"] == status["round"] == 11
    tokens = dict(status["tokens"])
    assert tokens.pop("consumed") == sum(tokens.values())
    assert set(status["learners"]) <= {"a", "b"}
