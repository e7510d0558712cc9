"""The whole syncer in memory: real cores, real frames, real store, no sockets."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import numpy as np
import pytest
from tests.runtime.conftest import answer

from gruppetto.errors import ProtocolError
from gruppetto.numerics import synchronous_diloco
from gruppetto.protocol.events import Boundary
from gruppetto.protocol.messages import Progress, Refusal, RefusalReason, Rejection, RejectionReason
from gruppetto.protocol.units import Epoch, Fragment, Incarnation, LearnerId, Round, Version
from gruppetto.runtime.wire import CloseCode, HelloFrame, ProgressFrame
from gruppetto.runtime.worker import ThreadWorker
from gruppetto.trace.log import read_trace
from gruppetto.trace.replay import replay


def towards(target):
    """An inner step: a little of the way to ``target``, in float32."""
    target = np.asarray(target, np.float32)

    def step(theta, _):
        return theta - np.float32(0.1) * (theta - target)

    return step


def idle(theta, _):
    return theta


TARGETS = ([1.0, -2.0, 3.0, 0.5, 7.0], [0.25, 4.0, -1.0, 2.0, -3.0], [9.0, 0.0, 0.5, -0.125, 1.5])


@pytest.mark.parametrize("inner_steps", [1, 4])
def test_with_everybody_every_time_it_is_the_textbook_bit_for_bit(world, tensors, inner_steps):
    w = world(
        tensors(2, 3),
        num_learners=3,
        min_quorum=3,
        num_fragments=1,
        sync_period=inner_steps,
        overlap_steps=0,
        norm_gate="off",  # the textbook has none, and these targets are far from so short a start
        setting={"outer": "paper"},
    )
    start = np.linspace(-1, 1, 5, dtype=np.float32)
    steps = [towards(target) for target in TARGETS]
    w.join(*(w.learner(f"l{i}", start, step) for i, step in enumerate(steps)))
    w.step_all(6 * inner_steps)
    expected = synchronous_diloco(start, steps, 6, inner_steps, lr=0.4, momentum=0.9)
    assert np.array_equal(w.theta(), expected[-1])
    assert w.service.engine.core.ledger.balances()
    for learner in w.learners:
        assert np.array_equal(learner.theta, expected[-1])


def test_the_trace_replays_to_the_same_decisions(world, tensors):
    w = world(tensors(4, 4, 4), num_learners=2, min_quorum=1, num_fragments=3, sync_period=3, overlap_steps=1)
    w.join(*(w.learner(f"l{i}", np.zeros(12), towards(np.arange(12) + i)) for i in range(2)))
    w.step_all(7)
    w.service.close()
    again = replay(w.path / "trace.jsonl")
    assert again.events > 20
    assert again.first_difference is None


def test_a_restart_goes_on_at_the_same_round_with_a_new_epoch(world, tensors):
    w = world(tensors(4, 4), num_learners=2, min_quorum=2, num_fragments=2, sync_period=2, overlap_steps=1)
    w.join(*(w.learner(f"l{i}", np.zeros(8), towards(np.arange(8) + i)) for i in range(2)))
    w.step_all(5)
    before, theta = w.service.status(), w.theta()
    momentum = w.service.borrow(Fragment(1)).outer_state
    w.restart()
    after = w.service.status()
    assert (after["round"], after["epoch"]) == (before["round"], before["epoch"] + 1)
    assert np.array_equal(w.theta(), theta)
    assert np.array_equal(w.service.borrow(Fragment(1)).outer_state[0], momentum[0])
    w.join(*w.learners)
    w.step_all(3)
    assert w.service.status()["round"] == before["round"] + 3
    assert w.service.engine.core.ledger.balances()
    w.service.close()
    assert replay(w.path / "trace.jsonl").first_difference is None


def test_a_finished_run_settles_its_books(world, tensors):
    w = world(tensors(4), num_learners=2, min_quorum=2, num_fragments=1, sync_period=1, overlap_steps=0, rounds=3)
    w.join(*(w.learner(f"l{i}", np.zeros(4), towards(np.arange(4) + i)) for i in range(2)))
    w.step_all(3)
    assert all(learner.core.finished for learner in w.learners)
    w.learners[0].goodbye()
    assert not w.service.over
    w.learners[1].goodbye()
    assert w.service.over and w.service.failure is None
    tokens = w.service.status()["tokens"]
    assert tokens == {"consumed": 60, "merged": 60, "discarded": 0, "lost": 0, "promised": 0, "open": 0}
    w.service.close()
    notes = [r for r in read_trace(w.path / "trace.jsonl") if getattr(r, "name", "") == "ledger"]
    assert notes[-1].data["consumed"] == 60


def test_a_finished_run_does_not_wait_for_ever(world, tensors):
    w = world(tensors(4), num_fragments=1, sync_period=1, overlap_steps=0, rounds=1, setting={"goodbye_s": 5.0})
    w.join(w.learner("a", np.zeros(4), towards(np.ones(4))))
    w.step_all()
    assert not w.service.over
    assert w.service.wake_at <= w.clock.now() + 5.0
    w.clock.advance(5.0)
    w.service.tick()
    assert w.service.over


def test_another_model_is_refused_with_the_first_difference(world, tensors):
    w = world(tensors(4), num_fragments=1, sync_period=1, overlap_steps=0)
    w.join(w.learner("a", np.zeros(4), idle))
    w.join(stranger := w.learner("b", np.zeros(5), idle, layout=tensors(5)))
    refusal = stranger.frames[-1]
    assert isinstance(refusal, Refusal) and refusal.reason is RefusalReason.LAYOUT
    assert "(4,) here" in refusal.text and "(5,) there" in refusal.text
    assert stranger.control.closed.code == CloseCode.REFUSED
    assert set(w.service.status()["learners"]) == {"a"}


def test_a_learner_without_weights_cannot_begin_a_run(world, tensors):
    w = world(tensors(4), num_fragments=1, sync_period=1, overlap_steps=0)
    empty = w.learner("a", np.zeros(4), idle)
    control = empty.link.connect(HelloFrame.of(replace(empty.core.hello(), can_seed=False), w.layout))
    (refusal,) = control.receive()
    assert refusal.reason is RefusalReason.CANNOT_SEED
    assert w.service.engine is None


def test_a_first_learner_that_left_before_seeding_binds_nobody_to_its_model(world, tensors):
    w = world(tensors(4), num_fragments=1, sync_period=1, overlap_steps=0)
    gone = w.learner("a", np.zeros(4), idle)
    gone.link.connect(HelloFrame.of(gone.core.hello(), w.layout)).close()
    w.join(other := w.learner("b", np.full(5, 3.0), idle, layout=tensors(5)))
    assert other.core.synchronised
    assert w.service.status()["learners"]["b"]["state"] == "live"


def test_a_learner_of_another_run_is_refused(world, tensors):
    w = world(tensors(4), num_fragments=1, sync_period=1, overlap_steps=0)
    w.join(w.learner("a", np.zeros(4), idle))
    stray = w.learner("b", np.zeros(4), idle)
    stray.core.run_id = "another"
    w.join(stray)
    assert stray.core.refusal.reason is RefusalReason.WRONG_RUN


def test_a_new_process_replaces_the_old_one_and_the_old_one_is_fenced_off(world, tensors):
    w = world(tensors(4), num_learners=2, num_fragments=1, sync_period=1, overlap_steps=0)
    old = w.learner("a", np.zeros(4), idle)
    w.join(old)
    w.join(w.learner("a", np.zeros(4), idle, session="a-2"))
    assert old.control.closed.code == CloseCode.REPLACED
    w.join(old)
    assert old.core.refusal.reason is RefusalReason.SUPERSEDED
    learner = w.service.status()["learners"]["a"]
    assert (learner["incarnation"], learner["state"]) == (2, "live")


def test_a_reconnecting_process_replaces_its_own_dead_connection(world, tensors):
    w = world(tensors(4), num_fragments=1, sync_period=1, overlap_steps=0)
    a = w.learner("a", np.zeros(4), towards(np.ones(4)))
    w.join(a)
    dead = a.control
    w.join(a)
    assert dead.closed.code == CloseCode.REPLACED
    dead.close()
    assert w.service.status()["learners"]["a"]["state"] == "live"
    w.step_all(2)
    assert w.service.status()["round"] == 2


@pytest.fixture
def waiting(world, tensors):
    """Two learners, both needed; one has made its step, so that the round waits for the other's answer."""
    w = world(tensors(4), num_learners=2, min_quorum=2, num_fragments=1, sync_period=1, overlap_steps=0)
    a, b = (w.learner(name, np.zeros(4), towards(np.ones(4))) for name in "ab")
    w.join(a, b)
    a.step(), b.step()
    return w, a, b


