"""The same events lead to the same decisions: a recorded run is put through a fresh core, and compared.

What is replayed is the syncer's core: it is made again from the header, given every recorded event at its recorded
time, and each of its actions has to be the recorded one, bit for bit.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from pathlib import Path

import msgspec

from gruppetto.errors import DataError
from gruppetto.protocol import SyncerCore
from gruppetto.protocol.actions import SyncerAction
from gruppetto.protocol.events import SyncerEvent
from gruppetto.protocol.units import Epoch
from gruppetto.trace.log import Header, Record, read_trace
from gruppetto.trace.schema import data_of, encode_line, read_core_header, value_of

__all__ = ["Difference", "ReplayResult", "Replayer", "replay"]

EVENT_NAMES = frozenset(kind.__name__ for kind in SyncerEvent.__args__)
SYNCER = "syncer"
"""Who speaks for the syncer's core in a trace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Where the replayed core first decided otherwise. ``line`` is that of the record; empty texts mean "nothing"."""

    line: int
    t: float
    recorded: str
    replayed: str

    def __str__(self) -> str:
        return (
            f"line {self.line}, t = {self.t}: recorded {self.recorded or 'nothing'}, now {self.replayed or 'nothing'}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayResult:
    """``events`` fed, ``decisions`` compared over all lives of the syncer."""

    events: int
    decisions: int
    lives: int
    first_difference: Difference | None

    @property
    def identical(self) -> bool:
        return self.first_difference is None


class Replayer:
    """Takes a trace line by line, in order. ``core`` is the replayed core as of the last line taken.

    Comparing stops at the first difference; what follows from one is noise.
    """

    def __init__(self, where: str) -> None:
        self.where = where
        self.core: SyncerCore | None = None
        self.events, self.decisions, self.lives = 0, 0, 0
        self.first_difference: Difference | None = None
        self._due: deque[str] = deque()

    def take(self, line: Header | Record) -> None:
        """Raises :class:`DataError` for an event before any core was described, or one that is malformed."""
        if isinstance(line, Header):
            self._begin_life(line)
        elif line.who == SYNCER and line.kind == "in":
            self._feed(line)
        elif line.who == SYNCER and line.kind == "out":
            self._compare(line)

    def result(self) -> ReplayResult:
        return ReplayResult(
            events=self.events, decisions=self.decisions, lives=self.lives, first_difference=self.first_difference
        )

    def _begin_life(self, header: Header) -> None:
        # A crash may have cut off the last event's actions: what is due still is no difference.
        self._due.clear()
        if "setting" not in header.data:
            return
        made_of = read_core_header(header.data, where=f"{self.where}:{header.line}")
        self.core = SyncerCore(
            made_of.setting,
            run_id=made_of.run_id,
            layout_hash=made_of.layout_hash,
            epoch=Epoch(made_of.epoch),
            state=made_of.state,
            unseen=made_of.unseen,
            damaged=made_of.damaged,
            offsets=made_of.offsets,
        )
        self.lives += 1

    def _feed(self, record: Record) -> None:
        if self.core is None:
            raise DataError(
                "an event comes before any header that describes a core",
                where=f"{self.where}:{record.line}",
                fix="name the trace.jsonl of a syncer",
            )
        if self._due:
            self._differ(record, recorded="", replayed=self._due[0])
        if record.name not in EVENT_NAMES:
            raise DataError(f"a syncer takes no {record.name}", where=f"{self.where}:{record.line}")
        try:
            event = value_of(record.name, record.data)
        except DataError as error:
            raise DataError(error.what, where=f"{self.where}:{record.line}") from error
        self.events += 1
        self._due = deque(_as_recorded(action) for action in self.core.step(record.t, event))

    def _compare(self, record: Record) -> None:
        self.decisions += 1
        recorded = _text(record.name, record.data)
        mine = self._due.popleft() if self._due else ""
        if mine != recorded:
            self._differ(record, recorded=recorded, replayed=mine)

    def _differ(self, record: Record, *, recorded: str, replayed: str) -> None:
        if self.first_difference is None:
            self.first_difference = Difference(line=record.line, t=record.t, recorded=recorded, replayed=replayed)


def replay(path: Path) -> ReplayResult:
    """Replay the trace at ``path`` through fresh cores, one for each life of the syncer.

    Raises :class:`DataError` when it cannot be read or holds no event of a syncer.
    """
    replayer = Replayer(str(path))
    for line in read_trace(path):
        replayer.take(line)
    if not replayer.events:
        raise DataError("holds no event of a syncer", where=str(path), fix="name the trace.jsonl of a run")
    return replayer.result()


def _as_recorded(action: SyncerAction) -> str:
    """An action as reading its record gives it back. Compared as text, 0.0 is not -0.0 and 1 is not 1.0."""
    line = encode_line({"data": data_of(action)})
    return _text(type(action).__name__, msgspec.json.decode(line)["data"])


def _text(name: str, data: object) -> str:
    return f"{name} {msgspec.json.encode(data).decode()}"
