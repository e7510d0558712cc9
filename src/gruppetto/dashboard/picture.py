"""A run as it can be looked at: every line of its trace is folded in, memory stays bounded.

Nothing is decided or replayed here: what learners and the syncer said is believed. The figures that have to be right
to the last token come from :mod:`gruppetto.trace.metrics` and its replay; those here are for watching a run go on.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from gruppetto.dashboard.course import Course
from gruppetto.dashboard.notes import Notes
from gruppetto.dashboard.plausible import header_of, moment, setting_of
from gruppetto.dashboard.work import Work
from gruppetto.trace.log import HEAD
from gruppetto.trace.replay import SYNCER

__all__ = ["Picture"]

NAME = re.compile(rb'"(in|out|note)":"[A-Za-z-]{1,40}"')
"""No text within a record looks like it: there, quotation marks are escaped."""
MALFORMED = (LookupError, TypeError, ValueError, ArithmeticError, AttributeError)


class _Line(msgspec.Struct):
    t: float
    who: str
    data: dict[str, Any]


_DECODER = msgspec.json.Decoder(_Line)
_HEADER = msgspec.json.Decoder(dict[str, Any])


class Picture(Work, Course, Notes):
    """Takes lines; whoever looks reads the attributes, which are those of :class:`~gruppetto.dashboard.seen.Seen`."""

    def take(self, line: bytes) -> None:
        """One line of a trace, or of notes beside it. What cannot be read is counted and passed over."""
        self.lines += 1
        try:
            if line.startswith(HEAD):
                self._begin_life(header_of(_HEADER.decode(line)))
                return
            named = NAME.search(line)
            if named is None:
                self.damaged_lines += 1
                return
            kind, handler = named.group(1), _HANDLERS.get(named.group(0))
            if handler is None and kind != b"in":
                return
            if handler is _ON_SEND and b'"Clipping":{' not in line:
                return  # most of what is sent is of no interest, and there is much of it
            said = _DECODER.decode(line)
            if kind != b"note":
                self.timeline.at(moment(said.t))
            if handler is not None and (kind == b"note" or said.who == SYNCER):
                handler(self, said.who, said.data)
        except (msgspec.DecodeError, RecursionError, *MALFORMED):
            self.damaged_lines += 1

    def _begin_life(self, data: dict[str, Any]) -> None:
        if "notes" in data:
            return  # a file of notes, written by somebody else
        again = self.timeline.header(data)
        self.header.update(data)
        setting = data.get("setting")
        if isinstance(setting, dict):
            self.setting = setting_of(setting)
        if again and self.lives:
            self.happenings.say(self.now, "restart", SYNCER, "The syncer started again; learners trained on.")
            self._traffic = (self.up_bytes, self.down_bytes)
            self.opened.clear()
            self._weights.clear()
            for lane in self.lanes.values():
                if lane.state in ("live", "joining"):
                    lane.states.enter(self.now, "away")
                    lane.why = "the syncer restarted"
        self.lives += again or not self.lives


_ON_SEND = Picture._on_send
_Handler = Callable[[Picture, str, Mapping[str, Any]], None]
_HANDLERS: dict[bytes, _Handler] = {
    b'"in":"Progress"': Picture._on_progress,
    b'"in":"Answer"': Picture._on_answer,
    b'"out":"Fold"': Picture._on_fold,
    b'"in":"Folded"': Picture._on_folded,
    b'"out":"Send"': Picture._on_send,
    b'"out":"Drop"': Picture._on_drop,
    b'"out":"QuorumMet"': Picture._on_quorum_met,
    b'"out":"RoundClosed"': Picture._on_round_closed,
    b'"in":"OuterStepped"': Picture._on_outer_stepped,
    b'"in":"Persisted"': Picture._on_persisted,
    b'"in":"PersistFailed"': Picture._on_persist_failed,
    b'"in":"Published"': Picture._on_published,
    b'"out":"MemberChanged"': Picture._on_member_changed,
    b'"out":"Alarm"': Picture._on_alarm,
    b'"out":"AlarmOver"': Picture._on_alarm_over,
    b'"out":"CheckpointClosed"': Picture._on_checkpoint_closed,
    b'"out":"CheckpointRefused"': Picture._on_checkpoint_refused,
    b'"note":"metrics"': Picture._on_metrics,
    b'"note":"traffic"': Picture._on_traffic,
    b'"note":"evaluation"': Picture._on_evaluation,
    b'"note":"ledger"': Picture._on_ledger,
    b'"note":"simulated"': Picture._on_simulated,
    b'"note":"recovery"': Picture._on_recovery,
    b'"note":"died"': Picture._on_died,
}
"""By what the record is. Every event tells the time; an action or note that is not here is not even decoded."""
