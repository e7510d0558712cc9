"""Paths as people write them.

A shell spells ``~`` out where it stands alone, and not in ``--out=~/runs``, in a file of settings, or in Python.
"""

from __future__ import annotations

from pathlib import Path

from gruppetto.errors import SettingError

__all__ = ["at_home"]


def at_home(path: str | Path) -> Path:
    """``path`` with a ``~`` or ``~name`` at its beginning spelled out; others stay as they are.

    Raises :class:`SettingError` where nobody knows whose home that is, and for what is no path.

    >>> at_home("runs/~/a"), at_home("~/a") == Path.home() / "a"
    (PosixPath('runs/~/a'), True)
    """
    try:
        return Path(path).expanduser()
    except RuntimeError:
        whose = Path(path).parts[0]
        raise SettingError(f"no home of {whose} is known", where=str(path), fix="write the path out") from None
    except TypeError as wrong:  # a caller in Python may pass anything
        raise SettingError(f"cannot be used ({wrong})", where=str(path), fix="pass a path") from None
