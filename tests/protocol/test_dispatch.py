"""Which method hears which event, and where a core keeps what it knows."""

from __future__ import annotations

from typing import get_args

from gruppetto.protocol import ProtocolSetting, SyncerCore
from gruppetto.protocol.events import LearnerEvent, StepStarted, SyncerEvent, Tick
from gruppetto.protocol.learner import LearnerCore
from gruppetto.protocol.units import LearnerId


def test_every_event_is_heard() -> None:
    assert set(SyncerCore.HEARD_BY) == set(get_args(SyncerEvent))
    assert set(LearnerCore.HEARD_BY) == set(get_args(LearnerEvent))


def test_a_subclass_and_whoever_stands_on_it_may_hear_one_event_differently() -> None:
    class Deaf(LearnerCore):
        def _on_step_started(self, now: float, event: StepStarted) -> None:
            pass

    class Later(Deaf):
        pass

    clocks = []
    for kind in (LearnerCore, Deaf, Later):
        core = kind(LearnerId("a"), session="s", layout_hash="l")
        core.step(0.0, StepStarted())
        clocks.append(core.clock)
    assert clocks == [1, 0, 0]


def test_all_that_a_core_knows_is_in_its_slots() -> None:
    syncer = SyncerCore(ProtocolSetting(num_learners=2), run_id="run", layout_hash="l")
    learner = LearnerCore(LearnerId("a"), session="s", layout_hash="l")
    syncer.step(0.0, Tick())
    learner.step(0.0, StepStarted())
    assert (vars(syncer), vars(learner)) == ({}, {})
