"""The protocol's numbers, each under its own name, so that a type checker keeps them apart."""

from __future__ import annotations

from typing import NewType

__all__ = [
    "FIRST_EPOCH",
    "NEVER",
    "NO_EPOCH",
    "UNBORN",
    "Epoch",
    "Fragment",
    "Incarnation",
    "LearnerId",
    "Round",
    "Version",
]

LearnerId = NewType("LearnerId", str)
"""A learner's stable name. It survives restarts."""

Incarnation = NewType("Incarnation", int)
"""Counts the lives of one learner id: 1 for its first process. 0 means "not welcomed yet"."""

Epoch = NewType("Epoch", int)
"""Counts the lives of the syncer: 1 for its first process. Rises at every restart."""

UNBORN = Incarnation(0)
"""The incarnation of a learner that has not been welcomed."""

NO_EPOCH = Epoch(0)
"""Below that of every syncer: where none has been heard of."""

FIRST_EPOCH = Epoch(1)
"""The epoch of a syncer that starts from nothing."""

Round = NewType("Round", int)
"""The syncer's step t = 1, 2, …, T. Round 0 is the state that the first learner seeded."""

Fragment = NewType("Fragment", int)
"""Index p of a fragment, 0 ≤ p < P."""

Version = NewType("Version", int)
"""The round whose outer step made this value of a fragment. 0 is the seed."""

NEVER = Version(-1)
"""The version of a fragment that a learner has never received."""
