"""Where nobody can listen it is said why, and what to do about that."""

from __future__ import annotations

import errno
import os
import socket

import pytest

from gruppetto.runtime.listening import cannot_listen


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (errno.EADDRINUSE, "use a free port, or port 0"),
        (errno.EACCES, "use a port above 1023, or port 0"),
        (errno.EADDRNOTAVAIL, "use a name or address of this machine"),
        (errno.EAFNOSUPPORT, "use a name or address of this machine"),
    ],
)
def test_the_advice_fits_what_is_wrong(wrong: int, says: str) -> None:
    asyncio_says = f"error while attempting to bind on address ('h', 1): {os.strerror(wrong).lower()}"
    told = str(cannot_listen(OSError(wrong, asyncio_says), "h:1"))
    assert told.startswith("h:1: cannot be listened on (") and told.endswith(f"; {says}")
    assert "bind on address" not in told, "the place is named already"


def test_a_name_that_nobody_knows() -> None:
    wrong = socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    said = "h: cannot be listened on (name or service not known); use a name or address of this machine"
    assert str(cannot_listen(wrong, "h")) == said
