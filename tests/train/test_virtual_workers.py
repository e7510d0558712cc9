"""A worker of virtual training that dies is said in one line, whatever it was about to say."""

from __future__ import annotations

import sys

import pytest

from gruppetto.errors import RunFailed
from gruppetto.train.virtual_workers import HEAD_BYTES, _Process

SAYS = "import os, sys; sys.stdin.buffer.read(1); os.write(1, {said!r}); os._exit(9)"


@pytest.mark.parametrize(
    "said", [b"", b"\0\0\0", (9).to_bytes(HEAD_BYTES, "big"), (9).to_bytes(HEAD_BYTES, "big") + b"\x95abc"]
)
def test_a_worker_that_dies_in_the_midst_of_an_answer_has_ended(said: bytes) -> None:
    process = _Process([sys.executable, "-c", SAYS.format(said=said)])
    try:
        answer = process.ask((0, "cut", ()))
        with pytest.raises(RunFailed, match=r"a worker of virtual training ended \(9\)"):
            answer.get()
    finally:
        process.hang_up()
        process.end()
