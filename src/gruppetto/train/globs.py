"""Patterns for paths inside an archive."""

from __future__ import annotations

import re

from gruppetto.errors import DataError

__all__ = ["beginning", "matcher"]

PIECE = re.compile(r"\*\*/|\*\*|\*|\?|\[(?P<not>!?)(?P<set>\][^\]/]*|[^\]/]+)\]|(?P<plain>.)", re.DOTALL)
MEANING = {"**/": r"(?:.*/)?", "**": r".*", "*": r"[^/]*", "?": r"[^/]"}


def matcher(pattern: str) -> re.Pattern[str]:
    """What matches a whole path: ``*`` and ``?`` stay within a folder, ``**/`` is any number of folders, also none.

    Raises :class:`DataError` for a range that is none.

    >>> find = matcher("**/*.[ch]")
    >>> [bool(find.fullmatch(path)) for path in ("fork.c", "linux/kernel/fork.c", "linux/fork.rst")]
    [True, True, False]
    """
    try:
        return re.compile("".join(map(_meaning, PIECE.finditer(pattern))), re.DOTALL)
    except re.error as error:
        raise DataError(f"is no pattern ({error.msg})", where=pattern, fix="write ranges as [a-z]") from None


def beginning(pattern: str) -> str:
    """What every path begins with that matches.

    >>> beginning("linux/kernel/*.c"), beginning("**/*.c")
    ('linux/kernel/', '')
    """
    return re.split(r"[*?\[]", pattern, maxsplit=1)[0]


def _meaning(piece: re.Match[str]) -> str:
    if (plain := piece["plain"]) is not None:
        return re.escape(plain)
    if (of := piece["set"]) is not None:
        inside = re.sub(r"([\\\[\]&~|^])", r"\\\1", of)
        return rf"(?!/)[{'^' if piece['not'] else ''}{inside}]"
    return MEANING[piece[0]]
