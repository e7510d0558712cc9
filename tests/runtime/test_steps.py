"""Learners that follow, miss, forget and mistake steps, against the syncer's own values."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gruppetto.errors import ConnectionLost
from gruppetto.numerics import CODECS, DOWNLINKS, OUTER_PRESETS, Layout, TensorSpec
from gruppetto.numerics.downlink import REST, take_step
from gruppetto.runtime.cut import cut, merge_rules
from gruppetto.runtime.headers import BASE_HEADER, CHECKSUM_HEADER, CODEC_HEADER, RESULT_HEADER
from gruppetto.runtime.intake import Intake
from gruppetto.runtime.leases import LeasePool
from gruppetto.runtime.parameters import Parameters
from gruppetto.runtime.steps import SLICE_NUMEL, Held, outgoing
from gruppetto.runtime.wire import checksum

NUMEL = 300
LAYOUT = Layout(tensors=(TensorSpec(name="w", shape=(NUMEL,), dtype="float32"),))
PARTS, RULES = cut(LAYOUT, 1, "balanced", ((".*", "mean"),)), merge_rules(LAYOUT, ((".*", "mean"),))


def parameters(downlink="delta", preset="paper"):
    return Parameters(PARTS, rules=RULES, outer=OUTER_PRESETS[preset], downlink=DOWNLINKS[downlink])


def body_of(values):
    data = CODECS["fp32"].encode(np.asarray(values, np.float32))
    with Intake(CODECS["fp32"], len(data), 1).open(PARTS.fragments[0], len(data), checksum(data)) as upload:
        upload.write(data)
        return upload.finish()


def seeded(**more):
    made = parameters(**more)
    made.seed(0, body_of(np.linspace(-1, 1, NUMEL)))
    made.publish([(0, 0)])
    return made


def one_round(made, delta, t):
    made.fold(0, body_of(delta), CODECS["fp32"], 1.0)
    report = made.outer_step([0], t)
    if not report.not_finite:
        made.publish([(0, t)])
    return report


class Follower:
    """A learner's end of a download, without the network."""

    def __init__(self):
        self.pool, self.held = LeasePool(), None
        self.wholes = self.steps = 0

    def pull(self, made):
        value = made.current(0)
        sent = outgoing(value, made.downlink, "" if self.held is None else self.held.name)
        assert sent.headers[CHECKSUM_HEADER] == f"{checksum(sent.body):08x}"
        room = self.pool.lend(NUMEL)
        if BASE_HEADER in sent.headers:
            asyncio.run(self.held.follow(sent.body, sent.headers, room.values))
            name = sent.headers[RESULT_HEADER]
            self.steps += 1
        else:
            CODECS[sent.headers[CODEC_HEADER]].decode(sent.body, NUMEL, room.values)
            name = f"{checksum(room.values.view(np.uint8)):08x}"
            self.wholes += 1
        if self.held is not None:
            self.held.release()
        self.held = Held(values=room, name=name)
        assert np.array_equal(room.values.view(np.uint32), value.theta.view(np.uint32))
        made.release(value)

    def forget(self):
        self.held = None


@given(
    st.sampled_from(["delta", "delta-int4"]),
    st.sampled_from(["paper", "finetune"]),
    st.lists(st.sampled_from(["round", "idle", "restart", "pull a", "pull b", "a forgets"]), max_size=25),
)
def test_all_that_is_pulled_is_the_published_value_whatever_was_missed_before(downlink, preset, moves):
    made, a, b = seeded(downlink=downlink, preset=preset), Follower(), Follower()
    rng = np.random.default_rng(len(moves))
    t = 0
    for move in moves:
        match move:
            case "round":
                t += 1
                one_round(made, rng.standard_normal(NUMEL), t)
            case "idle":  # a round to which nobody has contributed: the old value with a new version
                t += 1
                made.publish([(0, t)])
            case "restart":
                durable = {p: (made.current(p).version, *kept) for p, kept in made.pending([0]).items()}
                made = parameters(downlink, preset)
                for p, (version, theta, kept) in durable.items():
                    made.restore(p, version, theta, kept)
            case "pull a":
                a.pull(made)
            case "pull b":
                b.pull(made)
            case _:
                a.forget()
    a.pull(made)
    b.pull(made)
    assert a.held.name == b.held.name


