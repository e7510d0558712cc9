"""Whether a file can be written, asked before the work whose result it is to hold."""

from __future__ import annotations

import os
from pathlib import Path

from gruppetto.errors import SettingError

__all__ = ["make_place_for"]


def make_place_for(file: Path) -> None:
    """Makes the directory of ``file``. Raises :class:`SettingError` where the file could not be written then."""
    fix = "name another file"
    if file.is_dir():
        raise SettingError("is a directory", where=str(file), fix="name a file in it")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        raise SettingError(f"cannot be written ({file.parent} is no directory)", where=str(file), fix=fix) from error
    except OSError as error:
        raise SettingError(f"cannot be written ({error.strerror})", where=str(file), fix=fix) from error
    if not os.access(file if file.exists() else file.parent, os.W_OK):
        raise SettingError("may not be written", where=str(file), fix=fix)
