"""What travels through a mailbox besides bodies: letters, each a batch of frames, and the names of objects.

What a bucket holds is believed no more than what comes from a network: sizes are compared before anything is read,
every letter is decoded into its own type, and frames go the way of all frames.

>>> letter = Letter(frames=(b"one", b"two"), puts=(Put(number=1, kind="seed", fragment=3, length=4),))
>>> decode_letter(encode_letter(letter)) == letter
True
>>> decode_letter(b"nonsense")
Traceback (most recent call last):
...
gruppetto.errors.ProtocolError: not a letter
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import msgspec

from gruppetto.errors import ProtocolError
from gruppetto.runtime.headers import ANSWER_HEADER, CHECKSUM_HEADER, CODEC_HEADER, INCARNATION_HEADER, LEARNER_HEADER
from gruppetto.runtime.wire import MAX_ANSWER_CHARS, MAX_FRAME_BYTES, MAX_HELLO_BYTES

__all__ = [
    "FIRST_LETTER_BYTES",
    "LETTER_BYTES",
    "Cease",
    "Letter",
    "Name",
    "Put",
    "Said",
    "box_name",
    "decode_letter",
    "encode_letter",
    "parse_name",
    "split",
    "term_folder",
]

ROOM = 1 << 16
"""For what a letter holds besides its frames."""
LETTER_BYTES = 4 * MAX_FRAME_BYTES
FIRST_LETTER_BYTES = MAX_HELLO_BYTES + ROOM
"""Of the first one of a box, which has the Hello."""
MAX_ITEMS = 512
MAX_TEXT = 4096
HEADERS = frozenset({ANSWER_HEADER, CHECKSUM_HEADER, CODEC_HEADER, INCARNATION_HEADER, LEARNER_HEADER})
"""All that may be said of a body: there are no pieces of bodies here, and none is gone on with."""
MOST = 10**8 - 1
"""The numbers of objects have eight digits."""

_BOX = re.compile(r"[0-9a-f]{16}")
_NAME = re.compile(r"(\d{8})/box/([0-9a-f]{16})/(up|down|body)/(\d{8})")


class Put(msgspec.Struct, frozen=True, kw_only=True):
    """A body lies there: what it is, as a request to the syncer would say it."""

    number: int
    kind: Literal["contribution", "seed"]
    fragment: int
    round: int = 0
    length: int
    headers: dict[str, str] = {}


class Said(msgspec.Struct, frozen=True, kw_only=True):
    """What has become of a body: as an answer to that request."""

    number: int
    status: int
    text: bytes = b""


class Cease(msgspec.Struct, frozen=True, kw_only=True):
    """The syncer closes the box (:class:`~gruppetto.runtime.wire.CloseCode`)."""

    code: int
    text: str = ""


class Letter(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be said, in this order: frames, then the rest. ``bye``: nothing more will come from this learner."""

    frames: tuple[bytes, ...] = ()
    puts: tuple[Put, ...] = ()
    said: tuple[Said, ...] = ()
    beat: bytes = b""
    """A Heartbeat frame."""
    wall: str = ""
    """What the wall clock says there, for people."""
    cease: Cease | None = None
    bye: bool = False


@dataclass(frozen=True, slots=True)
class Name:
    """An object in a box."""

    box: str
    way: str
    number: int


_decoder = msgspec.msgpack.Decoder(Letter)
_encoder = msgspec.msgpack.Encoder()


def encode_letter(letter: Letter) -> bytes:
    return _encoder.encode(letter)


def decode_letter(data: bytes) -> Letter:
    """Raises :class:`ProtocolError`."""
    try:
        letter = _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as wrong:
        raise ProtocolError("not a letter") from wrong
    if max(len(letter.frames), len(letter.puts), len(letter.said)) > MAX_ITEMS:
        raise ProtocolError(f"a letter of more than {MAX_ITEMS} things")
    for put in letter.puts:
        if not 0 <= put.number <= MOST or put.length < 0 or put.round < 0 or put.fragment < 0:
            raise ProtocolError("a body of an impossible number or length")
        if put.headers.keys() - HEADERS or any(len(text) > MAX_ANSWER_CHARS for text in put.headers.values()):
            raise ProtocolError("more is said of a body than may be said in a mailbox")
    for said in letter.said:
        if len(said.text) > MAX_TEXT:
            raise ProtocolError(f"a text of {len(said.text)} bytes; at most {MAX_TEXT} are allowed")
    return letter


def split(frames: Iterable[bytes]) -> list[tuple[bytes, ...]]:
    """Into as many letters as it takes; at least one.

    >>> [len(part) for part in split([bytes(MAX_FRAME_BYTES)] * 5)]
    [3, 2]
    >>> split([])
    [()]
    """
    parts: list[list[bytes]] = [[]]
    for frame in frames:
        full = sum(map(len, parts[-1])) + len(frame) > LETTER_BYTES - ROOM * 4 or len(parts[-1]) >= MAX_ITEMS
        if parts[-1] and full:
            parts.append([])
        parts[-1].append(frame)
    return [tuple(part) for part in parts]


def term_folder(term: int) -> str:
    """Where all lies that belongs to one term.

    >>> term_folder(7)
    '00000007'
    """
    assert 0 < term <= MOST
    return f"{term:08}"


def box_name(term: int, box: str, way: str, number: int) -> str:
    """
    >>> box_name(7, "0123456789abcdef", "up", 12)
    '00000007/box/0123456789abcdef/up/00000012'
    """
    assert _BOX.fullmatch(box) and 0 <= number <= MOST
    return f"{term_folder(term)}/box/{box}/{way}/{number:08}"


def parse_name(name: str, term: int) -> Name | None:
    """The object that a name names, if it is one of this term.

    >>> parse_name("00000007/box/0123456789abcdef/up/00000012", 7)
    Name(box='0123456789abcdef', way='up', number=12)
    >>> parse_name("00000007/box/../up/00000012", 7), parse_name("00000006/box/0123456789abcdef/up/00000012", 7)
    (None, None)
    """
    found = _NAME.fullmatch(name)
    if found is None or not name.isascii() or int(found[1]) != term:
        return None
    return Name(found[2], found[3], int(found[4]))