def test_who_misses_nothing_gets_steps_alone_and_who_misses_one_gets_a_whole():
    made, always, seldom = seeded(), Follower(), Follower()
    for t in range(1, 9):
        always.pull(made)
        if t % 2:
            seldom.pull(made)
        one_round(made, np.full(NUMEL, t), t)
    assert (always.wholes, always.steps) == (1, 7) and (seldom.wholes, seldom.steps) == (4, 0)


def test_what_steps_leave_unsaid_outlives_the_syncer():
    """Two lives make the same values as one."""
    deltas = [np.random.default_rng(t).standard_normal(NUMEL) for t in range(8)]
    one, other = seeded(), seeded()
    for t, delta in enumerate(deltas, start=1):
        one_round(one, delta, t)
        one_round(other, delta, t)
        ((theta, kept),) = other.pending([0]).values()
        assert len(kept) == 2 and np.any(kept[-1])
        other = parameters()
        other.restore(0, t, theta, kept)
        assert np.array_equal(one._current[0].theta, other._current[0].theta)


def test_a_state_written_with_another_downlink_goes_on():
    made = seeded(downlink="fp32")
    one_round(made, np.ones(NUMEL), 1)
    for downlink in ("delta", "fp32", "delta"):
        ((theta, kept),) = made.pending([0]).values()
        made = parameters(downlink)
        made.restore(0, 1, theta, kept)
        assert np.array_equal(made._current[0].theta, theta) and len(made._current[0].outer_state) == 1
        assert made._current[0].rest is None or downlink == "delta"
        one_round(made, np.ones(NUMEL), 2)


def test_published_values_stay_beside_what_exact_steps_would_make_of_them():
    """After many rounds no further off than one step's error: nothing accumulates."""
    exact, coarse = seeded(downlink="fp32"), seeded(downlink="delta-int4")
    rng = np.random.default_rng(0)
    for t in range(1, 200):
        delta = rng.standard_normal(NUMEL) * 1e-2
        one_round(exact, delta, t)
        one_round(coarse, delta, t)
    value = coarse._current[0]
    rest = REST.decode(value.rest, NUMEL)
    off = np.abs(value.theta + rest - exact._current[0].theta).max()
    assert 10 * off < np.abs(rest).max() < 1e-2


def test_a_rest_that_was_written_with_every_bit_is_gone_on_with():
    made, rest = seeded(), np.random.default_rng(0).standard_normal(NUMEL).astype(np.float32)
    one_round(made, np.ones(NUMEL), 1)
    ((theta, (momentum, _)),) = made.pending([0]).values()
    made.restore(0, 1, theta, (momentum, rest))
    assert np.array_equal(made._current[0].rest, REST.encode(rest))


def test_a_step_that_its_words_cannot_say_is_thrown_away_with_its_rest():
    """The sum would be finite; the words, whose scale is rounded up, are not."""
    made = seeded(preset="finetune")
    one_round(made, np.full(NUMEL, -2e38), 1)
    theta, rest = made._current[0].theta.copy(), made._current[0].rest.copy()
    assert np.isfinite(theta - np.float32(3.4e38)).all()
    assert one_round(made, np.full(NUMEL, 3.4e38), 2).not_finite == (0,)
    assert made._current[0].version == 1
    assert np.array_equal(made._current[0].theta, theta) and np.array_equal(made._current[0].rest, rest)
    assert one_round(made, np.ones(NUMEL), 3).not_finite == ()


def test_a_step_from_another_value_than_thought_is_noticed():
    made, one = seeded(), Follower()
    one.pull(made)
    one_round(made, np.ones(NUMEL), 1)
    one.held.values.values[7] += 1
    with pytest.raises(ConnectionLost, match="leads elsewhere"):
        one.pull(made)


def test_a_long_step_is_taken_in_slices_without_a_seam():
    numel = 2 * SLICE_NUMEL + 77
    rng = np.random.default_rng(0)
    before, after = (rng.standard_normal(numel).astype(np.float32) for _ in range(2))
    words, _, _ = take_step(before, after, None, CODECS["int8"])
    pool = LeasePool()
    base, room = pool.lend(numel), pool.lend(numel)
    base.values[:] = before
    headers = {BASE_HEADER: "0", CODEC_HEADER: "int8", RESULT_HEADER: f"{checksum(after.view(np.uint8)):08x}"}
    asyncio.run(Held(values=base, name="0").follow(words, headers, room.values))
    assert np.array_equal(room.values, after)
