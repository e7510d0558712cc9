"""Virtual time: the shipping cores in a world made of a heap.

:mod:`~gruppetto.sim.engine` (the clock), :mod:`~gruppetto.sim.compute` (how long a step takes),
:mod:`~gruppetto.sim.network` (how long a message takes), :mod:`~gruppetto.sim.world` and :mod:`~gruppetto.sim.learner`
(a syncer and learners in it), :mod:`~gruppetto.sim.mishaps` (what befalls them), :mod:`~gruppetto.sim.giving` (how they
recover).

Clusters that nobody can try: :mod:`~gruppetto.sim.failures` (what breaks), :mod:`~gruppetto.sim.elastic` (a job that
goes on without it), :mod:`~gruppetto.sim.fleet` and :mod:`~gruppetto.sim.rider` (decoupled learners as such jobs),
:mod:`~gruppetto.sim.rivals`, :mod:`~gruppetto.sim.scenario` and :mod:`~gruppetto.sim.goodput` (all of them under the
same faults), :mod:`~gruppetto.sim.paper` (what is to come out), :mod:`~gruppetto.sim.bandwidth`.
"""

from __future__ import annotations

from gruppetto.sim.compute import Pace
from gruppetto.sim.engine import Engine
from gruppetto.sim.network import Link
from gruppetto.sim.world import LearnerSpec, SyncerCosts, World

__all__ = ["Engine", "LearnerSpec", "Link", "Pace", "SyncerCosts", "World"]
