"""Names in a bucket that the client of the store cannot say, and that spoil every answer in which they occur."""

from __future__ import annotations

import re

__all__ = ["BETWEEN", "MAX_STRAYS", "beside", "stray_in"]

MAX_STRAYS = 100
"""Listings that one look may take more because of them."""
BETWEEN = "0"
"""Comes after the slash and before all that names of a mailbox begin with."""
_UNSAYABLE = frozenset({"", ".", ".."})
_SAID = re.compile(r'Path "(.*?)"(?: contained empty|: Encountered)', re.DOTALL)


def stray_in(text: str, prefix: str) -> str | None:
    """The name below ``prefix`` of which the client complains; None: of something else.

    >>> stray_in('Error parsing Path "runs/1/box/../y": Encountered illegal character sequence ".."', "runs")
    '1/box/../y'
    >>> stray_in('Path "runs/1/box//y" contained empty path segment', "runs/")
    '1/box//y'
    """
    found, above = _SAID.search(text), f"{prefix.strip('/')}/".lstrip("/")
    return found[1].removeprefix(above) if found and found[1].startswith(above) else None


def beside(stray: str, folder: str) -> tuple[str, bool]:
    """A name that comes after the stray one and all of its kind there, and whether names of ours may come before them:
    those of other folders, if it is not in ``folder`` itself.

    >>> beside("1/box/../y", "1/box"), beside("1/box/ab//y", "1/box")
    (('1/box/..0', False), ('1/box/ab0', True))
    """
    first, _, _ = stray.removeprefix(f"{folder}/" if folder else "").partition("/")
    return f"{folder}/{first}{BETWEEN}".lstrip("/"), first not in _UNSAYABLE