def rejections(learner):
    learner.pump()
    return [frame.reason for frame in learner.frames if isinstance(frame, Rejection)]


def test_what_the_gate_refuses_changes_nothing(waiting):
    w, a, _ = waiting
    body = np.ones(4, np.float32).view(np.uint8)
    for change, reason in (
        ({"incarnation": 7}, RejectionReason.STALE_INCARNATION),
        ({"epoch": 9}, RejectionReason.STALE_EPOCH),
        ({"round": 2}, RejectionReason.NOT_ASKED),
        ({"base_version": Version(-1)}, RejectionReason.STALE_BASE),
        ({"layout_hash": "other"}, RejectionReason.LAYOUT),
        ({"steps": 0}, RejectionReason.NO_WORK),
        ({"tokens": 11}, RejectionReason.IMPLAUSIBLE_COUNTS),
        ({"learner": LearnerId("nobody")}, RejectionReason.UNKNOWN_LEARNER),
    ):
        assert a.link.contribute(answer(a, **change), "fp32", body) == "dropped"
        assert w.service.status()["rejected"][reason.value] == 1
    assert w.service.status()["round"] == 0
    assert not w.theta().any()
    assert w.service.engine.contributions.has_room()


def test_a_body_with_nan_is_rejected_and_told(waiting):
    _, a, _ = waiting
    body = np.float32([1, 2, np.nan, 4]).view(np.uint8)
    assert a.link.contribute(answer(a), "fp32", body) == "dropped"
    assert RejectionReason.NOT_FINITE in rejections(a)


