"""What the paper promises of the algorithm, one test a claim, on the shipping cores and kernels.

The paper is "Decoupled DiLoCo for Resilient Distributed Pre-training" (arXiv 2604.21428). What needs a trained model is
in docs/evidence.md, with the command that measures it.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gruppetto.numerics import Layout, TensorSpec, fragment
from gruppetto.numerics.merge import mean, rda
from gruppetto.protocol import ProtocolSetting
from gruppetto.sim import LearnerSpec, Link, Pace, SyncerCosts, World

LINK = Link(latency_s=0.02)
STEP = Pace(step_s=1.0, jitter=0.05)


def riders(count: int) -> list[LearnerSpec]:
    return [LearnerSpec(name=f"learner-{m}", pace=STEP, link=LINK) for m in range(count)]


def run(specs: list[LearnerSpec], until_s: float = 200.0, **setting: object) -> World:
    protocol = ProtocolSetting(num_learners=len(specs), **setting)  # type: ignore[arg-type]
    world = World(protocol, specs, seed=0, costs=SyncerCosts(merge_s=0.05))
    world.run(until=until_s)
    return world


def rounds_between(world: World, start_s: float, end_s: float) -> int:
    return sum(start_s <= t < end_s for t, _ in world.closed)


def test_a_learner_that_dies_costs_only_itself() -> None:
    """Failure isolation: no round waits for the dead, and nobody else loses a step."""
    specs = riders(4)
    specs[3] = replace(specs[3], dies_at=100.0)
    world, whole = run(specs), run(riders(4))
    assert rounds_between(world, 100, 200) == pytest.approx(rounds_between(whole, 100, 200), abs=2)
    for name in ("learner-0", "learner-1", "learner-2"):
        assert world.learners[name].core.steps == pytest.approx(whole.learners[name].core.steps, abs=2)
    last = world.closed[-1][1]
    assert set(last.participants) == {"learner-0", "learner-1", "learner-2"}


def test_without_a_quorum_of_all_nobody_stops_when_somebody_dies_and_with_it_everybody_does() -> None:
    """Why K < M: at K = M the first death ends the rounds, and training goes on without them."""
    specs = riders(4)
    specs[3] = replace(specs[3], dies_at=100.0)
    strict = run(specs, min_quorum=4)
    assert rounds_between(strict, 105, 200) == 0
    assert strict.syncer.waiting_for.startswith("round")
    assert strict.learners["learner-0"].core.steps == pytest.approx(200, abs=12)


def test_a_learner_may_join_in_the_middle_and_is_merged_at_once() -> None:
    """Elasticity: it pulls the weights, and takes part in the next round that can use its work."""
    specs = riders(4)
    specs[3] = replace(specs[3], joins_at=100.0)
    world = run(specs)
    first = next(t for t, closed in world.closed if "learner-3" in closed.participants)
    assert 100.0 < first < 104.0


def test_at_least_one_learner_keeps_the_run_alive() -> None:
    """Uptime: all but one of eight die, and rounds go on at the same pace."""
    specs = [replace(spec, dies_at=50.0 + m) if m else spec for m, spec in enumerate(riders(8))]
    world = run(specs)
    assert rounds_between(world, 100, 200) == pytest.approx(100, abs=8)


def test_no_learner_ever_waits_for_the_syncer() -> None:
    """Decoupling: with a syncer that needs five steps for a merge, learners make the same steps in the same time."""
    slow = World(ProtocolSetting(num_learners=4), riders(4), seed=0, costs=SyncerCosts(merge_s=5.0))
    slow.run(until=200.0)
    quick = run(riders(4))
    for name, learner in slow.learners.items():
        assert learner.core.steps == pytest.approx(quick.learners[name].core.steps, abs=6)


def test_more_learners_do_not_shrink_the_outer_gradient() -> None:
    """RDA: orthogonal gradients keep their norm whatever their number, where the mean loses a factor √M."""
    rng = np.random.default_rng(0)
    for m in (2, 4, 8, 16):
        basis = np.linalg.qr(rng.normal(size=(64, m)))[0].T.astype(np.float32)
        assert np.linalg.norm(rda(list(basis), [1.0] * m)) == pytest.approx(1.0, rel=1e-5)
        assert np.linalg.norm(mean(list(basis), [1.0] * m)) == pytest.approx(m**-0.5, rel=1e-5)


def test_balanced_fragments_flatten_the_bandwidth() -> None:
    """Of a transformer's tensors, balanced fragments make a far lower peak than dealing them out in order."""
    shapes = [("embed_tokens.weight", (4096, 256))]
    for layer in range(8):
        shapes += [(f"layers.{layer}.{name}.weight", (256, 256)) for name in "qkvo"]
        shapes += [(f"layers.{layer}.{name}.weight", (688, 256)) for name in ("gate", "up", "down")]
        shapes += [(f"layers.{layer}.norm.weight", (256,))]
    layout = Layout(tensors=tuple(TensorSpec(name=n, shape=s, dtype="float32") for n, s in shapes))

    def peak(how: str) -> float:
        parts = fragment(layout, 24, how).fragments
        return max(p.numel for p in parts) / (layout.numel / len(parts))

    assert peak("balanced") < 1.2
    assert peak("tensor") > 1.5


def test_bytes_per_step_fall_with_the_period() -> None:
    """One fragment of P leaves and one arrives per step at P = H: 1/P of the model each way instead of all of it."""
    world = run(riders(2), num_fragments=24, sync_period=24)
    asked = sum(len(closed.participants) for _, closed in world.closed)
    steps = sum(learner.core.steps for learner in world.learners.values())
    assert asked / steps == pytest.approx(1.0, abs=0.05)  # one contribution of one fragment a step
