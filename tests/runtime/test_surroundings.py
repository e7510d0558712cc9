"""What a syncer sees beside the protocol becomes an alarm, on the trace too, and is over when it is over."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from gruppetto.protocol.messages import Heartbeat, Progress
from gruppetto.runtime.surroundings import LEAST_ROOM_BYTES, Surroundings
from gruppetto.runtime.wire import ProgressFrame, encode_frame
from gruppetto.trace.replay import replay


def kinds(w) -> list[str]:
    return [alarm["kind"] for alarm in w.service.status()["alarms"] if alarm["over_t"] is None]


def test_a_full_disk_a_wrong_clock_and_a_loss_that_rises(world, tensors):
    w = world(tensors(4, 4), num_learners=2, min_quorum=2, num_fragments=2, sync_period=4)
    w.join(*(w.learner(name, np.ones(8), lambda theta, cursor: theta * 0.9) for name in ("a", "b")))
    w.step_all(3)
    wall_s, free = 1000.0, LEAST_ROOM_BYTES
    w.service.surroundings = Surroundings(w.path, wall_s=lambda: wall_s, free_bytes=lambda place: free)
    (core,) = (learner.core for learner in w.learners if learner.core.learner == "a")
    beat = encode_frame(Heartbeat(learner=core.learner, incarnation=core.incarnation))

    for said in (None, "", "noon", "nan", "1e999"):
        w.service.heartbeat(beat, wall_s=said)
    w.service.seen.metrics["a"] = {"loss": 2.0}
    w.service.look_around()
    assert kinds(w) == ["disk-filling"]

    free = 10 * LEAST_ROOM_BYTES
    w.service.heartbeat(beat, wall_s="940")
    w.service.seen.metrics["a"] = {"loss": float("nan")}
    w.service.look_around()
    assert sorted(kinds(w)) == ["clock-skew", "diverges"]
    assert "the clock of a is 60 s behind the syncer's." in str(w.service.status()["alarms"])

    w.service.heartbeat(beat, wall_s="1000.2")
    w.service.seen.metrics["a"] = {"loss": 2.1}
    w.service.look_around()
    assert kinds(w) == []
    w.service.close()
    assert replay(w.path / "trace.jsonl").first_difference is None


def test_a_disk_that_cannot_be_asked(tmp_path: Path) -> None:
    around = Surroundings(tmp_path / "gone")
    assert around.look([], {}, numel=1).free_bytes is None
    assert (Surroundings(tmp_path).look([], {}, numel=1).free_bytes or 0) > 0


def test_heartbeats_that_had_to_wait_are_no_slow_clock(tmp_path: Path) -> None:
    now = [1000.0]
    around = Surroundings(tmp_path, wall_s=lambda: now[0])
    around.heard("anna", "1000.0")
    now[0] = 1030.0  # the syncer, or the link, stood still
    for sent in ("1001.0", "1002.0", "1003.0"):
        around.heard("anna", sent)
    assert around.look(["anna"], {}, numel=1).skews_s == (("anna", 0.0),)
    for late in (1031.0, 1032.0, 1033.0, 1034.0, 1035.0):
        now[0] = late
        around.heard("anna", str(late - 60.0))
    assert around.look(["anna"], {}, numel=1).skews_s == (("anna", -60.0),)


def test_a_loss_that_is_no_number_is_an_alarm_at_once_and_over_when_it_is_one_again(world, tensors):
    w = world(tensors(4, 4), num_learners=2, min_quorum=2, num_fragments=2, sync_period=4)
    w.join(*(w.learner(name, np.ones(8), lambda theta, cursor: theta * 0.9) for name in ("a", "b")))
    w.step_all(3)
    (a,) = (learner for learner in w.learners if learner.core.learner == "a")
    said = Progress(
        learner="a", incarnation=1, epoch=a.core.epoch, clock=a.core.clock, step_s=0.1, steps=9, tokens=90, cursor=9
    )
    for loss, holding in ((2.0, []), (math.nan, ["diverges"]), (-math.inf, ["diverges"]), (2.1, [])):
        a.control.send(ProgressFrame(progress=said, metrics={"loss": loss}))
        assert kinds(w) == holding
    w.service.close()
    assert replay(w.path / "trace.jsonl").first_difference is None
    strict = json.JSONDecoder(parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    assert [strict.decode(line) for line in (w.path / "trace.jsonl").read_text().splitlines()]
