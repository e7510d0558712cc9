"""Whatever is said in whatever order: the syncer never raises, and every invariant holds."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gruppetto.protocol.events import (
    CheckpointRecorded,
    Folded,
    LinkLost,
    OuterStepped,
    Persisted,
    PersistFailed,
    Published,
    Seeded,
    Settle,
    TakeCheckpoint,
    Tick,
)
from gruppetto.protocol.invariants import Observer
from gruppetto.protocol.messages import Answer, Applied, Deferred, Goodbye, Heartbeat, Hello, Marked, Progress
from gruppetto.protocol.settings import ProtocolSetting
from gruppetto.protocol.syncer import SyncerCore

names = st.sampled_from(["a", "b", "c"])
small = st.integers(-1, 6)
counts = st.integers(-3, 60)
lives = {"learner": names, "incarnation": st.integers(0, 3)}
applied = st.lists(
    st.builds(Applied, fragment=small, version=small, at_tokens=counts, kept_tokens=counts), max_size=3
).map(tuple)

anything = st.one_of(
    st.builds(Tick),
    st.builds(
        Hello,
        learner=names,
        session=st.sampled_from(["s", "t"]),
        layout_hash=st.sampled_from(["layout", "other"]),
        run_id=st.sampled_from(["", "run", "else"]),
        incarnation=st.integers(0, 3),
        versions=st.lists(small, max_size=3).map(tuple),
        can_seed=st.booleans(),
        continues=st.sampled_from(["", "s", "t"]),
    ),
    st.builds(
        Progress,
        **lives,
        epoch=st.integers(0, 2),
        clock=counts,
        step_s=st.floats(),
        steps=counts,
        tokens=counts,
        cursor=counts,
        applied=applied,
    ),
    st.builds(
        Answer,
        **lives,
        epoch=st.integers(0, 2),
        round=small,
        fragment=small,
        base_version=small,
        steps=counts,
        tokens=counts,
        total_tokens=counts,
        cursor=counts,
        layout_hash=st.sampled_from(["layout", "other"]),
        finite=st.booleans(),
        parting=st.booleans(),
    ),
    st.builds(Deferred, **lives, epoch=st.integers(0, 2), round=small, expected_s=st.floats()),
    st.builds(TakeCheckpoint, mark=st.sampled_from(["m", "n"])),
    st.builds(CheckpointRecorded, mark=st.sampled_from(["m", "n"]), why=st.sampled_from(["", "disk full"])),
    st.builds(
        Marked,
        **lives,
        epoch=st.integers(0, 2),
        mark=st.sampled_from(["m", "n"]),
        ok=st.booleans(),
        text=st.just("here"),
    ),
    st.builds(Heartbeat, **lives),
    st.builds(Goodbye, **lives),
    st.builds(LinkLost, **lives),
    st.builds(Seeded, **lives),
    st.builds(Folded, round=small, fragment=small, learner=names),
    st.builds(OuterStepped, round=small, not_finite=st.sampled_from([(), (0,), (0, 1)])),
    st.builds(Persisted, round=small),
    st.builds(PersistFailed, round=small, why=st.just("disk full")),
    st.builds(Published, round=small),
    st.builds(Settle),
)

dials = st.fixed_dictionaries(
    {
        "num_learners": st.just(3),
        "num_fragments": st.integers(1, 3),
        "sync_period": st.integers(1, 3),
        "overlap_steps": st.just(0),
        "rounds_in_flight": st.integers(1, 3),
        "min_quorum": st.integers(1, 3),
        "rounds": st.one_of(st.none(), st.integers(1, 4)),
        "grace": st.booleans(),
        "when_short": st.sampled_from(["wait", "degrade"]),
        "stale": st.sampled_from(["reject", "accept"]),
    }
)


@given(dials, st.lists(st.tuples(st.floats(0, 5), anything), max_size=80))
def test_nothing_that_can_be_said_breaks_the_syncer(setting: dict[str, Any], script: list[tuple[float, Any]]) -> None:
    setting["rounds_in_flight"] = min(setting["rounds_in_flight"], setting["sync_period"])
    core = SyncerCore(ProtocolSetting(**setting), run_id="run", layout_hash="layout")
    observer, now = Observer(), 0.0
    for delay, event in script:
        now += delay
        observer.saw(core, event, core.step(now, event))
        if core.wake_at is not None:
            assert core.wake_at > now or core.step(now, Tick()) is not None