def test_a_duplicate_is_dropped_and_the_first_one_counts(waiting):
    w, a, b = waiting
    once, twice = np.full(4, 1, np.float32), np.full(4, 100, np.float32)
    assert a.link.contribute(answer(a), "fp32", once.view(np.uint8)) == "taken"
    assert a.link.contribute(answer(a), "fp32", twice.view(np.uint8)) == "dropped"
    younger = answer(a, tokens=answer(a).tokens - 1)
    assert w.service.tokens_taken(younger) == answer(a).tokens, "it is told which one is in"
    others = answer(b), answer(a, round=Round(2)), answer(a, epoch=Epoch(9)), answer(a, incarnation=Incarnation(7))
    assert [w.service.tokens_taken(other) for other in others] == [0, 0, 0, 0]
    assert b.link.contribute(answer(b), "fp32", once.view(np.uint8)) == "taken"
    # η = 0.4, μ = 0.9 from rest: Θ = −0.4 · 1.9 · Δ
    assert np.allclose(w.theta(), -0.76)


def test_bodies_of_the_wrong_size_or_encoding_never_reach_the_core(waiting):
    w, a, _ = waiting
    for codec, size in (("fp32", 12), ("fp32", 20), ("fp32", 0), ("bf16", 8), ("zip", 16)):
        with pytest.raises(ProtocolError):
            a.link.contribute(answer(a), codec, bytes(size))
    with pytest.raises(ProtocolError, match="no fragment 3"):
        a.link.contribute(answer(a, fragment=Fragment(3)), "fp32", bytes(16))
    assert w.service.status()["rejected"] == {}


def test_nobody_speaks_for_another(waiting):
    w, a, b = waiting
    progress = a.core.step(w.clock.now(), Boundary())[-1]
    assert isinstance(progress, Progress)
    b.control.send(ProgressFrame(progress=progress))
    assert b.control.closed.code == CloseCode.PROTOCOL


def test_a_result_that_is_not_finite_is_never_published(world, tensors):
    w = world(tensors(2), num_fragments=1, sync_period=1, overlap_steps=0, setting={"outer": "paper"})
    w.join(w.learner("a", np.zeros(2), lambda theta, _: np.full(2, -3e38, np.float32)))
    w.step_all()
    assert np.array_equal(w.theta(), np.zeros(2))
    status = w.service.status()
    assert status["round"] == 1
    assert [alarm["kind"] for alarm in status["alarms"]] == ["not-finite"]
    assert status["tokens"]["merged"] == 0


