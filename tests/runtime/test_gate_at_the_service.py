"""The gate with real bodies: norms are taken by who receives them, whatever a learner says, and everybody is told."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import pytest

from gruppetto.errors import SettingError
from gruppetto.numerics import DOWNLINKS, OUTER_PRESETS, Layout, TensorSpec
from gruppetto.protocol.messages import Answer, ClipCause, Clipping, Rejection, RejectionReason
from gruppetto.protocol.state import SyncerState
from gruppetto.protocol.units import Fragment, Version
from gruppetto.runtime import parameters
from gruppetto.runtime.cut import cut, merge_rules
from gruppetto.runtime.parameters import Parameters
from gruppetto.runtime.wire import decode_answer, encode_answer
from gruppetto.trace.log import read_trace

ONES = np.ones(4, np.float32)


def towards(target, rate=0.1):
    return lambda theta, cursor: theta + rate * (target - theta)


def answer(learner, round=1, /, **change):
    fields = {
        "learner": learner.core.learner,
        "incarnation": learner.core.incarnation,
        "epoch": learner.core.epoch,
        "round": round,
        "fragment": Fragment(0),
        "base_version": Version(round - 1),
        "steps": 1,
        "tokens": 10,
        "total_tokens": 10 * round,
        "cursor": round,
        "layout_hash": learner.layout.layout_hash,
    }
    return Answer(**{**fields, **change})


def waiting(world, tensors, **setting):
    """Two learners whose weights are all ones (so ‖Θ‖ = 2), both needed; both have made a step."""
    w = world(tensors(4), num_learners=2, min_quorum=2, num_fragments=1, sync_period=1, overlap_steps=0, **setting)
    a, b = (w.learner(name, ONES, towards(0 * ONES)) for name in "ab")
    w.join(a, b)
    a.step(), b.step()
    return w, a, b


def test_what_a_learner_says_of_its_own_norms_is_not_heard(world, tensors):
    _, a, _ = waiting(world, tensors)
    said = answer(a, norms=(1e-9,), finite=False)
    assert decode_answer(encode_answer(said)) == replace(said, norms=(), finite=True)


def test_a_huge_contribution_is_clipped_to_the_values_in_the_first_round(world, tensors):
    w, a, b = waiting(world, tensors)
    huge, fine = 1000 * ONES, 0.1 * ONES
    assert a.link.contribute(answer(a, norms=(0.2,)), "fp32", huge.view(np.uint8)) == "taken"
    assert b.link.contribute(answer(b), "fp32", fine.view(np.uint8)) == "taken"
    # The huge one counts as if it changed the values by a tenth. η = 0.4, μ = 0.9 from rest: Θ = 1 − 0.76 · Δ.
    np.testing.assert_allclose(w.theta(), 1 - 0.76 * (0.1 + 0.1) / 2, rtol=1e-6)
    status = w.service.status()
    assert status["clipped"] == {"norm": 1} and status["rejected"] == {}
    assert status["learners"]["a"]["norm"] == pytest.approx(2000.0)
    assert status["learners"]["b"]["norm"] == pytest.approx(0.2)
    a.pump()
    [told] = [frame for frame in a.frames if isinstance(frame, Clipping)]
    assert (told.cause, told.factor) == (ClipCause.NORM, pytest.approx(10_000.0))
    assert a.core.clippings == {"norm": 1}


def test_or_refused(world, tensors):
    w = world(
        tensors(4), num_learners=3, min_quorum=2, num_fragments=1, sync_period=1, overlap_steps=0, norm_gate="reject"
    )
    a, b, c = (w.learner(name, ONES, towards(0 * ONES)) for name in "abc")
    w.join(a, b, c)
    a.step(), b.step(), c.step()
    assert a.link.contribute(answer(a), "fp32", (1000 * ONES).view(np.uint8)) == "dropped"
    assert w.service.status()["rejected"] == {"norm": 1}
    for learner in (b, c):
        assert learner.link.contribute(answer(learner), "fp32", (0.1 * ONES).view(np.uint8)) == "taken"
    np.testing.assert_allclose(w.theta(), 1 - 0.76 * 0.1, rtol=1e-6)
    a.pump()
    assert RejectionReason.NORM in [frame.reason for frame in a.frames if isinstance(frame, Rejection)]


def test_contributions_are_compared_with_the_momentum(world, tensors):
    w, a, b = waiting(world, tensors)
    deliver = (0.1 * ONES).view(np.uint8), (-0.1 * ONES).view(np.uint8)
    for learner, body in ((a, deliver[0]), (b, deliver[0])):
        learner.link.contribute(answer(learner), "fp32", body)
    assert w.service.status()["learners"]["a"]["cosine"] is None  # there was no momentum yet
    w.settle([a, b])
    a.step(), b.step()
    for learner, body in zip((a, b), deliver, strict=True):
        learner.link.contribute(answer(learner, 2), "fp32", body)
    learners = w.service.status()["learners"]
    assert (learners["a"]["cosine"], learners["b"]["cosine"]) == (pytest.approx(1.0), pytest.approx(-1.0))


def test_yardsticks_are_in_the_trace_and_survive_a_restart(world, tensors):
    w, a, b = waiting(world, tensors)
    for learner in (a, b):
        learner.link.contribute(answer(learner), "fp32", (0.1 * ONES).view(np.uint8))
    assert w.service.engine.core.yardsticks.of(Fragment(0)) == (pytest.approx(0.2),)
    w.restart()
    assert w.service.engine.core.yardsticks.of(Fragment(0)) == (pytest.approx(0.2),)
    lines = list(read_trace(w.path / "trace.jsonl"))
    answers = [line.data for line in lines if getattr(line, "name", "") == "Answer"]
    assert [data["norms"] for data in answers] == [[pytest.approx(0.2)]] * 2


def test_a_state_of_an_older_version_gets_its_yardsticks_from_the_values(world, tensors, monkeypatch):
    w, *_ = waiting(world, tensors)
    old = replace(w.service.engine.core.snapshot(), value_norms=(), yardsticks=())
    monkeypatch.setattr("gruppetto.runtime.store.Store.state", property(lambda store: old))
    w.restart()
    assert w.service.engine.core.yardsticks.of(Fragment(0)) == (pytest.approx(0.2),)


def test_a_state_without_the_new_fields_is_read(world, tensors):
    w, *_ = waiting(world, tensors)
    plain = msgspec.to_builtins(w.service.engine.core.snapshot())
    for new in ("clipped", "yardsticks", "value_norms", "usual_share", "usual_weight"):
        del plain[new]
    state = msgspec.convert(plain, SyncerState)
    assert (state.clipped, state.yardsticks, state.value_norms, state.usual_weight) == ((), (), (), 0.0)


def test_a_piece_that_begins_at_zero_has_the_yardstick_of_its_fragment_or_of_the_model():
    sizes = (8, 4, 4)
    layout = Layout(tensors=tuple(TensorSpec(name=f"w{i}", shape=(n,), dtype="float32") for i, n in enumerate(sizes)))
    parts = cut(layout, 2)
    made = Parameters(parts, rules=merge_rules(layout), outer=OUTER_PRESETS["paper"], downlink=DOWNLINKS["fp32"])
    assert [[piece.name for piece in spec.pieces] for spec in parts.fragments] == [["w0"], ["w1", "w2"]]
    made.restore(Fragment(0), Version(0), np.zeros(8, np.float32), ())
    made.restore(Fragment(1), Version(0), np.float32([0, 0, 0, 0, 3, 3, 3, 3]), ())
    whole, half = 6 / np.sqrt(16), 6 / np.sqrt(8)
    assert made.value_norms() == (
        (pytest.approx(whole * np.sqrt(8)),),
        (pytest.approx(half * 2), pytest.approx(half * 2)),
    )


def test_more_than_may_be_gathered_is_refused_with_the_fix(monkeypatch):
    layout = Layout(tensors=(TensorSpec(name="w", shape=(8,), dtype="float32"),))
    merge = (("w", "median"),)
    rules = merge_rules(layout, merge)
    made = Parameters(
        cut(layout, 1, merge=merge), rules=rules, outer=OUTER_PRESETS["paper"], downlink=DOWNLINKS["fp32"]
    )
    monkeypatch.setattr(parameters, "MOST_GATHERED_BYTES", 4 * 8 * 16)
    made.check_gathering(16)
    with pytest.raises(SettingError, match=r"merge.rules: 'w' and others would gather .* use clipped-rda"):
        made.check_gathering(17)
