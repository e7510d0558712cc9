"""Secrets that others on this machine could read: keys and tokens in files whose mode lets them."""

from __future__ import annotations

import logging
from functools import cache
from pathlib import Path

__all__ = ["exposure", "tell_exposure"]

_log = logging.getLogger("gruppetto.security")

OTHERS, NOT_ITS_GROUP = 0o077, 0o037
"""Bits that let too many in: of a file of one's own; and of one of root's, which is given to a process by its group, as
Kubernetes gives secrets."""
ROOT = 0


def exposure(secret: Path) -> str:
    """What is wrong with who may read the file, "" if nothing is. One that is not there is its reader's business."""
    try:
        status = secret.stat()
    except OSError:
        return ""
    bits = NOT_ITS_GROUP if status.st_uid == ROOT and status.st_gid != ROOT else OTHERS
    return f"{secret} can be read by others (mode {status.st_mode & 0o777:04o})" if status.st_mode & bits else ""


def tell_exposure(secret: Path) -> None:
    """Say so in the log, once in the life of a process."""
    if said := exposure(secret):
        _tell(f"{said}: whoever has it is taken for its owner; say chmod 600 {secret}")


@cache
def _tell(text: str) -> None:
    _log.warning("%s", text)
