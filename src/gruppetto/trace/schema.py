"""What a trace is made of: a version, record kinds, and every value of the protocol by its name.

A trace is a file of JSON lines. The first line is a header, ``{"trace": 1, ...}``; a restart appends another one. Every
other line has a time, a speaker, one of three kinds, and data::

    {"t": 1.5, "who": "syncer", "in":   "Progress",   "data": {...}}     an event that was fed to a core
    {"t": 1.5, "who": "syncer", "out":  "QuorumMet",  "data": {...}}     an action that the core decided
    {"t": 2.0, "who": "judge",  "note": "evaluation", "data": {...}}     anything else worth keeping

``t`` is in seconds of the run's own clock. Floats come back as they were, bit for bit, those that are no numbers
included.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from types import UnionType
from typing import Any, TypeVar, get_args

import msgspec

from gruppetto.errors import DataError
from gruppetto.protocol import ProtocolSetting, SyncerState
from gruppetto.protocol.actions import Checkpoint, LearnerAction, Persist, Send, SyncerAction
from gruppetto.protocol.events import LearnerEvent, SyncerEvent
from gruppetto.protocol.messages import FromLearner, FromSyncer
from gruppetto.protocol.state import OlderValue
from gruppetto.protocol.units import Epoch

__all__ = [
    "PROTOCOL_TYPES",
    "TRACE_VERSION",
    "CoreHeader",
    "core_and_header",
    "core_header",
    "data_of",
    "encode_line",
    "read_core_header",
    "value_of",
]

Core = TypeVar("Core")

_ENCODER = msgspec.json.Encoder()

TRACE_VERSION = 1
"""Rises when a reader of the old version would misread a new trace."""


def _by_name(*unions: UnionType) -> dict[str, type]:
    return {kind.__name__: kind for union in unions for kind in get_args(union)}


PROTOCOL_TYPES: dict[str, type] = _by_name(
    SyncerEvent, LearnerEvent, SyncerAction, LearnerAction, FromLearner, FromSyncer
)
"""Every event, action and message of the protocol, by its name."""


class CoreHeader(msgspec.Struct, frozen=True, kw_only=True):
    """What a syncer's core was made of: enough to make the same one again."""

    setting: ProtocolSetting
    run_id: str
    layout_hash: str
    epoch: int
    state: SyncerState | None = None
    """What it restored after a restart."""
    unseen: int = 0
    damaged: tuple[OlderValue, ...] = ()
    offsets: tuple[int, ...] = ()


def core_header(
    setting: ProtocolSetting,
    *,
    run_id: str,
    layout_hash: str,
    epoch: Epoch,
    state: SyncerState | None = None,
    unseen: int = 0,
    damaged: tuple[OlderValue, ...] = (),
    offsets: tuple[int, ...] = (),
) -> dict[str, object]:
    """The header fields with which :func:`gruppetto.trace.replay.replay` makes the same core again."""
    return {
        "setting": setting,
        "run_id": run_id,
        "layout_hash": layout_hash,
        "epoch": epoch,
        "state": state,
        "unseen": unseen,
        "damaged": damaged,
        **({"offsets": offsets} if offsets else {}),
    }


def core_and_header(
    make: Callable[..., Core], setting: ProtocolSetting, **made_of: Any
) -> tuple[Core, dict[str, object]]:
    """A syncer's core, and the header fields that tell how to make it again: of the same arguments, which are those of
    :func:`core_header`."""
    return make(setting, **made_of), core_header(setting, **made_of)


def read_core_header(header: Mapping[str, object], *, where: str) -> CoreHeader:
    """The core that a header describes; :class:`DataError` when it describes none."""
    try:
        return msgspec.convert(
            {name: header[name] for name in CoreHeader.__struct_fields__ if name in header}, CoreHeader
        )
    except msgspec.ValidationError as error:
        raise DataError(
            f"the header does not describe a core ({error})", where=where, fix="name the trace.jsonl of a syncer"
        ) from error


def data_of(value: object) -> object:
    """A protocol value as it stands in a record.

    What a :class:`Send` carries goes under its own name. The state that a :class:`Persist` or a :class:`Checkpoint`
    makes durable is large and follows from the events: only its round and a digest of all of it are kept.
    """
    if isinstance(value, Send):
        return {"to": value.to, "session": value.session, type(value.message).__name__: value.message}
    if isinstance(value, Persist):
        digest = hashlib.sha256(_ENCODER.encode(value.state)).hexdigest()[:16]
        return {
            "round": value.round,
            "fragments": value.fragments,
            "state": {"round": value.state.round, "digest": digest},
        }
    if isinstance(value, Checkpoint):
        digest = hashlib.sha256(_ENCODER.encode(value.state)).hexdigest()[:16]
        return {"mark": value.mark, "round": value.round, "state": {"round": value.state.round, "digest": digest}}
    return value


def value_of(name: str, data: Mapping[str, object]) -> Any:
    """The protocol value of a record: the inverse of :func:`data_of`, but for actions that carry a state.

    Raises :class:`DataError` for a name that the protocol does not have, or data that is not of its kind.
    """
    kind = PROTOCOL_TYPES.get(name)
    if kind is None or kind in (Persist, Checkpoint):
        raise DataError(f"a {name!r} cannot be read back from a trace")
    try:
        if kind is Send:
            to, session = (msgspec.convert(data.get(key), str) for key in ("to", "session"))
            (said,) = data.keys() - {"to", "session"}
            message: Any = data[said]
            return Send(to=to, session=session, message=value_of(said, message))  # type: ignore[arg-type]
        # Not strict, so that "nan" and "inf" become floats again.
        return msgspec.convert(data, kind, strict=False)
    except (msgspec.ValidationError, ValueError) as error:
        raise DataError(f"is no {name}: {error}") from error


def encode_line(record: Mapping[str, object]) -> bytes:
    """One line of a trace, with its line end."""
    line = _ENCODER.encode(record)
    if b"null" in line:
        # JSON has no word for what is no number; it must not come back as nothing.
        line = _ENCODER.encode(_spell_out(msgspec.to_builtins(record)))
    return line + b"\n"


def _spell_out(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    if isinstance(value, dict):
        return {key: _spell_out(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_spell_out(item) for item in value]
    return value
