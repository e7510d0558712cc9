"""Several rounds in flight: who is in them and how often they come, by distance. A step takes a second."""

from __future__ import annotations

import pytest

from gruppetto.protocol.settings import ProtocolSetting
from gruppetto.sim import LearnerSpec, Link, Pace, SyncerCosts, World


def seconds_and_share(way_s: float, in_flight: int, *, overlap_steps: int = 5) -> tuple[float, float]:
    """Of a round, and of the four learners in it."""
    pace, link = Pace(step_s=1.0, jitter=0.1), Link(latency_s=way_s)
    world = World(
        ProtocolSetting(num_learners=4, start_learners=4, overlap_steps=overlap_steps, rounds_in_flight=in_flight),
        [LearnerSpec(name=f"learner-{i}", pace=pace, link=link) for i in range(4)],
        seed=1,
        costs=SyncerCosts(merge_s=0.05),
    )
    world.run(until=130.0)
    closed = [(t, c) for t, c in world.closed if t >= 30.0]
    shares = [len(c.participants) / 4 for _, c in closed]
    return (closed[-1][0] - closed[0][0]) / (len(closed) - 1), sum(shares) / len(shares)


@pytest.mark.parametrize(
    ("way_s", "in_flight", "round_s", "share"),
    [
        pytest.param(0.4, 1, 1.0, 1.00, id="0.8 s there and back: one is enough"),
        pytest.param(0.4, 2, 1.0, 1.00, id="and a second one is not needed"),
        pytest.param(0.6, 1, 1.25, 0.25, id="1.2 s: one learner of four"),
        pytest.param(0.6, 2, 1.0, 1.00, id="1.2 s: two"),
        pytest.param(1.2, 2, 1.22, 0.25, id="2.4 s: two are not enough"),
        pytest.param(1.2, 3, 1.0, 1.00, id="2.4 s: three"),
        pytest.param(1.5, 4, 1.0, 1.00, id="3 s: four"),
    ],
)
def test_an_answer_has_as_many_steps_as_rounds_are_in_flight(
    way_s: float, in_flight: int, round_s: float, share: float
) -> None:
    assert seconds_and_share(way_s, in_flight) == (pytest.approx(round_s, rel=0.04), pytest.approx(share, abs=0.03))


def test_the_window_has_to_be_as_long_too() -> None:
    """τ = 2 gives 1.6 s at most: enough for 0.6 s one way, not for 0.8."""
    assert seconds_and_share(0.6, 2, overlap_steps=2)[1] > 0.97
    assert seconds_and_share(0.9, 2, overlap_steps=2)[1] == pytest.approx(0.25, abs=0.03)
    assert seconds_and_share(0.9, 2, overlap_steps=4)[1] > 0.9
