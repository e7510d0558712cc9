"""A recorded run replays to the same decisions; a changed record is found where it stands."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gruppetto.errors import DataError
from gruppetto.protocol import ProtocolSetting
from gruppetto.protocol.events import Tick
from gruppetto.protocol.messages import Heartbeat
from gruppetto.protocol.units import Epoch, Incarnation, LearnerId
from gruppetto.trace.log import Record, TraceWriter, read_trace
from gruppetto.trace.replay import replay
from gruppetto.trace.schema import core_header


def eventful(world: Any) -> None:
    """Joins, a death, a return, a leave, a tick, an end."""
    world.run(4)
    world.kill("b")
    world.run(3)
    world.join("b", session="second life")
    world.run(3)
    world.leave("c")
    world.tell("syncer", Tick())
    world.run(14)
    world.end()


def test_the_same_events_lead_to_the_same_decisions(make_world: Callable[..., Any], tmp_path: Path) -> None:
    world = make_world("a", "b", "c")
    eventful(world)
    assert world.core.round == 20
    result = replay(tmp_path / "trace.jsonl")
    assert result.identical, str(result.first_difference)
    records = [record for record in read_trace(tmp_path / "trace.jsonl") if isinstance(record, Record)]
    assert result.events == sum(record.kind == "in" for record in records) > 100
    assert result.decisions == sum(record.kind == "out" for record in records) > 100


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"grace_s":0.0', b'"grace_s":-0.0'),
        (b'"why":"everybody answered: 3 answers"', b'"why":"everybody answered: 2 answers"'),
        (b'"out":"Persist"', b'"out":"Drop"'),
    ],
)
def test_a_changed_decision_is_found_at_its_line(
    make_world: Callable[..., Any], tmp_path: Path, old: bytes, new: bytes
) -> None:
    eventful(make_world("a", "b", "c"))
    path = tmp_path / "trace.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    changed = next(i for i, line in enumerate(lines) if old in line)
    lines[changed] = lines[changed].replace(old, new)
    path.write_bytes(b"".join(lines))
    difference = replay(path).first_difference
    assert difference is not None
    assert difference.line == changed + 1


def test_a_missing_decision_and_a_missing_event_are_differences(make_world: Callable[..., Any], tmp_path: Path) -> None:
    eventful(make_world("a", "b", "c"))
    path = tmp_path / "trace.jsonl"
    whole = path.read_bytes().splitlines(keepends=True)
    for what in (b'"out":"RoundClosed"', b'"in":"Progress"', b'"in":"Folded"'):
        # Some progress is no news to anybody; take an event that leads to something.
        at = [i for i, line in enumerate(whole[:-1]) if what in line and b'"out"' in whole[i + 1]][9]
        path.write_bytes(b"".join(whole[:at] + whole[at + 1 :]))
        difference = replay(path).first_difference
        assert difference is not None, what
        assert difference.line >= at + 1


def test_a_restart_begins_a_second_life_from_what_was_durable(make_world: Callable[..., Any], tmp_path: Path) -> None:
    first = make_world("a", "b")
    first.run(6)
    first.trace.close()
    # Killed in the middle of a line, and of an event's actions.
    with (tmp_path / "trace.jsonl").open("ab") as file:
        file.write(b'{"t":3.0,"who":"syncer","in":"Heart')
    second = make_world("a", "b", epoch=2, state=first.last_persisted, now=1.0)
    second.run(20)
    second.end()
    result = replay(tmp_path / "trace.jsonl")
    assert result.identical, str(result.first_difference)
    assert result.lives == 2


def test_a_tape_that_ends_between_an_event_and_its_actions_is_no_difference(tmp_path: Path) -> None:
    setting = ProtocolSetting()
    path = tmp_path / "trace.jsonl"
    with TraceWriter(path, core_header(setting, run_id="r", layout_hash="l", epoch=Epoch(1))) as trace:
        trace.event(0.0, "syncer", Heartbeat(learner=LearnerId("a"), incarnation=Incarnation(1)))
    assert replay(path).identical


def test_what_is_no_tape_of_a_syncer_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    with TraceWriter(path, {"run_id": "r"}) as trace:
        trace.note(0.0, "judge", "evaluation", loss=1.0)
    with pytest.raises(DataError, match="holds no event of a syncer"):
        replay(path)
    with TraceWriter(path, {"run_id": "r"}) as trace:
        trace.event(0.0, "syncer", Tick())
    with pytest.raises(DataError, match=r"trace.jsonl:4: an event comes before any header"):
        replay(path)
    path.unlink()
    with TraceWriter(path, {"setting": {"num_learners": 0}}) as trace:
        trace.event(0.0, "syncer", Tick())
    with pytest.raises(DataError, match=r"trace.jsonl:1: the header does not describe a core"):
        replay(path)
