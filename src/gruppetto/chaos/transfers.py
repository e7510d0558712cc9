"""What one learner's process sends and fetches: the shipping backlog, emptied over the planned roads."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from gruppetto.chaos.network import Wire
from gruppetto.chaos.truth import Cargo, Content, Work
from gruppetto.protocol.events import Arrived, LearnerEvent, Taken
from gruppetto.protocol.messages import Answer
from gruppetto.protocol.units import Fragment, Version
from gruppetto.runtime.backlog import Backlog, Offer

if TYPE_CHECKING:
    from gruppetto.chaos.learner import LearnerProcess

__all__ = ["Transfers"]

UPLOADS, DOWNLOADS = 2, 4
"""Transfers at a time."""
UPLOAD_PAUSE_S = 0.1
"""Before a contribution that was lost on the way is sent once more."""


class Transfers:
    """Of one process. A transfer ends with the connection that it was started under; ``feed`` takes what has come of
    it to the core, ``give_up`` is for one that has failed for good."""

    def __init__(
        self,
        process: LearnerProcess,
        *,
        feed: Callable[[LearnerEvent], object],
        give_up: Callable[[Wire], None],
    ) -> None:
        self._process, self._world, self._road = process, process.world, process.road
        self._feed, self._give_up = feed, give_up
        self.backlog = Backlog()
        self.seed_wanted = False
        self._connections = 0
        self._uploading = 0
        self._pulling: set[Fragment] = set()

    def pump(self) -> None:
        """Send and fetch all that can be sent and fetched now."""
        process, wire = self._process, self._process.wire
        if wire is None or not wire.welcomed or process.left:
            return
        if self._road.blocked and not self._road.holds:
            return
        self.send_frames(wire)
        if self.seed_wanted:
            self.seed_wanted = False
            learner, incarnation = process.name, process.core.incarnation
            self._road.carry(
                lambda: self._world.seed(learner, incarnation, wire.syncer), lost=lambda: self._give_up(wire)
            )
        while self._uploading < UPLOADS and (job := self.backlog.next_upload()) is not None:
            assert isinstance(job, Offer) and isinstance(job.theta, Cargo) and job.theta.what is not None
            self._upload(job.answer, job.theta.what)
        while len(self._pulling) < DOWNLOADS and (wanted := self.backlog.next_pull()) is not None:
            self._download(wire, *wanted)

    def send_frames(self, wire: Wire) -> None:
        for frame in self.backlog.take_frames():
            self._process.record.said.append(frame)
            wire.up(frame)

    def coming(self) -> dict[Fragment, Version]:
        """What is wanted or on its way down, as the syncer at the other end has it."""
        wire = self._process.wire
        values = {} if wire is None else {p: self._world.serve(p, wire.syncer) for p in sorted(self.backlog.coming)}
        return {p: value.version for p, value in values.items() if value is not None}

    def broke_off(self) -> None:
        """The connection has gone, and all transfers with it."""
        self._connections += 1
        for _ in range(self._uploading):
            self.backlog.uploaded()
        for fragment in self._pulling:
            self.backlog.pulled(fragment)
        self._uploading = 0
        self._pulling.clear()

    # ── up ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _upload(self, answer: Answer, work: Work) -> None:
        """Until it is delivered, or its round is over."""
        process, connection, at = self._process, self._connections, self._process.contact.at
        self._uploading += 1
        process.record.contributed.append((answer, work))
        process.holdings.encoded(answer, work)
        tokens = 0

        def contribute() -> None:
            nonlocal tokens
            tokens = self._world.contribute(answer, work, at)

        def delivered() -> None:
            if connection == self._connections:
                self._uploaded(answer, tokens)

        def send() -> None:
            if connection != self._connections:
                return
            if process.core.newest_round >= answer.round or process.core.epoch != answer.epoch:
                self._uploaded(answer, 0)
                return
            self._road.carry(
                contribute,
                delivered=lambda: process.awake(delivered),
                lost=lambda: process.later(UPLOAD_PAUSE_S, send),
                may_repeat=True,
            )

        send()

    def _uploaded(self, answer: Answer, tokens: int) -> None:
        """``tokens``: those of the contribution that is in, by the syncer's reply."""
        self._uploading -= 1
        self.backlog.uploaded()
        if tokens:
            number = self._process.holdings.number_of(answer, tokens)
            self._world.watch.owing.told_of(number, self._world.engine.now)
            self._feed(Taken(epoch=answer.epoch, round=answer.round, fragment=answer.fragment, tokens=tokens))
        self.pump()

    # ── down ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _download(self, wire: Wire, fragment: Fragment, version: Version) -> None:
        self._pulling.add(fragment)
        connection = self._connections

        def serve() -> None:
            content = self._world.serve(fragment, wire.syncer)
            if content is None or content.version < version:
                self._road.carry(lambda: self._give_up(wire))
            else:
                self._road.carry(
                    lambda: self._process.awake(lambda: self._downloaded(connection, fragment, content)),
                    lost=lambda: self._give_up(wire),
                )

        self._road.carry(serve, lost=lambda: self._give_up(wire))

    def _downloaded(self, connection: int, fragment: Fragment, content: Content) -> None:
        if connection != self._connections or self._process.left:
            return
        self._pulling.discard(fragment)
        self.backlog.pulled(fragment)
        self._process.holdings.downloaded(fragment, content)
        self._feed(Arrived(fragment=fragment, version=content.version))
