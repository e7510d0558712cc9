"""The bodies that one learner has left in its box: told of in a letter, given to the desk, and answered."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing

from gruppetto.errors import ProtocolError
from gruppetto.protocol.units import Fragment, LearnerId
from gruppetto.runtime.assembly import PieceUpload
from gruppetto.runtime.desk import Desk, Inbound, NotHere
from gruppetto.runtime.headers import NOT_YOUR_TURN
from gruppetto.runtime.intake import Upload
from gruppetto.runtime.mailbox.bucket import Bucket
from gruppetto.runtime.mailbox.letters import MAX_ITEMS, Put, Said
from gruppetto.runtime.service import NotAsked, NotYours

__all__ = ["Uploads"]

MAX_PUTS = 32
"""Bodies of one learner that are looked at, or wait for room, at a time."""
BODIES_AHEAD = 64
"""A body so many numbers behind the newest one that a letter has told of is told of no more."""


class Uploads:
    """``name``: of the object that is a body; ``used`` takes it when the body has been dealt with. ``stir`` is called
    when there is something to say, at once or within ``hurry_s``; ``malformed`` and ``complain`` hear what was wrong.
    """

    def __init__(
        self,
        name: Callable[[int], str],
        *,
        bucket: Bucket,
        desk: Desk,
        used: Callable[[str], None],
        stir: Callable[[], None],
        malformed: Callable[[str, ProtocolError], None],
        complain: Callable[[str, ProtocolError], None],
        hurry_s: float,
    ) -> None:
        self._name, self._bucket, self._desk, self._used, self._stir = name, bucket, desk, used, stir
        self._malformed, self._complain, self._hurry_s = malformed, complain, hurry_s
        self._newest = -1
        self._puts: dict[int, asyncio.Task[None]] = {}
        self._said: list[Said] = []

    @property
    def tasks(self) -> list[asyncio.Task[None]]:
        return list(self._puts.values())

    def take(self, put: Put, speaker: LearnerId) -> None:
        """A letter has told of a body. Raises :class:`ProtocolError` if it did before."""
        self._newest = max(self._newest, put.number)
        if put.number in self._puts:
            raise ProtocolError(f"body {put.number} is told of twice")
        if len(self._puts) >= MAX_PUTS:
            self._say(Said(number=put.number, status=503, text=b"too many at a time; come again"))
            self._used(self._name(put.number))
            return
        task = self._puts[put.number] = asyncio.create_task(self._hand_in(put, speaker))
        task.add_done_callback(lambda _: self._puts.pop(put.number, None))

    def tidy(self, bodies: set[int]) -> None:
        """These are there: some were left when a try broke off, and nobody will tell of them."""
        for number in bodies:
            if number < self._newest - BODIES_AHEAD and number not in self._puts:
                self._used(self._name(number))

    def take_said(self) -> tuple[Said, ...]:
        """The answers that wait, as many as fit into a letter."""
        said = tuple(self._said[:MAX_ITEMS])
        del self._said[: len(said)]
        return said

    async def _hand_in(self, put: Put, speaker: LearnerId) -> None:
        """What is to become of a body, and the answer to whoever has left it."""
        name, fragment = self._name(put.number), Fragment(put.fragment)

        async def pour(upload: Upload | PieceUpload, moved: Callable[[], None]) -> None:
            async with aclosing(self._bucket.stream(name, put.length, put.length)) as chunks:
                async for chunk in chunks:
                    upload.write(chunk)
                    moved()

        body, status = Inbound(headers=put.headers, length=put.length, pour=pour), 200
        try:
            if put.kind == "seed":
                text = await self._desk.seed(fragment, body, speaker=speaker)
            else:
                text = await self._desk.contribution(put.round, fragment, body, speaker=speaker)
        except NotHere as nothing:
            text, status = str(nothing).encode(), nothing.status
        except NotAsked as old:
            text, status = str(old).encode(), NOT_YOUR_TURN
        except NotYours as wrong:
            self._complain("name", wrong)
            text, status = str(wrong).encode(), 403
        except ProtocolError as wrong:
            self._malformed(put.kind, wrong)
            text, status = str(wrong).encode(), 400
        self._used(name)
        said = Said(number=put.number, status=status, text=text if status == 200 else text[:400])
        self._say(said, waits=status == 200 and put.kind == "contribution")

    def _say(self, said: Said, *, waits: bool = False) -> None:
        """``waits``: nobody is in a hurry to hear that a contribution is in; it goes with the next letter."""
        self._said.append(said)
        if waits:
            asyncio.get_running_loop().call_later(self._hurry_s, self._stir)
        else:
            self._stir()
