"""Where the items of a slot come from: item number i of slot s is always the same one, whoever asks.

That is all a takeover needs: the syncer remembers a slot's cursor, one number, and whoever has the slot goes on there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar, cast, runtime_checkable

from gruppetto.errors import DataError, StateError
from gruppetto.train.order import Slot

__all__ = ["Indexed", "Items", "Saved", "Source", "Stateful", "Streamed"]

log = logging.getLogger("gruppetto.data")

Item = TypeVar("Item")
Item_co = TypeVar("Item_co", covariant=True)


class Items(Protocol[Item_co]):
    """Something with a length that gives any item: a list, a map-style data set."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Item_co: ...


Gives = TypeVar("Gives", covariant=True)

AHEAD = 64
"""Places drawn at a time."""
WORTH_SAYING = 100_000
"""Items passed over, of which a person may wonder what takes so long."""


@runtime_checkable
class Stateful(Protocol):
    """Streams that can say where they are: torchdata's ``StatefulDataLoader``, streamed data sets of Hugging Face."""

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state_dict: dict[str, Any]) -> Any: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """Where a stream was when ``index`` items of ``slot`` had been taken from it."""

    slot: int
    index: int
    epoch: int
    raw: int
    """Items of the stream itself in this epoch, of all slots."""
    state: dict[str, Any]


class Source(Protocol[Gives]):
    """The endless items of every slot."""

    def open(self, slot: int, index: int, every: int = 1) -> Iterator[Gives]:
        """Items number ``index``, ``index`` + ``every``, ... of a slot."""
        ...

    def saved(self) -> Saved | None:
        """Where it is, after the item given last; None if that is worth nothing."""
        ...

    def take_up(self, saved: Saved) -> None:
        """Start there, if what is opened next lies behind it."""
        ...


class Indexed(Generic[Item]):
    """What has a length and gives any item: shuffled anew in every epoch, and dealt out to the slots.

    Together all slots go through everything once in an epoch, and no two have an item in common.

    >>> source = Indexed("abcdef", num_slots=2, seed=0)
    >>> [[next(items) for _ in range(3)] for items in (source.open(0, 0), source.open(1, 0))]
    [['a', 'd', 'b'], ['c', 'f', 'e']]
    >>> next(source.open(0, 2))
    'b'
    """

    def __init__(self, items: Items[Item], *, num_slots: int, seed: int) -> None:
        if len(items) == 0:
            raise DataError("the data has no items", where="data.slots", fix="give some")
        self._items, self._num_slots, self._seed = items, num_slots, seed

    def open(self, slot: int, index: int, every: int = 1) -> Iterator[Item]:
        order = Slot(seed=self._seed, slot=slot, num_slots=self._num_slots, num_windows=len(self._items))
        while True:
            for place in order.windows(index, AHEAD * every)[::every]:
                yield self._items[int(place)]
            index += AHEAD * every

    def saved(self) -> Saved | None:
        return None

    def take_up(self, saved: Saved) -> None:
        pass


class Streamed(Generic[Item]):
    """What can only be gone through, the same way every time; begun again when it ends.

    ``streams``: a function (slot, num_slots) that gives the slot's own stream, so that nobody reads what is another's;
    or one stream, of which slot s takes items s, num_slots + s, ... and reads all the others. ``set_epoch`` is called
    if it has one. To begin at an index costs going through what lies before, unless a saved state does.
    """

    def __init__(self, streams: Callable[[int, int], Iterable[Item]] | Iterable[Item], *, num_slots: int) -> None:
        self._streams = cast(Any, streams)
        self._num_slots = num_slots
        self._own = callable(streams)
        if not self._own and iter(self._streams) is streams:
            raise DataError(
                "an iterator cannot be begun anew",
                where="data.slots",
                fix="pass what it was made from, or a function (slot, num_slots) that makes it",
            )
        self._first_state: dict[str, Any] | None = None
        if not self._own and isinstance(self._streams, Stateful):
            self._first_state = self._streams.state_dict()
        self._stream: Any = None
        self._slot = self._index = self._epoch = self._raw = 0
        self._saved: Saved | None = None

    def open(self, slot: int, index: int, every: int = 1) -> Iterator[Item]:
        self._stream, self._slot, self._index, self._epoch = self._begin(slot, 0), slot, 0, 0
        self._raw, saved = 0, self._saved
        if saved is not None and saved.slot == slot and saved.index <= index and isinstance(self._stream, Stateful):
            if saved.epoch:
                self._stream = self._begin(slot, saved.epoch)
            try:
                self._stream.load_state_dict(saved.state)
            except Exception as wrong:  # of whatever kind the stream's author has chosen
                raise StateError(
                    f"the stream does not take its state ({type(wrong).__name__}: {wrong})",
                    where="data.slots",
                    fix="load what it gave, or nothing: it only saves time",
                ) from wrong
            self._index, self._epoch, self._raw = saved.index, saved.epoch, saved.raw
        if index - self._index >= WORTH_SAYING:
            log.warning("slot %d: goes through %s items to where it left off", slot, f"{index - self._index:,}")
        return self._go(slot, index, every, is_fresh=self._raw == 0)

    def _go(self, slot: int, index: int, every: int, *, is_fresh: bool) -> Iterator[Item]:
        while True:
            found = False
            for item in self._stream:
                found = True
                mine = self._own or self._raw % self._num_slots == slot
                self._raw += 1
                if mine:
                    self._index += 1
                    if self._index > index and (self._index - 1 - index) % every == 0:
                        yield item
            if is_fresh and (not found or (not self._own and self._raw <= slot)):
                raise DataError(f"there is nothing for slot {slot} in the data", where="data.slots", fix="give more")
            is_fresh = True
            self._epoch, self._raw = self._epoch + 1, 0
            self._stream = self._begin(slot, self._epoch)

    def saved(self) -> Saved | None:
        if not isinstance(self._stream, Stateful):
            return self._saved
        return Saved(
            slot=self._slot, index=self._index, epoch=self._epoch, raw=self._raw, state=self._stream.state_dict()
        )

    def take_up(self, saved: Saved) -> None:
        self._saved = saved

    def _begin(self, slot: int, epoch: int) -> Any:
        stream = self._streams(slot, self._num_slots) if self._own else self._streams
        if not (hasattr(stream, "__iter__") or hasattr(stream, "__getitem__")):
            raise DataError(
                f"the function gives a {type(stream).__name__} for slot {slot}",
                where="data.slots",
                fix="return what can be iterated",
            )
        if self._first_state is not None:
            stream.load_state_dict(self._first_state)
        if hasattr(stream, "set_epoch"):
            stream.set_epoch(epoch)
        return stream
