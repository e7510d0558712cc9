"""Headers and statuses of the endpoints in :mod:`gruppetto.runtime.wire`, on every road that bodies may take."""

from __future__ import annotations

__all__ = [
    "ANSWER_HEADER",
    "BASE_HEADER",
    "CHECKSUM_HEADER",
    "CODEC_HEADER",
    "HAVE_HEADER",
    "INCARNATION_HEADER",
    "LAYOUT_HEADER",
    "LEARNER_HEADER",
    "NOT_YOUR_TURN",
    "OFFSET_HEADER",
    "RANK_HEADER",
    "RESULT_HEADER",
    "ROUND_HEADER",
    "RUNS_HEADER",
    "TOO_OFTEN",
    "VERSION_HEADER",
    "WALL_HEADER",
]

NOT_YOUR_TURN = 409
"""To a seed from who is not asked for it any more: what the learner knows of the run is old."""
TOO_OFTEN = 429
"""Come again later."""

ANSWER_HEADER = "Gruppetto-Answer"
"""The Answer of a contribution: base64url of its frame."""
WALL_HEADER = "Gruppetto-Wall"
"""What the wall clock of a learner says, in seconds, with a heartbeat. For people: nothing is decided by it."""
CODEC_HEADER = "Gruppetto-Codec"
CHECKSUM_HEADER = "Gruppetto-Checksum"
"""CRC-32 of the body, eight hexadecimal digits."""
VERSION_HEADER = "Gruppetto-Version"
LAYOUT_HEADER = "Gruppetto-Layout"
ROUND_HEADER = "Gruppetto-Round"
LEARNER_HEADER = "Gruppetto-Learner"
INCARNATION_HEADER = "Gruppetto-Incarnation"
RUNS_HEADER = "Gruppetto-Runs"
"""Which elements of a fragment a body holds, from one rank of a learner or for it; without it, all. See
:class:`~gruppetto.numerics.runs.Runs`."""
BASE_HEADER = "Gruppetto-Base"
"""Which value of a fragment a learner has, by the CRC-32 of its float32. In the reply: the body is the step from it,"""
RESULT_HEADER = "Gruppetto-Result"
"""and leads to the value of this CRC-32."""
RANK_HEADER = "Gruppetto-Rank"
"""Which rank of a learner sends a piece. Decides nothing."""
HAVE_HEADER = "Gruppetto-Have"
"""``VERSION:BYTES``: a download broke off, and so much of that version is here. Of another version all comes."""
OFFSET_HEADER = "Gruppetto-Offset"
"""How many bytes of a body are left out at its beginning, because they are there. Its checksum is that of the whole."""
