"""Bodies that come to the syncer: contributions, initial weights, whole or in pieces."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from gruppetto.errors import ProtocolError
from gruppetto.numerics.runs import Runs
from gruppetto.protocol.events import Seeded
from gruppetto.protocol.messages import Answer
from gruppetto.protocol.units import Fragment, Incarnation, LearnerId
from gruppetto.runtime.assembly import PieceUpload
from gruppetto.runtime.engine import is_older
from gruppetto.runtime.intake import Intake, Upload
from gruppetto.runtime.service_standing import ServiceStanding

__all__ = ["BodiesIn", "NotAsked", "Room"]


class NotAsked(ProtocolError):
    """Initial weights from a learner that was not asked for them, or is not any more: its picture of the run is old."""


@dataclass(frozen=True, slots=True)
class Room:
    """Where a body goes, and whether it can be taken in now."""

    intake: Intake
    has_room: Callable[[], bool]


class BodiesIn(ServiceStanding):
    """Says where a body goes while there is room for it, and takes it in when it is here."""

    def room_for(self, answer: Answer, codec: str, length: int, runs: Runs | None = None) -> Room:
        """Where a contribution goes that is announced as ``length`` bytes in ``codec``, or such a piece of one."""
        engine = self.engine_for(answer.fragment)
        wanted = engine.contributions.codec.name
        if codec != wanted:
            raise ProtocolError(f"contributions of this run come as {wanted}, not {codec[:32]!r}")
        if runs is None:
            engine.contributions.check(engine.parameters.spec(answer.fragment), length)
            return Room(engine.contributions, engine.contributions.has_room)
        engine.halves.check(runs, length)
        return Room(engine.halves.intake, partial(engine.halves.has_room, answer, runs))

    def wants(self, answer: Answer) -> bool:
        """The contribution would be merged now: it is worth a buffer, and the reading."""
        return self.engine is not None and self.engine.wants(answer) and not self.engine.superseded(answer)

    def turn_away(self, answer: Answer, runs: Runs | None = None) -> str:
        """Refuse a contribution that is not wanted, unread. Why, the learner hears on its control connection: once, of
        several pieces with the first one."""
        engine = self.engine_for(answer.fragment)
        if not engine.wants(answer) and (runs is None or runs.bounds[0][0] == 0):
            engine.turn_away(answer)
        return "dropped"

    def open_contribution(
        self, answer: Answer, codec: str, length: int, crc: int | None, runs: Runs | None = None
    ) -> Upload | PieceUpload:
        """Take a buffer for a contribution of ``length`` bytes, or for a piece. Only while there is room for it.

        ``crc``: None if its checksum comes behind it.
        """
        self.room_for(answer, codec, length, runs)
        engine = self.engine_for(answer.fragment)
        spec = engine.parameters.spec(answer.fragment)
        if runs is None:
            return engine.contributions.open(spec, length, crc)
        engine.halves.drop(lambda half: is_older(half, than=answer))
        return engine.halves.open(answer, spec, runs, length, crc)

    def tokens_taken(self, answer: Answer) -> int:
        """Of how many tokens this learner's contribution to that round is made, if one has been taken; else 0."""
        return self.engine_for(answer.fragment).core.tokens_taken(answer)

    def contribute(self, answer: Answer, upload: Upload | PieceUpload) -> str:
        """The body is here. "taken" or "dropped"; why it was dropped the learner hears on its control connection.
        "held": it is a piece, and others are to come."""
        engine = self.engine_for(answer.fragment)
        if isinstance(upload, Upload):
            body = upload.finish()
            self.seen.traffic.up += len(body.payload)
        else:
            self.seen.traffic.up += upload.length
            whole = engine.halves.finish(answer, upload)
            if whole is None:
                return "held"
            body = whole
        return "taken" if engine.decide(answer, body) else "dropped"

    def drop_halves(self) -> None:
        """Something has happened: give up the half answers that nobody wants any more."""
        if self.engine is not None:
            self.engine.drop_halves()

    def runs_of(self, fragment: Fragment, text: str) -> Runs:
        """The elements of a fragment that a header names; at least one. Raises :class:`ProtocolError`."""
        runs = Runs.decode(text, self.engine_for(fragment).parameters.spec(fragment).numel)
        if not runs.bounds:
            raise ProtocolError("a piece of a fragment without elements")
        return runs

    # ── initial weights ──────────────────────────────────────────────────────────────────────────────────────────

    def room_for_seed(
        self, learner: LearnerId, incarnation: Incarnation, fragment: Fragment, runs: Runs | None
    ) -> Room:
        """Where the initial weights of a fragment go, or a piece of them."""
        engine = self.engine_for(fragment)
        if runs is None:
            return Room(engine.seeds, engine.seeds.has_room)
        half = learner, incarnation, fragment
        return Room(engine.seed_halves.intake, partial(engine.seed_halves.has_room, half, runs))

    def open_seed(
        self,
        learner: LearnerId,
        incarnation: Incarnation,
        fragment: Fragment,
        length: int,
        crc: int | None,
        runs: Runs | None = None,
    ) -> Upload | PieceUpload:
        """Take a buffer for initial weights, from the learner that was asked for them."""
        engine = self.engine_for(fragment)
        self._check_seeder(learner, incarnation)
        spec = engine.parameters.spec(fragment)
        if runs is None:
            return engine.seeds.open(spec, length, crc)
        return engine.seed_halves.open((learner, incarnation, fragment), spec, runs, length, crc)

    def seed(
        self, learner: LearnerId, incarnation: Incarnation, fragment: Fragment, upload: Upload | PieceUpload
    ) -> None:
        """The initial weights of one fragment are here, or a piece. With the last one the run goes on."""
        engine = self.engine_for(fragment)
        self._check_seeder(learner, incarnation)
        if isinstance(upload, Upload):
            body = upload.finish()
        else:
            whole = engine.seed_halves.finish((learner, incarnation, fragment), upload)
            if whole is None:
                return
            body = whole
        try:
            self.seen.traffic.up += len(body.payload)
            if not body.inspection.finite:
                raise ProtocolError(f"the initial weights of fragment {fragment} hold NaN or infinity")
            engine.parameters.seed(fragment, body)
        finally:
            body.release()
        if engine.parameters.seed_is_complete:
            engine.seeder = None
            value_norms = engine.parameters.value_norms()
            engine.feed(Seeded(learner=learner, incarnation=incarnation, value_norms=value_norms))

    def is_seeder(self, learner: LearnerId, incarnation: Incarnation) -> bool:
        """It was asked for the initial weights, and nobody else has been since."""
        return self.engine is not None and self.engine.seeder == (learner, incarnation)

    def _check_seeder(self, learner: LearnerId, incarnation: Incarnation) -> None:
        if not self.is_seeder(learner, incarnation):
            raise NotAsked(f"nobody asked {learner[:128]} (incarnation {incarnation}) for initial weights")
