"""The whole syncer in memory on a real directory: what a new life makes of what the last one left."""

from __future__ import annotations

import shutil

import numpy as np

from gruppetto.runtime.commits import COMMITS, Commit, CommitName
from gruppetto.trace.log import Record, read_trace
from gruppetto.trace.replay import replay


def towards(target):
    target = np.asarray(target, np.float32)
    return lambda theta, _: theta - np.float32(0.1) * (theta - target)


def files(world):
    directory = world.path / "syncer" / COMMITS
    return [directory / name.file for name in sorted(CommitName.parse(f.name) for f in directory.iterdir())]


def kill(world, spoil=lambda: None):
    """kill −9, something happens to the disk, and the next life begins."""
    saved = world.path / "saved"
    shutil.rmtree(saved, ignore_errors=True)
    shutil.copytree(world.path / "syncer", saved)
    world.service.close()
    shutil.rmtree(world.path / "syncer")
    saved.rename(world.path / "syncer")
    spoil()
    world.begin_again()


def begun(world, tensors, **more):
    w = world(tensors(4, 4, 4), num_learners=2, min_quorum=2, num_fragments=3, sync_period=3, overlap_steps=1, **more)
    w.join(*(w.learner(f"l{i}", np.zeros(12), towards(np.arange(12) + i)) for i in range(2)))
    w.step_all(8)
    return w


def go_on(w, rounds=4):
    """Everybody is back, holds what is published, and the run goes on with books that balance."""
    w.join(*w.learners)
    w.step_all(rounds)
    core = w.service.engine.core
    assert core.ledger.balances() and sum(core.ledger.merged_in) == core.ledger.totals.merged
    for learner in w.learners:
        assert tuple(f.version for f in learner.core.fragments) == core.published
        assert np.array_equal(np.concatenate([learner.bases[p] for p in sorted(learner.bases)]), w.theta())
    return core


def test_a_flipped_bit_costs_one_value_and_is_said_everywhere(world, tensors):
    w = begun(world, tensors)
    before = w.service.status()

    def flip():
        newest = files(w)[-1]
        (place,) = (q[0] for q in Commit.read(newest).places if q[0].file == newest.name)
        data = bytearray(newest.read_bytes())
        data[place.offset] ^= 1
        newest.write_bytes(data)

    kill(w, flip)
    status = w.service.status()
    assert status["round"] == before["round"] + 1 and status["tokens"]["lost"] > 0
    kinds = {alarm["kind"]: alarm["text"] for alarm in status["alarms"]}
    assert "its checksum is wrong" in kinds["damaged"] and "no round is lost" in kinds["went-back"]
    core = go_on(w)
    assert core.round == before["round"] + 5
    w.service.close()
    assert replay(w.path / "trace.jsonl").first_difference is None
    notes = [r.data for r in read_trace(w.path / "trace.jsonl") if isinstance(r, Record) and r.name == "recovery"]
    assert len(notes) == 1 and notes[0]["unseen"] == 0 and len(notes[0]["damaged"]) == 1


def test_a_lost_commit_costs_one_round_and_no_number_twice(world, tensors):
    w = begun(world, tensors)
    before = w.service.status()
    kill(w, lambda: files(w)[-1].unlink())
    status = w.service.status()
    assert status["round"] == before["round"] + 1
    assert "is missing" in status["alarms"][0]["text"]
    go_on(w)


def test_between_two_commits_rounds_are_published_and_a_crash_loses_them(world, tensors):
    w = begun(world, tensors, durability="interval", durability_rounds=6)
    assert w.service.status()["round"] == 8
    commit = Commit.read(files(w)[-1])
    assert (commit.state.round, commit.state.reserve) == (6, 5)
    kill(w)
    status = w.service.status()
    assert status["round"] == 6 + 5 + 1
    assert "rounds 7 to 11 may be lost" in status["alarms"][-1]["text"]
    go_on(w)


def test_a_syncer_that_is_told_to_stop_leaves_nothing_behind(world, tensors):
    w = begun(world, tensors, durability="interval", durability_rounds=6)
    theta = w.theta()
    w.service.say_farewell()
    w.service.stop()
    assert w.service.stopped and w.service.status()["waiting_for"] == "nothing: the syncer stops"
    kill(w)
    status = w.service.status()
    assert status["round"] == 8 and status["alarms"] == [] and status["tokens"]["lost"] == 0
    assert np.array_equal(w.theta(), theta)
    assert go_on(w).round == 12
    w.service.close()
    assert replay(w.path / "trace.jsonl").first_difference is None


def test_an_interval_commits_less_often(world, tensors):
    counts = []
    for more in ({}, {"durability": "interval", "durability_rounds": 4}):
        w = begun(world, tensors, **more)
        counts.append(Commit.read(files(w)[-1]).number)
    assert counts == [9, 3]


def test_the_last_round_is_durable_before_anybody_knows_of_it(world, tensors):
    w = begun(world, tensors, durability="interval", durability_rounds=100, rounds=8)
    assert all(learner.core.finished for learner in w.learners)
    kill(w)
    assert w.service.status()["round"] == 8 and w.service.status()["alarms"] == []
