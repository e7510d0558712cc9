"""What may stand in a message at all: plausible numbers, bounded texts and lists, safe names.

What they mean together is the core's business.
"""

from __future__ import annotations

import math
import re
from dataclasses import fields, is_dataclass

from gruppetto.errors import ProtocolError

__all__ = ["MAX_COUNT", "MAX_ITEMS", "check_value", "is_name"]

MAX_TEXT = 4096
MAX_ITEMS = 4096
"""Of any list in a message: there are at most so many fragments."""
MAX_COUNT = 2**53
"""Integers beyond this are not exact in every language that reads a trace, and no run gets there."""
MAX_LIVES = 2**31
"""Incarnations of one learner."""
MAX_SECONDS = 1e9
_NAME = re.compile(r"(?=.*[A-Za-z0-9])[A-Za-z0-9._-]{1,128}")


def is_name(text: str) -> bool:
    """Names of learners, sessions and runs: 1 to 128 of ``A–Z a–z 0–9 . _ -``, a letter or digit among them.

    They become names of files, and so ``.`` and ``..`` are none.

    >>> is_name("site-b.gpu_7"), is_name("../b"), is_name(".."), is_name("")
    (True, False, False, False)
    """
    return _NAME.fullmatch(text) is not None


def check_value(value: object, path: str) -> None:
    """Raises :class:`ProtocolError` unless all that is in ``value``, a message at ``path``, is plausible."""
    match value:
        case bool() | None:
            pass
        case int():
            most = MAX_LIVES if path.endswith(".incarnation") else MAX_COUNT
            if not -1 <= value <= most:
                raise ProtocolError(f"{path} is {value}, out of range")
        case float():
            if not (math.isfinite(value) and 0 <= value <= MAX_SECONDS):
                raise ProtocolError(f"{path} is {value}, out of range")
        case str():
            last = path.rpartition(".")[2]
            if last in ("learner", "session") or (last == "run_id" and value):
                if not is_name(value):
                    raise ProtocolError(f"{path}: use 1 to 128 letters, digits or . _ -, not signs alone")
            elif len(value) > MAX_TEXT:
                raise ProtocolError(f"{path} has {len(value)} characters; at most {MAX_TEXT} are allowed")
        case tuple():
            if len(value) > MAX_ITEMS:
                raise ProtocolError(f"{path} has {len(value)} items; at most {MAX_ITEMS} are allowed")
            for item in value:
                check_value(item, path)
        case _ if is_dataclass(value):
            for part in fields(value):
                check_value(getattr(value, part.name), f"{path}.{part.name}")
        case _:
            raise AssertionError(f"no rule for {type(value).__name__} at {path}")
