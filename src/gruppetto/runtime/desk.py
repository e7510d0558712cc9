"""Where bodies are handed in and out, whatever road they come by: HTTP (http_server) or the road of bodies
(body_server).

Nothing here waits for ever: whoever moves next to nothing for ``stall_s`` is dropped, whatever the size of the
transfer. A body is read only while it is wanted: buffers are few, and a round that is over needs none. One that breaks
off is kept for as long, to be gone on with (:mod:`~gruppetto.runtime.parking`).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field

import msgspec

from gruppetto.errors import ConnectionLost, ProtocolError
from gruppetto.numerics.runs import Runs
from gruppetto.protocol.units import Fragment, Incarnation, LearnerId, Version
from gruppetto.runtime.assembly import PieceUpload
from gruppetto.runtime.headers import (
    ANSWER_HEADER,
    BASE_HEADER,
    CHECKSUM_HEADER,
    CODEC_HEADER,
    HAVE_HEADER,
    INCARNATION_HEADER,
    LAYOUT_HEADER,
    LEARNER_HEADER,
    OFFSET_HEADER,
    RANK_HEADER,
    RUNS_HEADER,
    VERSION_HEADER,
)
from gruppetto.runtime.intake import Upload
from gruppetto.runtime.parking import Parking
from gruppetto.runtime.patience import Patience, patience
from gruppetto.runtime.service import NotYours, Room, SyncerService
from gruppetto.runtime.steps import outgoing
from gruppetto.runtime.wire import MIN_BYTES_PER_S, checksum, decode_answer, octets

__all__ = ["Desk", "Inbound", "NotHere", "Outbound", "number"]

MAX_WAITING_UPLOADS = 1024
"""Uploads that may wait for a buffer; the next one is told to come again."""
MAX_WAITING_AN_IDENTITY = 256
"""Uploads of one learner that may wait for a buffer, whatever ranks it says it has."""
MAX_UPLOADS_A_LEARNER = 2
"""At a time, of each of its ranks: one that arrives while the one before is finished. More would take the room of the
others."""

Sender = tuple[LearnerId, str]
"""A learner, and which of its ranks."""
AnyUpload = Upload | PieceUpload
Moved = Callable[[], None]


class NotHere(Exception):
    """There is nothing to be handed out (404), or no room to take anything in (503)."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class _BrokenOff(ProtocolError):
    """A body did not come to its end, though nothing was wrong with what came."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inbound:
    """A body on its way in: what is said of it, and how to read what is missing. ``pour`` calls ``moved`` whenever
    something has come, and raises :class:`ConnectionLost` when nothing more will."""

    headers: Mapping[str, str]
    length: int
    pour: Callable[[AnyUpload, Moved], Awaitable[None]]
    resumes: bool = False
    trails: bool = False
    """Its checksum comes behind it, and ``pour`` says what it is."""

    @property
    def crc(self) -> int | None:
        """What its headers say that its checksum is. Raises :class:`ProtocolError` if that is missing."""
        return None if self.trails else _checksum(self.headers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outbound:
    """A body on its way out."""

    headers: dict[str, str]
    length: int
    parts: list[memoryview] = field(repr=False)


class Desk:
    """One for a service. ``stall_s``: see above. A ``speaker`` is in whose name alone something may be handed in; None
    where identities are not asked for."""

    def __init__(self, service: SyncerService, stall_s: float) -> None:
        self._service, self._stall_s = service, stall_s
        self._room = asyncio.Event()
        self._uploads: Counter[Sender] = Counter()
        self._arriving: dict[Patience, Callable[[], bool]] = {}
        self._waiting_uploads = 0
        self._waiting: Counter[LearnerId] = Counter()
        self.parking = Parking(stall_s)

    def review(self) -> None:
        """Something has happened: give up the bodies that nobody wants any more."""
        for time, wanted in list(self._arriving.items()):
            if not wanted():
                del self._arriving[time]
                time.end()
        self.parking.review()
        self._service.drop_halves()
        self._room.set()

    # ── in ───────────────────────────────────────────────────────────────────────────────────────────────────────

    async def contribution(
        self, round: int, fragment: Fragment, body: Inbound, *, speaker: LearnerId | None = None
    ) -> bytes:
        """Take in a contribution; the msgpack to be said of it. Raises :class:`ProtocolError`, :class:`NotHere` and
        :class:`~gruppetto.runtime.service.NotYours`."""
        answer = decode_answer(body.headers.get(ANSWER_HEADER, ""))
        if (answer.round, answer.fragment) != (round, fragment):
            raise ProtocolError(f"{ANSWER_HEADER} is about round {answer.round}, fragment {answer.fragment}")
        _check_name(answer.learner, speaker)
        crc, codec = body.crc, body.headers.get(CODEC_HEADER, "")
        service, runs = self._service, self._runs(body.headers, fragment)
        room = service.room_for(answer, codec, body.length, runs)

        def wanted() -> bool:
            return service.wants(answer)

        def opened() -> AnyUpload:
            return service.open_contribution(answer, codec, body.length, crc, runs)

        status, name = "", (answer, codec, body.length, crc, runs)
        async with self._room_in(room, _sender(body.headers, answer.learner), wanted, name) as there_is_room:
            if there_is_room:
                with self._upload(name, body.resumes, wanted, opened) as upload:
                    if await self._receive(body, upload, wanted):
                        status = service.contribute(answer, upload)
        if not status:
            if wanted():  # for a moment it was not
                raise NotHere(503, "come again")
            status = service.turn_away(answer, runs)
        tokens = answer.tokens if status == "taken" else service.tokens_taken(answer)
        return msgspec.msgpack.encode({"tokens": tokens, "status": status})

    async def seed(self, fragment: Fragment, body: Inbound, *, speaker: LearnerId | None = None) -> bytes:
        """Take in initial weights. Raises the same, and :class:`~gruppetto.runtime.service.NotAsked`."""
        crc, learner = body.crc, LearnerId(body.headers.get(LEARNER_HEADER, ""))
        _check_name(learner, speaker)
        incarnation = Incarnation(number(body.headers.get(INCARNATION_HEADER, ""), INCARNATION_HEADER))
        service, runs = self._service, self._runs(body.headers, fragment)
        room = service.room_for_seed(learner, incarnation, fragment, runs)

        def wanted() -> bool:
            return service.is_seeder(learner, incarnation)

        def opened() -> AnyUpload:
            return service.open_seed(learner, incarnation, fragment, body.length, crc, runs)

        name = (learner, incarnation, fragment, body.length, crc, runs)
        async with self._room_in(room, _sender(body.headers, learner), wanted, name):
            # Both say so if it is the wrong learner, also if it has become so meanwhile.
            with self._upload(name, body.resumes and wanted(), wanted, opened) as upload:
                await self._receive(body, upload, wanted)
                service.seed(learner, incarnation, fragment, upload)
        return msgspec.msgpack.encode({"status": "taken"})

    @contextmanager
    def _upload(
        self, name: Hashable, resumes: bool, wanted: Callable[[], bool], opened: Callable[[], AnyUpload]
    ) -> Iterator[AnyUpload]:
        """The upload of that name: what is parked, or a new one. What breaks off is parked."""
        parked = self.parking.fetch(name)
        if parked is not None and not resumes:
            parked.give_up()
            parked = None
        with parked if parked is not None else opened() as upload:
            try:
                yield upload
            except _BrokenOff:
                if isinstance(upload, Upload) and wanted():
                    self.parking.park(name, upload, wanted)
                raise

    def _runs(self, headers: Mapping[str, str], fragment: Fragment) -> Runs | None:
        text = headers.get(RUNS_HEADER)
        return None if text is None else self._service.runs_of(fragment, text)

    @asynccontextmanager
    async def _room_in(
        self, room: Room, sender: Sender, wanted: Callable[[], bool], name: Hashable
    ) -> AsyncIterator[bool]:
        """Wait until a buffer is free; False if the body is not ``wanted`` any more before that.

        Meanwhile the body stays at the sender: nobody reads its socket. What is parked makes room.
        """
        if self._waiting_uploads >= MAX_WAITING_UPLOADS or self._waiting[sender[0]] >= MAX_WAITING_AN_IDENTITY:
            raise NotHere(503, "too many uploads are waiting; come again")
        room.intake.on_room = self._room.set
        self._waiting_uploads += 1
        self._waiting[sender[0]] += 1
        try:
            while wanted() and (self._uploads[sender] >= MAX_UPLOADS_A_LEARNER or not self._has_room(room, name)):
                self._room.clear()
                await self._room.wait()
        finally:
            self._waiting_uploads -= 1
            self._waiting[sender[0]] -= 1
            self._waiting = +self._waiting
        if not wanted():
            yield False
            return
        self._uploads[sender] += 1
        try:
            yield True
        finally:
            self._uploads[sender] -= 1
            self._uploads = +self._uploads
            self._room.set()

    def _has_room(self, room: Room, name: Hashable) -> bool:
        while not room.has_room():
            if name in self.parking:
                return True
            if not self.parking.give_up_oldest():
                return False
        return True

    async def _receive(self, body: Inbound, upload: AnyUpload, wanted: Callable[[], bool]) -> bool:
        """Read a body into its buffer; False if it was given up because it is not ``wanted`` any more."""
        enough_bytes = MIN_BYTES_PER_S * self._stall_s
        missing_before = upload.missing_bytes
        try:
            async with patience(self._stall_s) as time:
                self._arriving[time] = wanted

                def moved() -> None:
                    nonlocal missing_before
                    if missing_before - upload.missing_bytes >= enough_bytes:
                        missing_before = upload.missing_bytes
                        time.moved()

                await body.pour(upload, moved)
        except TimeoutError:
            if time not in self._arriving:
                return False
            came = missing_before - upload.missing_bytes
            raise _BrokenOff(f"only {came} bytes came in {self._stall_s:g} s") from None
        except ConnectionLost:
            raise _BrokenOff(f"the body ends {upload.missing_bytes} bytes too early") from None
        finally:
            self._arriving.pop(time, None)
        return True

    # ── out ──────────────────────────────────────────────────────────────────────────────────────────────────────

    @contextmanager
    def fragment(self, fragment: Fragment, wanted: str, headers: Mapping[str, str]) -> Iterator[Outbound]:
        """A published fragment of version ``wanted`` or newer, or the rest of it, or the step to it. Raises
        :class:`NotHere` and :class:`ProtocolError`."""
        version = number(wanted, "version")
        try:
            engine = self._service.engine_for(fragment)
        except ProtocolError as unknown:
            raise NotHere(404, str(unknown)) from unknown
        runs, value = self._runs(headers, fragment), self._service.borrow(fragment)
        if value is None:
            raise NotHere(404, "there are no weights yet")
        try:
            if value.version < version:
                raise NotHere(404, f"the newest version of fragment {fragment} is {value.version}, not yet {version}")
            downlink = engine.parameters.downlink
            sent = outgoing(value, downlink, headers.get(BASE_HEADER, "") if runs is None else "")
            parts, said = [octets(sent.body)], dict(sent.headers)
            if runs is not None:
                word, crc = downlink.whole.word_bytes, 0
                parts = [parts[0][start * word : stop * word] for start, stop in runs]
                for part in parts:
                    crc = checksum(part, crc)
                said[CHECKSUM_HEADER] = f"{crc:08x}"
            length = sum(map(len, parts))
            # Of a step nobody has a part: it is asked for once.
            skipped = 0 if BASE_HEADER in said else _held(headers.get(HAVE_HEADER, ""), value.version, length)
            said |= {VERSION_HEADER: str(value.version), LAYOUT_HEADER: engine.layout.layout_hash}
            if skipped:
                said[OFFSET_HEADER] = str(skipped)
            yield Outbound(headers=said, length=length - skipped, parts=list(_after(parts, skipped)))
        finally:
            self._service.give_back(value)


def _held(text: str, version: Version, length: int) -> int:
    """How much of this version the reader has already: ``VERSION:BYTES``, of another version nothing.

    >>> _held("7:100", Version(7), 400), _held("6:100", Version(7), 400), _held("", Version(7), 400)
    (100, 0, 0)
    """
    if not text:
        return 0
    of, _, count = text.partition(":")
    held = number(count, HAVE_HEADER)
    return held if number(of, HAVE_HEADER) == version and held <= length else 0


def _after(parts: list[memoryview], skipped: int) -> Iterator[memoryview]:
    """What is left of bytes in several places when so many are left out at the beginning.

    >>> [bytes(part) for part in _after([memoryview(b"abc"), memoryview(b"de")], 3)]
    [b'de']
    """
    for part in parts:
        if len(part) > skipped:
            yield part[skipped:]
        skipped = max(0, skipped - len(part))


def _sender(headers: Mapping[str, str], learner: LearnerId) -> Sender:
    """Who sends no piece has no ranks, whatever he says."""
    return learner, headers.get(RANK_HEADER, "")[:16] if RUNS_HEADER in headers else ""


def _check_name(learner: LearnerId, speaker: LearnerId | None) -> None:
    if speaker is not None and learner != speaker:
        raise NotYours(f"{speaker} may not speak for {learner[:128]}")


def _checksum(headers: Mapping[str, str]) -> int:
    text = headers.get(CHECKSUM_HEADER, "")
    try:
        if len(text) != 8:
            raise ValueError
        return int(text, 16)
    except ValueError:
        raise ProtocolError(f"{CHECKSUM_HEADER} must be the CRC-32 of the body, eight hexadecimal digits") from None


def number(text: str, what: str) -> int:
    """A number out of a header or a query. Raises :class:`ProtocolError`."""
    if not (text.isascii() and text.isdigit() and len(text) <= 16):
        raise ProtocolError(f"{what} is {text[:40]!r}, not a number")
    return int(text)
