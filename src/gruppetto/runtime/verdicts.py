"""What a learner logs of the verdicts on its contributions."""

from __future__ import annotations

import logging

from gruppetto.protocol.admission import ADVICE, CLIP_ADVICE, ROUTINE
from gruppetto.protocol.messages import Clipping, Rejection
from gruppetto.runtime.complaints import Complaints
from gruppetto.runtime.wire import Frame

__all__ = ["note_verdict"]


def note_verdict(complaints: Complaints, frame: Frame) -> None:
    """What became of a contribution that was not taken as it is, and what to do; rarer and rarer."""
    match frame:
        case Rejection(reason=reason):
            text = f"round {frame.round}, fragment {frame.fragment} was not merged: {reason.value}: {ADVICE[reason]}"
            complaints.note(("not merged", reason.value), text, _level(reason in ROUTINE))
        case Clipping(cause=cause):
            text = f"round {frame.round}, fragment {frame.fragment} was merged for less than it holds: {cause.value}, "
            text += f"{frame.factor:.3g} times the usual: {CLIP_ADVICE[cause]}"
            complaints.note(("clipped", cause.value), text)
        case _:
            pass


def _level(routine: bool) -> int:
    return logging.INFO if routine else logging.WARNING
