"""What the syncer says of a contribution, read by its learner."""

from __future__ import annotations

from contextlib import suppress

import msgspec

__all__ = ["verdict_of"]

TAKEN = frozenset({"taken", "held"})
"""What the syncer says of a contribution that it has; of a piece of one, "held" until the last is in."""


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The syncer's reply to a contribution."""

    status: str = ""
    tokens: int = 0


def verdict_of(said: bytes) -> tuple[bool, int]:
    """Whether the syncer has taken a contribution, and of how many tokens the one is made that this learner has in that
    round; 0: none is, or nothing that can be read was said.

    >>> verdict_of(msgspec.msgpack.encode({"status": "held", "tokens": 7})), verdict_of(b"what?")
    ((True, 7), (False, 0))
    """
    with suppress(msgspec.MsgspecError):
        verdict = msgspec.msgpack.decode(said, type=Verdict)
        return verdict.status in TAKEN, verdict.tokens
    return False, 0
