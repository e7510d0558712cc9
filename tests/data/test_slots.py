"""Slots of sequences, streams and token files: together all of it, from any cursor the same, and what is refused."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

import gruppetto.data
from gruppetto.attach.view import Place
from gruppetto.errors import DataError, LayoutError, SettingError, StateError


class Rider:
    """A learner, as far as data knows one."""

    def __init__(self, slot: int = 0, cursor: int = 0) -> None:
        self.place = Place(incarnation=1, slot=slot, cursor=cursor)
        self.told: list[tuple[int, int]] = []

    def took(self, cursor: int, *, incarnation: int) -> None:
        self.told.append((incarnation, cursor))


class Stream:
    """Numbers below ``size``, with a state; says how many it gave."""

    def __init__(self, size: int) -> None:
        self.size, self.at, self.given = size, 0, 0

    def __iter__(self) -> Iterator[int]:
        while self.at < self.size:
            self.at += 1
            self.given += 1
            yield self.at - 1

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]


def taken(data: gruppetto.data.Slots[Any], count: int, slot: int = 0, cursor: int = 0) -> list[Any]:
    return list(itertools.islice(data.of(Rider(slot, cursor)), count))


KINDS = {
    "sequence": lambda size: list(range(size)),
    "stream": Stream,
    "iterable": range,
    "own streams": lambda size: lambda slot, num_slots: range(slot, size, num_slots),
}


@given(size=st.integers(1, 40), num_slots=st.integers(1, 5), kind=st.sampled_from(sorted(KINDS)), at=st.integers(0, 60))
def test_a_slot_is_the_same_from_any_cursor_and_all_together_are_everything(
    size: int, num_slots: int, kind: str, at: int
) -> None:
    size = max(size, num_slots)  # something for every slot

    def fresh() -> gruppetto.data.Slots[Any]:
        made: Any = KINDS[kind](size)
        # A range has a length and gives any item: without those it can only be gone through.
        return gruppetto.data.slots(_Only(made) if kind == "iterable" else made, num_slots=num_slots, seed=size)

    whole = [taken(fresh(), at + 8, slot) for slot in range(num_slots)]
    for slot in range(num_slots):
        assert taken(fresh(), 8, slot, cursor=at) == whole[slot][at:]
    if kind == "sequence":  # position k of all slots together, in turn
        one_epoch = [whole[k % num_slots][k // num_slots] for k in range(min(size, num_slots * (at + 8)))]
        assert len(set(one_epoch)) == len(one_epoch)
        assert set(one_epoch) == set(range(size)) or len(one_epoch) < size
    else:
        assert all(item % num_slots == slot for slot in range(num_slots) for item in whole[slot])


class _Only:
    def __init__(self, items: Any) -> None:
        self._items = items

    def __iter__(self) -> Iterator[Any]:
        return iter(self._items)


@given(at=st.integers(0, 30), more=st.integers(0, 10), num_slots=st.integers(1, 3))
def test_a_saved_state_saves_the_way_and_changes_nothing(at: int, more: int, num_slots: int) -> None:
    first = gruppetto.data.slots(Stream(10), num_slots=num_slots)
    taken(first, at)
    saved = json.loads(json.dumps(first.state_dict()))
    stream = Stream(10)
    again = gruppetto.data.slots(stream, num_slots=num_slots)
    again.load_state_dict(saved)
    found = taken(again, 4, cursor=at + more)
    assert found == taken(gruppetto.data.slots(Stream(10), num_slots=num_slots), 4, cursor=at + more)
    assert stream.given <= (more + 4) * num_slots + 1
    if at:  # a cursor that lies before it: from the beginning
        assert taken(again, 4, cursor=at - 1) == taken(
            gruppetto.data.slots(Stream(10), num_slots=num_slots), 4, cursor=at - 1
        )


def test_batches_tell_where_they_end() -> None:
    rider = Rider(slot=1, cursor=4)
    batches = gruppetto.data.slots(list(range(100)), num_slots=2).of(rider, batch_size=3)
    assert next(batches).shape == (3,)
    next(batches)
    assert rider.told == [(1, 7), (1, 10)]
    plain = gruppetto.data.slots(list(range(100)), num_slots=2).of(rider, batch_size=2, collate=tuple)
    assert len(next(plain)) == 2


def test_behind_a_loader_only_what_was_used_counts() -> None:
    data = gruppetto.data.slots(list(range(100)), num_slots=2)
    rider = Rider()
    loader = DataLoader(data.serve(rider), batch_size=4)
    first = list(itertools.islice(loader, 3))
    data.used(4)
    data.used(4)
    assert rider.told == [(1, 4), (1, 8)]
    again = next(iter(loader))
    assert torch.equal(again, first[2]), "an iterator begun anew goes on behind what was used"
    with pytest.raises(StateError, match="5 items used, of 4 given"):
        data.used(5)


def test_a_new_life_goes_on_in_its_own_slot() -> None:
    data = gruppetto.data.slots(list(range(100)), num_slots=4)
    rider = Rider()
    items = data.of(rider)
    next(items)
    rider.place = Place(incarnation=2, slot=3, cursor=5)
    assert next(items) == taken(data, 1, slot=3, cursor=5)[0]
    assert rider.told == [(1, 1), (2, 6)]
    asked: list[int] = []
    behind = iter(data.serve(lambda: asked.append(1) or rider))  # type: ignore[func-returns-value]
    assert asked == []
    next(behind)
    assert (asked, data.moved) == ([1], False)
    rider.place = Place(incarnation=3, slot=0, cursor=0)
    assert data.moved


def test_a_token_file_is_windows_of_it(tmp_path: Path) -> None:
    tokens = np.arange(100, dtype=np.uint16)
    tokens.tofile(tmp_path / "train.bin")
    np.save(tmp_path / "train.npy", tokens.astype(np.int32))
    for name in ("train.bin", "train.npy"):
        windows = gruppetto.data.TokenWindows(tmp_path / name, context=8)
        assert len(windows) == 12
        assert windows[11]["labels"].tolist() == list(range(88, 96))
        with pytest.raises(IndexError):
            windows[12]
        (found,) = taken(gruppetto.data.slots(windows, num_slots=12), 1, slot=5)
        assert found["input_ids"].dtype == torch.int64
    for wrong, says in (
        (tmp_path / "none.bin", "cannot be read"),
        (np.zeros((2, 8), np.int64), "one row of whole numbers"),
        (np.zeros(8), "one row of whole numbers"),
        (np.zeros(4, np.int64), "make no window of 8"),
    ):
        with pytest.raises(DataError, match=says):
            gruppetto.data.TokenWindows(wrong, context=8)


@pytest.mark.parametrize(
    ("data", "how", "error", "says"),
    [
        (5, {}, SettingError, "data is a int"),
        ([1], {"num_slots": 0}, SettingError, "num_slots is 0"),
        ([], {}, DataError, "no items"),
        (iter([1]), {}, DataError, "cannot be begun anew"),
    ],
)
def test_what_is_no_data(data: Any, how: dict[str, Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        gruppetto.data.slots(data, **how)


def test_what_cannot_be_read_on_the_way() -> None:
    data = gruppetto.data.slots([1, 2, 3], num_slots=2)
    with pytest.raises(LayoutError, match="slot 2, but the data is cut for 2"):
        next(data.of(Rider(slot=2)))
    told = Rider()
    told.run = {"num_slots": 16}  # type: ignore[attr-defined]
    with pytest.raises(LayoutError, match="the run has 16 slots, but the data is cut for 2"):
        next(data.of(told))  # also for a slot that there is: of the data no slot would have most
    with pytest.raises(SettingError, match="batch_size is 0"):
        data.of(Rider(), batch_size=0)
    with pytest.raises(StateError, match="nobody is served"):
        next(iter(gruppetto.data.slots([1])))
    with pytest.raises(SettingError, match="use num_workers=0"):
        next(iter(DataLoader(data.serve(Rider()), num_workers=1)))
    with pytest.raises(StateError, match="in 16 slots, not 2"):
        data.load_state_dict(gruppetto.data.slots([1]).state_dict())
    with pytest.raises(DataError, match="nothing for slot 3"):
        taken(gruppetto.data.slots(_Only([1, 2]), num_slots=4), 1, slot=3)


def test_streams_of_other_libraries() -> None:
    """With their own state; where they can be cut, every slot has a stream of its own."""
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_dict({"x": list(range(12))})
    streamed = rows.to_iterable_dataset(num_shards=2)
    data = gruppetto.data.slots(streamed, num_slots=2)
    assert [int(row["x"]) for row in taken(data, 8, slot=1)] == [1, 3, 5, 7, 9, 11, 1, 3]
    again = gruppetto.data.slots(rows.to_iterable_dataset(num_shards=2), num_slots=2)
    again.load_state_dict(data.state_dict())
    assert [int(row["x"]) for row in taken(again, 3, slot=1, cursor=8)] == [5, 7, 9]
    own = gruppetto.data.slots(lambda slot, num_slots: streamed.shard(num_slots, slot), num_slots=2)
    assert [int(row["x"]) for row in taken(own, 3, slot=1, cursor=4)] == [10, 11, 6]


class Counter:
    """A stream with a state."""

    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> Iterator[int]:
        while self.at < 6:
            self.at += 1
            yield self.at
        self.at = 0

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]


class At:
    """A learner that stands behind three items."""

    place = Place(incarnation=1, slot=0, cursor=3)

    def took(self, cursor: int, *, incarnation: int) -> None: ...


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        ({}, None),
        (None, "it is a NoneType"),
        ({"state": {}}, r"the stream does not take its state \(KeyError: 'at'\)"),
        ({"state": None}, "incomplete or damaged"),
        ({"index": "x"}, "incomplete or damaged"),
        ({"epoch": -1}, "incomplete or damaged"),
        ({"raw": ...}, "incomplete or damaged"),
        ({"more": 1}, "incomplete or damaged"),
    ],
)
def test_a_state_of_data_that_is_damaged_is_told_in_one_line(damage: dict[str, Any] | None, says: str | None) -> None:
    whole = {"num_slots": 1, "slot": 0, "index": 3, "epoch": 0, "raw": 3, "state": {"at": 3}}
    plain: Any = damage and {key: value for key, value in (whole | damage).items() if value is not ...}
    data = gruppetto.data.slots(Counter(), num_slots=1)
    if says is None:
        data.load_state_dict(whole)
        assert list(itertools.islice(data.of(At()), 4)) == [4, 5, 6, 1]
        return
    with pytest.raises(StateError, match=says):
        data.load_state_dict(plain)
        next(data.of(At()))


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: gruppetto.data.slots({"train": [1], "test": [2]}), "data is a dict with train, test; pass one of"),
        (lambda: gruppetto.data.slots([1], num_slots=1).of(At(), batch_size="2"), "batch_size is '2'"),  # type: ignore[arg-type]
        (lambda: next(gruppetto.data.slots(lambda s, n: None, num_slots=1).of(At())), "gives a NoneType for slot 0"),  # type: ignore[arg-type,return-value]
        (lambda: gruppetto.data.TokenWindows([1, 2], context=1), "is a list; give a numpy array"),  # type: ignore[arg-type]
        (lambda: gruppetto.data.TokenWindows(np.arange(4), context="2"), "context is '2'"),  # type: ignore[arg-type]
        (lambda: gruppetto.data.TokenWindows(np.arange(4), context=0), "context is 0"),
    ],
)
def test_data_of_odd_kinds_is_told_in_one_line(make: Any, says: str) -> None:
    with pytest.raises((DataError, SettingError), match=says):
        make()


# ── learners of many ranks ───────────────────────────────────────────────────────────────────────────────────────


class Rank(Rider):
    """One of ``many``: all of them stand where rank 0 was at the last boundary."""

    def __init__(self, number: int, many: int, slot: int = 0, cursor: int = 0) -> None:
        super().__init__(slot, cursor)
        self.data_share = (number, many)


def step(ranks: list[Rank], batches: list[Iterator[Any]], count: int = 1) -> list[Any]:
    """What each takes in one step of so many batches; then all of them hear from rank 0."""
    found = [[item for _ in range(count) for item in next(own)] for own in batches]
    _, cursor = ranks[0].told[-1]
    for rank in ranks:
        rank.place = rank.place._replace(cursor=cursor)
    return found


@given(
    kind=st.sampled_from(sorted(KINDS)),
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    batch_size=st.integers(1, 3),
    count=st.integers(1, 2),
    slot=st.integers(0, 1),
)
def test_ranks_share_a_slot_and_any_number_of_them_goes_on(
    kind: str, sizes: list[int], batch_size: int, count: int, slot: int
) -> None:
    """Each item once, none left out, in steps of what one rank would have taken with a batch as large."""

    def fresh() -> gruppetto.data.Slots[Any]:
        made: Any = KINDS[kind](50)
        return gruppetto.data.slots(_Only(made) if kind == "iterable" else made, num_slots=2)

    cursor, found, saved = 0, list[Any](), dict[str, Any]()
    for many in sizes:  # the learner begins anew, with another number of ranks
        ranks = [Rank(number, many, slot, cursor) for number in range(many)]
        data = [fresh() for _ in ranks]
        for one in data if saved else ():
            one.load_state_dict(saved)
        batches = [one.of(rank, batch_size=batch_size, collate=list) for one, rank in zip(data, ranks, strict=True)]
        for _ in range(2):
            shares = step(ranks, batches, count)
            found += [item for together in zip(*shares, strict=True) for item in together]
        assert len({rank.place.cursor for rank in ranks} | {rank.told[-1][1] for rank in ranks}) == 1
        cursor, saved = ranks[0].place.cursor, json.loads(json.dumps(data[0].state_dict()))
    assert cursor == len(found) and found == taken(fresh(), cursor, slot)


def test_ranks_that_take_unequally_are_told() -> None:
    ranks = [Rank(number, 2) for number in range(2)]
    data = [gruppetto.data.slots(list(range(100)), num_slots=2) for _ in ranks]
    batches = [one.of(rank, batch_size=size, collate=list) for one, rank, size in zip(data, ranks, (3, 2), strict=True)]
    step(ranks, batches)
    next(batches[0])
    with pytest.raises(LayoutError, match="this rank has taken slot 0 up to item 4, rank 0 up to 6; take equally much"):
        next(batches[1])


def test_behind_a_loader_every_rank_says_what_it_used_itself() -> None:
    data = gruppetto.data.slots(list(range(100)), num_slots=2)
    rank = Rank(1, 3)
    loader = DataLoader(data.serve(rank), batch_size=4)
    first = [int(item) for batch in itertools.islice(loader, 2) for item in batch]
    data.used(4)
    assert rank.told == [(1, 12)] and first == taken(data, 24)[1::3]
    other = gruppetto.data.slots(list(range(100)), num_slots=2).serve(rank, share=(0, 1))
    assert list(itertools.islice(other, 4)) == taken(data, 4), "tensor parallel: all take the same"


@pytest.mark.parametrize("share", [(1, 1), (-1, 2), (0, 0), 3, (True, 2), (0.0, 1)])
def test_a_share_that_is_none_is_refused(share: Any) -> None:
    with pytest.raises(SettingError, match="share is"):
        gruppetto.data.slots([1], num_slots=1).of(Rider(), share=share)