def test_the_status_has_what_tools_read(world, tensors):
    w = world(tensors(4), num_fragments=1, sync_period=1, overlap_steps=0)
    before = w.service.status()
    w.join(w.learner("a", np.zeros(4), towards(np.ones(4))))
    w.step_all(2)
    status = w.service.status()
    assert before.keys() == status.keys()
    assert before["waiting_for"] == "the first learner"
    assert (status["round"], status["live"], status["taking_part"]) == (2, 1, 1)
    learner = status["learners"]["a"]
    assert (learner["state"], learner["clock"], learner["last_merged_round"]) == ("live", 2, 2)
    assert (learner["steps"], learner["tokens"], learner["metrics"]) == (2, 20, {"loss": 1.0})
    assert status["bytes"]["up"] > 3 * 16


def test_a_learner_that_falls_silent_goes_away(world, tensors):
    w = world(tensors(4), num_fragments=1, sync_period=1, overlap_steps=0, liveness_s=5.0)
    a = w.learner("a", np.zeros(4), idle)
    w.join(a)
    assert w.service.wake_at == pytest.approx(w.clock.now() + 5.0)
    w.clock.advance(5.0)
    w.service.tick()
    assert w.service.status()["learners"]["a"]["state"] == "away"
    a.beat()
    assert w.service.status()["learners"]["a"]["state"] == "live"


def test_what_cannot_be_made_durable_is_not_published_and_tried_again(world, tensors, monkeypatch):
    w = world(tensors(4), num_fragments=1, sync_period=1, overlap_steps=0)
    a = w.learner("a", np.zeros(4), towards(np.ones(4)))
    w.join(a)
    with monkeypatch.context() as broken:

        def full(path, chunks, **more):
            raise OSError(28, "No space left on device")

        broken.setattr("gruppetto.runtime.store.write_durably", full)
        w.step_all()
        status = w.service.status()
        assert status["phase"] == "persisting" and not w.theta().any()
        assert "No space left on device" in status["alarms"][0]["text"]
        a.step()
        assert a.core.clock == 2, "learners train on"
    w.clock.advance(1.0)
    w.service.tick()
    assert w.theta().all() and w.service.status()["round"] == 1


def test_a_mistake_of_ours_stops_the_syncer_instead_of_the_truth(world, tensors, monkeypatch):
    w = world(tensors(4), num_fragments=1, sync_period=1, overlap_steps=0)
    w.join(w.learner("a", np.zeros(4), towards(np.ones(4))))

    def broken(*_):
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(w.service.engine.parameters, "outer_step", broken)
    w.step_all()
    assert w.service.over and "a bug" in str(w.service.failure)
    assert w.service.status()["round"] == 0 and not w.theta().any()


def test_a_slow_reader_blocks_nobody(world, tensors, monkeypatch):
    monkeypatch.setattr("gruppetto.runtime.connection.MAX_WAITING", 16)
    w = world(tensors(4), num_learners=2, num_fragments=1, sync_period=1, overlap_steps=0, liveness_s=1e6)
    fast, slow = (w.learner(name, np.zeros(4), towards(np.ones(4))) for name in ("fast", "slow"))
    w.join(fast, slow)
    for _ in range(30):
        w.clock.advance(1.0)
        fast.step()
        w.settle([fast])
    assert w.service.status()["round"] == 30
    assert slow.control.closed.code == CloseCode.TOO_SLOW


def test_metrics_are_shown_and_kept_and_their_names_can_do_no_harm(world, tensors):
    w = world(tensors(4), num_fragments=1, sync_period=1, overlap_steps=0)
    a = w.learner("a", np.zeros(4), towards(np.ones(4)))
    w.join(a)
    progress = a.core.step(w.clock.now(), Boundary())[-1]
    a.control.send(ProgressFrame(progress=progress, metrics={"loss": float("nan"), "t": 1.0, "who": 2.0, "acc": 0.5}))
    assert w.service.status()["learners"]["a"]["metrics"] == {"loss": None, "t": 1.0, "who": 2.0, "acc": 0.5}
    w.service.close()
    notes = [r for r in read_trace(w.path / "trace.jsonl") if getattr(r, "name", "") == "metrics"]
    assert (notes[-1].who, notes[-1].data) == ("a", {"steps": 0, "loss": "nan", "acc": 0.5})


