"""Patterns for paths inside an archive."""

from __future__ import annotations

import re

__all__ = ["matcher"]

PIECE = re.compile(r"\*\*/|\*\*|\*|\?|\[(?P<not>!?)(?P<set>\]?[^\]/]*)\]|(?P<plain>.)", re.DOTALL)
MEANING = {"**/": r"(?:.*/)?", "**": r".*", "*": r"[^/]*", "?": r"[^/]"}


def matcher(pattern: str) -> re.Pattern[str]:
    """What matches a whole path: ``*`` and ``?`` stay within a folder, ``**/`` is any number of folders, also none.

    >>> find = matcher("**/*.[ch]")
    >>> [bool(find.fullmatch(path)) for path in ("fork.c", "linux/kernel/fork.c", "linux/fork.rst")]
    [True, True, False]
    """
    return re.compile("".join(map(_meaning, PIECE.finditer(pattern))), re.DOTALL)


def _meaning(piece: re.Match[str]) -> str:
    if (plain := piece["plain"]) is not None:
        return re.escape(plain)
    if (of := piece["set"]) is not None:
        inside = re.sub(r"([\\\[\]&~|^])", r"\\\1", of)
        return rf"(?!/)[{'^' if piece['not'] else ''}{inside}]"
    return MEANING[piece[0]]
