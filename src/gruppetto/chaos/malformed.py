"""Messages that are almost right: what a broken, an old or a hostile peer may send.

Seeded, without end, and each made from a valid message by one or a few changes: bytes flipped, cut off, doubled,
inserted; numbers put out of range; names that would be paths; lists and texts of absurd length; nesting without end.
Most are malformed; some are still valid, and say nothing that may be believed of whoever sends them.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import msgspec

__all__ = ["NAUGHTY_NAMES", "NUMBERS", "malformed_frames"]

NAUGHTY_NAMES = (
    "",
    ".",
    "..",
    "../a",
    "..\\a",
    "/etc/passwd",
    "a/b",
    "a\x00b",
    "a\nb",
    "\x1b[2J",
    "a" * 129,
    "a" * 100_000,
    "é",
    "ａ",
    "a\u202eb",
    "%2e%2e%2f",
    "'; DROP TABLE learners; --",
    "{0.__class__}",
    "%s%n",
    "-",
    "._.",
    "CON",
)
NUMBERS = (-1, -2, 0, 1, 2**31, 2**53, 2**53 + 1, 2**63 - 1, 2**64 - 1, -(2**63), 1e300, -1e300, 0.5)
DEEP = 2000
LONG = 5000


def malformed_frames(valid: list[bytes], rng: random.Random) -> Iterator[bytes]:
    """Endlessly many, each from one of the ``valid`` frames.

    >>> frame = msgspec.msgpack.encode(("Goodbye", {"learner": "a", "incarnation": 1}))
    >>> made = malformed_frames([frame], random.Random(7))
    >>> frames = [next(made) for _ in range(500)]
    >>> len(set(frames)) > 200, frames == [next(made) for _ in range(500)]
    (True, False)
    """
    kinds = (_flipped, _cut, _doubled, _inserted, _revalued, _revalued, _renamed, _nested, _noise)
    while True:
        frame = rng.choice(valid)
        for _ in range(rng.choice((1, 1, 1, 2, 5))):
            frame = rng.choice(kinds)(frame, rng)
        yield frame


def _flipped(frame: bytes, rng: random.Random) -> bytes:
    changed = bytearray(frame)
    for _ in range(rng.choice((1, 1, 3, 20))):
        if changed:
            changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _cut(frame: bytes, rng: random.Random) -> bytes:
    return frame[: rng.randrange(len(frame) + 1)]


def _doubled(frame: bytes, rng: random.Random) -> bytes:
    start = rng.randrange(len(frame) + 1)
    return frame + frame[start:] * rng.choice((1, 2, 50))


def _inserted(frame: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(frame) + 1)
    return frame[:at] + rng.randbytes(rng.choice((1, 4, 64))) + frame[at:]


def _noise(frame: bytes, rng: random.Random) -> bytes:
    return rng.randbytes(rng.choice((0, 1, 10, 1000)))


def _nested(frame: bytes, rng: random.Random) -> bytes:
    """Lists in lists, of which no end is in sight."""
    name = b"\x92" + msgspec.msgpack.encode(rng.choice(("HelloFrame", "ProgressFrame", "Heartbeat", "Answer")))
    return name + rng.choice((b"\x91", b"\x81\xa1a")) * rng.choice((10, DEEP)) + b"\x00"


def _revalued(frame: bytes, rng: random.Random) -> bytes:
    """Another value somewhere in it, in good msgpack."""
    try:
        whole = msgspec.msgpack.decode(frame)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return _flipped(frame, rng)
    places = list(_places(whole))
    if not places:
        return frame
    holder, key = rng.choice(places)
    holder[key] = _odd(holder[key], rng)
    return msgspec.msgpack.encode(whole)


def _renamed(frame: bytes, rng: random.Random) -> bytes:
    """A naughty name wherever there is one."""
    try:
        whole = msgspec.msgpack.decode(frame)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return _flipped(frame, rng)
    for holder, key in _places(whole):
        if key in ("learner", "session", "run_id", "name"):
            holder[key] = rng.choice(NAUGHTY_NAMES)
    return msgspec.msgpack.encode(whole)


def _places(value: Any, depth: int = 0) -> Iterator[tuple[Any, Any]]:
    if depth > 20 or not isinstance(value, dict | list):
        return
    for key, item in value.items() if isinstance(value, dict) else enumerate(value):
        yield value, key
        yield from _places(item, depth + 1)


def _odd(value: Any, rng: random.Random) -> Any:
    match rng.randrange(7):
        case 0:
            return rng.choice(NUMBERS)
        case 1:
            return rng.choice(NAUGHTY_NAMES)
        case 2:
            return [value] * rng.choice((0, 2, LONG))
        case 3:
            return {str(n): value for n in range(rng.choice((0, 1, 100)))}
        case 4:
            return rng.choice((None, True, float("nan"), float("inf"), b"\xff\xfe"))
        case 5:
            return "x" * rng.choice((1, LONG, 200_000))
        case _:
            return -value if isinstance(value, int | float) and abs(value) < 2**63 else [value]