def test_a_contribution_that_is_not_wanted_needs_no_buffer_and_no_body(waiting):
    w, a, _ = waiting
    for change, reason in (
        ({"learner": LearnerId("stranger")}, "unknown-learner"),
        ({"incarnation": 9}, "stale-incarnation"),
        ({"epoch": 7}, "stale-epoch"),
        ({"round": 0}, "late"),
        ({"round": 5}, "not-asked"),
        ({"layout_hash": "x"}, "layout"),
    ):
        unwanted = answer(a, **change)
        assert not w.service.wants(unwanted)
        assert w.service.turn_away(unwanted) == "dropped"
        assert w.service.status()["rejected"][reason] == 1
    assert w.service.wants(answer(a))
    assert a.link.contribute(answer(a), "fp32", np.ones(4, np.float32).view(np.uint8)) == "taken"
    assert not w.service.wants(answer(a))


@pytest.mark.parametrize("why", ["too many fragments", "a mistake of ours"])
def test_a_model_that_no_run_can_be_made_of_is_refused_for_good(world, tensors, monkeypatch, why):
    def fail(*_):
        raise ZeroDivisionError("a mistake of ours")

    w = world(tensors(4, 4), num_fragments=2, sync_period=1, overlap_steps=0)
    if why == "too many fragments":
        monkeypatch.setattr("gruppetto.numerics.fragments.MAX_FRAGMENTS", 1)
    else:
        monkeypatch.setattr("gruppetto.runtime.engine.merge_rules", fail)
    w.join(a := w.learner("a", np.zeros(8), idle))
    assert isinstance(a.frames[-1], Refusal)
    assert ("num_fragments is 2" if why == "too many fragments" else why) in a.frames[-1].text
    assert a.control.closed.code == CloseCode.REFUSED
    assert w.service.engine is None


def test_a_known_layout_is_compared_by_its_hash_alone(world, tensors, monkeypatch):
    w = world(tensors(4), num_learners=2, num_fragments=1, sync_period=1, overlap_steps=0)
    w.join(w.learner("a", np.zeros(4), idle))
    monkeypatch.setattr(HelloFrame, "to_layout", None)
    w.join(b := w.learner("b", np.zeros(4), idle), c := w.learner("c", np.zeros(5), idle, layout=tensors(5)))
    assert b.core.refusal is None and c.core.refusal.reason is RefusalReason.LAYOUT


def test_refusals_do_not_fill_the_log(world, tensors, caplog):
    w = world(tensors(4), num_fragments=1, sync_period=1, overlap_steps=0)
    w.join(w.learner("a", np.zeros(4), idle))
    stray = w.learner("b", np.zeros(5), idle, layout=tensors(5))
    with caplog.at_level("INFO", "gruppetto.syncer"):
        for _ in range(99):
            stray.connect()
    said = [record.getMessage() for record in caplog.records if "refused" in record.getMessage()]
    assert len(said) == 2 and said[1].endswith("(10 times by now)")


def test_nothing_is_decided_after_the_end(waiting):
    w, a, b = waiting
    links, bodies = (a.link, b.link), np.ones(4, np.float32).view(np.uint8)
    answers = answer(a), answer(b)
    w.service.close()
    before = w.service.engine.core.ledger.totals.merged
    for link, late in zip(links, answers, strict=True):
        assert link.contribute(late, "fp32", bodies) == "dropped"
    assert w.service.engine.core.round == 0 and w.service.engine.core.ledger.totals.merged == before


def test_a_closed_worker_reports_to_nobody():
    async def test():
        worker, results = ThreadWorker("test", asyncio.get_running_loop()), []
        worker.submit(lambda: 1, results.append, results.append)
        worker.submit(lambda: 1 // 0, results.append, results.append)
        worker.close()
        for _ in range(3):
            await asyncio.sleep(0)
        assert results == []

    asyncio.run(test())
