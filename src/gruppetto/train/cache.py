"""Files that many processes may make at once and that none may ever read half-made."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from gruppetto.errors import DataError

__all__ = ["publish"]


def publish(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Make ``path`` from what ``write`` writes, unless someone else was first: then theirs stays.

    The content is complete and on disk before the name appears. Whoever calls this reads ``path`` afterwards,
    so all processes use the same bytes even where ``write`` is not deterministic to the last of them.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".making-", suffix=path.suffix)
    except OSError as error:
        raise DataError(
            f"cannot be written ({error.strerror})", where=str(path.parent), fix="check rights and space"
        ) from error
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "w+b") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        try:
            # A link, unlike a rename, fails when the name is taken: the first stays.
            path.hardlink_to(temporary)
        except FileExistsError:
            pass
        except OSError:  # a file system without links
            temporary.replace(path)
    except OSError as error:
        raise DataError(
            f"cannot be written ({error.strerror})", where=str(path), fix="check rights and space"
        ) from error
    finally:
        temporary.unlink(missing_ok=True)
