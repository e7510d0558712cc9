"""The data of whichever slot a learner has leased, from wherever the ledger says it stands.

A learner of a decoupled run has one *slot* of the data at a time, and a *cursor* in it: the first item that no merged
contribution has used. Both are the syncer's to give: a process that is started again, or takes a slot over, begins
where the last merged contribution ended. Nothing that was merged is used again; what was trained on and never merged is
booked as lost or discarded, and may be used again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import Any, Protocol, SupportsIndex, TypeVar, cast

from torch.utils.data import IterableDataset, default_collate, get_worker_info

from gruppetto.attach.view import Place
from gruppetto.data.sources import Indexed, Items, Saved, Source, Streamed
from gruppetto.errors import LayoutError, SettingError, StateError

__all__ = ["Rider", "Slots", "slots"]

Item = TypeVar("Item")
Data = Items[Item] | Iterable[Item] | Callable[[int, int], Iterable[Item]]
"""Anything with the same methods will do."""

DEFAULT_SLOTS = 16
"""As many as a run has by default for up to eight learners (``run.num_slots``)."""
_WHERE = "data.slots"


class Rider(Protocol):
    """What is asked of a learner. :class:`gruppetto.Learner` is one."""

    @property
    def place(self) -> Place: ...
    def took(self, cursor: int, *, incarnation: int) -> None: ...


def slots(data: Data[Item], *, num_slots: int = DEFAULT_SLOTS, seed: int = 0) -> Slots[Item]:
    """``data`` in slots, of which every learner has one. All learners of a run pass the same data, slots and seed.

    ``data``: something with a length that gives any item (a map-style data set, :class:`TokenWindows`), which is
    shuffled and dealt out; something that can be iterated again and again in the same order (a streamed data set, a
    ``StatefulDataLoader``), of which slot s takes every ``num_slots``-th item; or a function (slot, num_slots) that
    makes the slot's own stream, which reads nothing in vain. ``num_slots`` is the run's. Endless: epochs follow each
    other. Raises :class:`SettingError`, and :class:`DataError` for data that cannot be gone through again.

    >>> class Alone:
    ...     place = Place(incarnation=1, slot=3, cursor=2)
    ...     def took(self, cursor, *, incarnation):
    ...         print("used to", cursor)
    >>> items = slots(list(range(100)), num_slots=4).of(Alone(), batch_size=2)
    >>> next(items)
    used to 4
    tensor([23, 49])
    """
    if isinstance(data, Mapping):
        raise SettingError(
            f"data is a {type(data).__name__} with {', '.join(map(str, list(data)[:4]))}",
            where=_WHERE,
            fix="pass one of its data sets",
        )
    if isinstance(num_slots, bool) or not isinstance(num_slots, int) or num_slots < 1:
        raise SettingError(f"num_slots is {num_slots!r}", where=_WHERE, fix="use the run's num_slots, 1 or more")
    if hasattr(data, "__len__") and hasattr(data, "__getitem__"):
        return Slots(Indexed(cast(Items[Item], data), num_slots=num_slots, seed=seed), num_slots=num_slots)
    if callable(data) or hasattr(data, "__iter__"):
        return Slots(Streamed(data, num_slots=num_slots), num_slots=num_slots)
    raise SettingError(
        f"data is a {type(data).__name__}",
        where=_WHERE,
        fix="pass a sequence, an iterable, or a function of a slot",
    )


class Slots(IterableDataset[Item]):
    """Items of the slot that a learner has. Two ways to use it:

    Of a learner of many ranks each takes its share of the slot: of every n items one, where n ranks train on different
    ones. The cursor is of all of them together, so that any number of ranks goes on where another has left off.

    In your own loop, :meth:`of`: what is taken counts as used when the step is done.

    Behind a loader that fetches ahead (``DataLoader`` with ``num_workers=0``, a trainer): :meth:`serve`, and
    :meth:`used` before every optimizer step, with how many of the items it has used. The callbacks of
    :mod:`gruppetto.attach.integrations` do both when they are given ``data=``.

    When the learner gets another slot on the way, the next item is of that one. What a loader has fetched ahead is then
    somebody else's: begin it anew when :attr:`moved` says so, between two steps. Not for several threads.
    """

    def __init__(self, source: Source[Item], *, num_slots: int) -> None:
        super().__init__()
        self._source, self._num_slots = source, num_slots
        self._learner: Rider | None = None
        self._share: tuple[int, int] | None = None
        self._asks: Callable[[], Rider] | None = None
        self._handed: deque[tuple[int, int]] = deque()
        """For each item given and not used yet: the learner's life, and the cursor behind it."""
        self._at: tuple[int, int] | None = None
        """The same for the last one used."""

    def of(
        self,
        learner: Rider,
        *,
        batch_size: int | None = None,
        collate: Callable[[list[Item]], Any] = default_collate,
        share: tuple[int, int] | None = None,
    ) -> Iterator[Any]:
        """Items for ``learner``, one by one or in batches that ``collate`` makes; each counts as used once taken.

        Where a step takes several batches, all of them are its own. The first one raises :class:`LayoutError` for a
        slot that the data is not cut for.

        Of many ranks each calls it, with one ``batch_size``: of its own batches. ``share``: (number, how many) of those
        that train on different data, which is the rank and their number unless the model is tensor parallel.
        """
        if batch_size is not None and (not isinstance(batch_size, SupportsIndex) or batch_size < 1):
            raise SettingError(f"batch_size is {batch_size!r:.80}", where="data.of", fix="use 1 or more, or None")
        self.serve(learner, share=share)
        return self._taken(learner, batch_size, collate)

    def _taken(self, learner: Rider, batch_size: int | None, collate: Callable[[list[Item]], Any]) -> Iterator[Any]:
        items = self._items(learner, batch_size or 1, compares=True)
        while True:
            batch = []
            for _ in range(batch_size or 1):
                item, incarnation, cursor = next(items)
                batch.append(item)
            self._at = incarnation, cursor
            learner.took(cursor, incarnation=incarnation)
            yield batch[0] if batch_size is None else collate(batch)

    def serve(self, learner: Rider | Callable[[], Rider], *, share: tuple[int, int] | None = None) -> Slots[Item]:
        """Be iterated for ``learner`` from now on, from where it stands; a function is asked for it when it is time.
        ``share`` as in :meth:`of`; of many ranks each is to use as many items in a step as the others."""
        self._share = None if share is None else _checked(share)
        self._asks, self._learner = (learner, None) if callable(learner) else (None, learner)
        self._at = None
        self._handed.clear()
        return self

    def __iter__(self) -> Iterator[Item]:
        if self._learner is None and self._asks is not None:
            self._learner = self._asks()
        if self._learner is None:
            raise StateError(
                "nobody is served yet", where="data.Slots", fix="call serve(learner), or give the callback data="
            )
        if get_worker_info() is not None:
            raise SettingError(
                "a loader's worker cannot know which slot its learner has", where="data.Slots", fix="use num_workers=0"
            )
        self._handed.clear()  # what another iterator had fetched ahead goes back
        for item, incarnation, cursor in self._items(self._learner, 1):
            self._handed.append((incarnation, cursor))
            yield item

    @property
    def moved(self) -> bool:
        """The learner has begun a new life since the item given last, and may have another slot."""
        return (
            bool(self._handed) and self._learner is not None and self._handed[-1][0] != self._learner.place.incarnation
        )

    def used(self, items: int) -> None:
        """The step in progress used the next ``items`` that were given. Raises :class:`StateError` for more."""
        if items > len(self._handed):
            raise StateError(
                f"{items} items used, of {len(self._handed)} given", where="data.Slots.used", fix="count what it gave"
            )
        for _ in range(items):
            self._at = self._handed.popleft()
        if self._at is not None and items and self._learner is not None:
            self._learner.took(self._at[1], incarnation=self._at[0])

    def _items(self, learner: Rider, together: int, *, compares: bool = False) -> Iterator[tuple[Item, int, int]]:
        """Each with the life in which it was taken and the cursor behind it; ``together`` at a time of one life.

        ``compares``: of many ranks, whether after the first step of a life rank 0 has come as far as this one.
        """
        told: tuple[int, int] = getattr(learner, "data_share", (0, 1)) if self._share is None else self._share
        number, many = told
        life, began, compared = -1, -1, True
        while True:
            place = learner.place
            if place.incarnation != life:
                life, slot, cursor = place
                began, compared = cursor, many == 1 or not compares
                self._check_slots(learner, slot)
                if self._at is not None and self._at[0] == life:
                    cursor = self._at[1]
                stream = self._source.open(slot, cursor + number, many)
            elif not compared and place.cursor != began:
                compared = True
                if place.cursor != cursor:
                    raise LayoutError(
                        f"this rank has taken slot {place.slot} up to item {cursor}, rank 0 up to {place.cursor}",
                        where=_WHERE,
                        fix="take equally much on all ranks: one batch_size, equally many batches in a step",
                    )
            for _ in range(together):
                item = next(stream)
                cursor += many
                yield item, life, cursor

    def _check_slots(self, learner: Rider, slot: int) -> None:
        """Of too few slots some have no data, of too many some data has no slot. ``run`` is asked for if there is one.

        Whether all learners have the same data and seed nobody can see.
        """
        told = getattr(learner, "run", {}).get("num_slots")
        if told not in (None, self._num_slots) or slot >= self._num_slots:
            its = f"the run has {told} slots" if told is not None else f"the syncer leases slot {slot}"
            raise LayoutError(
                f"{its}, but the data is cut for {self._num_slots}",
                where=_WHERE,
                fix="pass num_slots= as the run has it",
            )

    # ── checkpoints ──────────────────────────────────────────────────────────────────────────────────────────────

    def state_dict(self) -> dict[str, Any]:
        """Where a stream with a state is. It only saves time: where to go on is the syncer's to say."""
        saved = self._source.saved()
        return {"num_slots": self._num_slots} | ({} if saved is None else asdict(saved))

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Before iterating. Raises :class:`StateError` for data cut into other slots, and for what is damaged."""
        where, fix = "data.Slots.load_state_dict", "load what Slots.state_dict gave, unchanged"
        if not isinstance(state_dict, Mapping):
            raise StateError(f"it is a {type(state_dict).__name__}", where=where, fix=fix)
        if state_dict.get("num_slots") != self._num_slots:
            raise StateError(
                f"it is of data in {state_dict.get('num_slots')} slots, not {self._num_slots}",
                where="data.Slots.load_state_dict",
                fix="cut the data as it was",
            )
        if "state" in state_dict:
            try:
                saved = Saved(**{key: value for key, value in state_dict.items() if key != "num_slots"})
                counts = (saved.slot, saved.index, saved.epoch, saved.raw)
                if any(type(count) is not int or count < 0 for count in counts) or not isinstance(saved.state, Mapping):
                    raise TypeError(f"counts {counts!r:.80}")
            except TypeError as wrong:
                raise StateError(f"it is incomplete or damaged ({wrong})", where=where, fix=fix) from wrong
            self._source.take_up(saved)


def _checked(share: object) -> tuple[int, int]:
    match share:
        case (int() as number, int() as many) if not isinstance(number, bool) and 0 <= number < many:
            return number, many
    raise SettingError(
        f"share is {share!r:.80}", where="data.of", fix="pass (number, how many), the first of them (0, n)"
    )
