"""Fragments dealt out to shards: nobody gets two, nothing is left over, and all have about as much."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gruppetto.errors import LayoutError, SettingError
from gruppetto.numerics.deal import Shard, check_whole, deal, offsets_of, part_of
from gruppetto.numerics.fragments import fragment
from gruppetto.numerics.layout import Layout, TensorSpec
from gruppetto.protocol.schedule import Schedule
from gruppetto.protocol.units import Round


def layout_of(sizes):
    return Layout(tensors=tuple(TensorSpec(name=f"w{i}", shape=(n,), dtype="float32") for i, n in enumerate(sizes)))


cuts = st.builds(
    lambda sizes, num_fragments, how: (layout_of(sizes), fragment(layout_of(sizes), num_fragments, how)),
    st.lists(st.integers(1, 500), min_size=1, max_size=30),
    st.integers(1, 24),
    st.sampled_from(["balanced", "tensor", "layer"]),
)


@given(cuts, st.data())
def test_every_fragment_has_one_shard_and_loads_differ_by_no_more_than_a_group_does(cut, data):
    _, whole = cut
    of = data.draw(st.integers(1, whole.num_fragments))
    hands = deal(whole, of)
    assert sorted(p for hand in hands for p in hand) == list(range(whole.num_fragments))
    # They take turns: of as many fragments as there are shards, each has one.
    assert all(len(hand) == len({p // of for p in hand}) and list(hand) == sorted(hand) for hand in hands)
    sizes = [spec.numel for spec in whole.fragments]
    sizes += [0] * (-len(sizes) % of)
    groups = [sizes[first : first + of] for first in range(0, len(sizes), of)]
    load = [sum(sizes[p] for p in hand) for hand in hands]
    assert max(load) - min(load) <= max(max(group) - min(group) for group in groups)


@given(cuts, st.integers(1, 40), st.data())
def test_together_the_shards_are_due_what_one_syncer_is(cut, sync_period, data):
    _, whole = cut
    of, first = data.draw(st.integers(1, whole.num_fragments)), data.draw(st.integers(0, 100))
    alone = Schedule(num_fragments=whole.num_fragments, sync_period=sync_period)
    hands = deal(whole, of)
    schedules = [
        Schedule(
            num_fragments=len(hands[k - 1]),
            sync_period=sync_period,
            offsets=offsets_of(whole, Shard(number=k, of=of), sync_period),
        )
        for k in range(1, of + 1)
    ]
    for t in range(first, first + sync_period):
        due = sorted(hands[k][q] for k, schedule in enumerate(schedules) for q in schedule.due(Round(t)))
        assert tuple(due) == alone.due(Round(t))
    for k, schedule in enumerate(schedules):
        for q, p in enumerate(hands[k]):
            assert schedule.next_due(q, Round(first)) == alone.next_due(p, Round(first))
        window = {hands[k][q] for q in schedule.due_within(Round(first), 3)}
        assert window == set(alone.due_within(Round(first), 3)) & set(hands[k])


@given(cuts, st.data())
def test_the_parts_make_up_the_model_and_a_wrong_map_is_named(cut, data):
    layout, whole = cut
    of = data.draw(st.integers(1, whole.num_fragments))
    parts = {f"shard {k}/{of}": part_of(whole, Shard(number=k, of=of)) for k in range(1, of + 1)}
    check_whole(layout, parts)
    assert sum(part.num_fragments for part in parts.values()) == whole.num_fragments
    assert all([spec.index for spec in p.fragments] == list(range(p.num_fragments)) for p in parts.values())
    gone = data.draw(st.sampled_from(sorted(parts)))
    with pytest.raises(LayoutError, match=r"shards: nobody has elements \d+ to \d+ of 'w\d+'; start all"):
        check_whole(layout, {who: part for who, part in parts.items() if who != gone})
    with pytest.raises(LayoutError, match=r"shards: .* and .* both have 'w\d+'; start all"):
        check_whole(layout, {**parts, "another": parts[gone]})


@pytest.mark.parametrize("text", ["", "1", "0/2", "3/2", "1/0", "1/2/3", "-1/2", "one/two", "1/257", "1/9999999"])
def test_what_is_no_shard_is_refused(text):
    with pytest.raises(SettingError, match="shard: is "):
        Shard.parse(text)


def test_more_shards_than_fragments_are_refused():
    whole = fragment(layout_of([4, 4]), 2)
    with pytest.raises(SettingError, match=r"syncer.shards: 3 shards for 2 fragments; use 2 or fewer"):
        deal(whole, 3)


def test_offsets_that_fit_nothing_are_refused():
    plain = Schedule(num_fragments=2, sync_period=4)
    for offsets in ((0,), (1, 0), (0, 4), (-1, 0)):
        with pytest.raises(SettingError, match=r"schedule.offsets"):
            replace(plain, offsets=offsets)
