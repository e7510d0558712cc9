"""Who decides: the protocol of Decoupled DiLoCo, pure. Events in, actions out, time as an argument.

Read in this order: :mod:`~gruppetto.protocol.messages` (what is said), :mod:`~gruppetto.protocol.events` and
:mod:`~gruppetto.protocol.actions` (what happens, what to do), :mod:`~gruppetto.protocol.syncer`,
:mod:`~gruppetto.protocol.learner`.

This package uses the standard library only and knows no clock, socket, thread, random number or tensor.
"""

from __future__ import annotations

from gruppetto.protocol.learner import LearnerCore
from gruppetto.protocol.schedule import Schedule
from gruppetto.protocol.settings import ProtocolSetting
from gruppetto.protocol.state import SyncerState
from gruppetto.protocol.syncer import SyncerCore

__all__ = ["LearnerCore", "ProtocolSetting", "Schedule", "SyncerCore", "SyncerState"]
