"""A checkpoint of the whole run: a consistent cut through the syncer and all learners (section 9; Chandy and Lamport,
"Distributed snapshots", 1985).

Between two rounds the syncer records its own part and sends a :class:`~gruppetto.protocol.messages.Marker` down the
ordered control stream of every connected learner. A learner saves its part at its next step boundary, after all that
was announced before the marker and before anything that was announced after it. Nobody waits: rounds and steps go on
while parts are being written.

::

    syncer    ──R──┊─────────R+1────────R+2──▶        ┊ the cut: syncer at round R,
                   ┊╲ marker                              learners one step boundary later, with nothing of R+1
    learner   ───────┊step┊──────────step──▶

Why this is consistent, though no message on its way is recorded:

* *Syncer to learner.* Streams are in order, and a learner applies a value only once it is announced; so its part holds
  no version that the syncer's part does not hold. What was announced and not yet pulled is found in the next Welcome.
* *Learner to syncer.* A learner saves later than the syncer, so its part remembers the batches of every contribution
  that the syncer's part has merged, and its totals are at least those that the syncer's books have heard of. Between
  rounds no contribution is half merged. One on its way is a function of the learner's part, and is asked for again:
  the resumed run asks for round R + 1 anew.

Who goes away, or does not answer in time, is left out; the checkpoint then says so and counts all the same. A resumed
run closes the accounts of those left out as lost (:func:`gruppetto.protocol.state.without_the_absent`).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from gruppetto.protocol.actions import Checkpoint, CheckpointClosed, CheckpointRefused
from gruppetto.protocol.events import CheckpointRecorded, SyncerEvent, TakeCheckpoint
from gruppetto.protocol.membership import MemberPhase
from gruppetto.protocol.messages import Hello, Marked, Marker
from gruppetto.protocol.round import Phase
from gruppetto.protocol.standing import Standing
from gruppetto.protocol.units import Incarnation, LearnerId, Round

__all__ = ["Marking", "OpenMark"]

BETWEEN_ROUNDS = (Phase.STARTING, Phase.QUORUM, Phase.FINISHED)
"""All that was merged is published, and nothing of the next round is in but promises of learners that leave. With
several rounds in flight all that is in is a promise, so that a round that has asked is as good a moment."""


@dataclass(slots=True, kw_only=True)
class OpenMark:
    """The one checkpoint that is being taken."""

    mark: str
    kept: tuple[str, ...]
    """Other checkpoints whose parts are still needed."""
    give_up_at: float
    round: Round | None = None
    """Of the syncer's part; None before the cut."""
    recorded: bool = False
    why: str = ""
    """What went wrong with the syncer's part."""
    waiting: dict[LearnerId, Incarnation] = field(default_factory=dict)
    parts: dict[LearnerId, tuple[Incarnation, str]] = field(default_factory=dict)
    left_out: dict[LearnerId, tuple[Incarnation, str]] = field(default_factory=dict)

    def leave_out(self, learner: LearnerId, why: str) -> None:
        incarnation = self.waiting.pop(learner, None)
        if incarnation is not None:
            self.left_out[learner] = (incarnation, why)

    @property
    def waiting_for(self) -> str:
        """In words."""
        if self.round is None:
            return "the open round to close"
        missing = [*sorted(self.waiting), *([] if self.recorded or self.why else ["the syncer's own part"])]
        return ", ".join(missing)


class Marking(Standing):
    """Takes one checkpoint at a time, and lets the run go on meanwhile."""

    @property
    def open_mark(self) -> OpenMark | None:
        """The checkpoint being taken, for whoever shows it."""
        return self._mark

    def _on_take_checkpoint(self, now: float, event: TakeCheckpoint) -> None:
        why = ""
        if self._mark is not None:
            why = f"checkpoint {self._mark.mark} is being taken; ask again when it is done"
        elif self.phase is Phase.SEEDING:
            why = "the run has no weights yet; ask again when it has begun"
        if why:
            self._out.append(CheckpointRefused(mark=event.mark, why=why))
        else:
            self._mark = OpenMark(mark=event.mark, kept=event.kept, give_up_at=now + self.setting.checkpoint_timeout_s)

    def _on_checkpoint_recorded(self, now: float, event: CheckpointRecorded) -> None:
        if self._mark is not None and self._mark.mark == event.mark and self._mark.round is not None:
            self._mark.recorded, self._mark.why = not event.why, event.why

    def _on_marked(self, now: float, news: Marked) -> None:
        member = self.members.current(news.learner, news.incarnation)
        if member is None:
            return
        member.heard(now)
        mark = self._mark
        if mark is None or news.epoch != self.epoch or news.mark != mark.mark:
            return
        # One that was given up may have saved its part all the same, before its link broke.
        asked = mark.waiting.get(news.learner) or mark.left_out.get(news.learner, (None, ""))[0]
        if asked != news.incarnation:
            return
        if news.ok:
            mark.waiting.pop(news.learner, None)
            mark.left_out.pop(news.learner, None)
            mark.parts[news.learner] = (news.incarnation, news.text)
        else:
            mark.leave_out(news.learner, news.text)

    def _mind_the_mark(self, now: float, event: SyncerEvent) -> None:
        """After every event, before anything else is decided: make the cut when its moment is here, and close."""
        mark = self._mark
        if mark is None:
            return
        between = self.phase in BETWEEN_ROUNDS or (self._overlaps and self.phase is Phase.GRACE)
        if mark.round is None and between and not self._unsaved:
            self._cut(mark)
        elif isinstance(event, Hello):
            mark.leave_out(event.learner, "its link broke")  # and with it the marker, perhaps
        for learner, incarnation in list(mark.waiting.items()):
            member = self.members.current(learner, incarnation)
            if member is None:
                mark.leave_out(learner, "it has left, or a new process has its name")
            elif not member.connected or member.phase is MemberPhase.AWAY:
                mark.leave_out(learner, "it went away")
        if now >= mark.give_up_at:
            self._give_up(mark)
        elif mark.round is not None and (mark.recorded or mark.why) and not mark.waiting:
            self._close(mark)

    def _cut(self, mark: OpenMark) -> None:
        mark.round = self.round
        # Nothing is published after it: in the world that goes on from here there was nothing.
        state = replace(self.snapshot(), reserve=0)
        self._out.append(Checkpoint(mark=mark.mark, round=self.round, state=state))
        for member in self.members.connected():
            mark.waiting[member.learner] = member.incarnation
            marker = Marker(epoch=self.epoch, mark=mark.mark, round=self.round, kept=mark.kept)
            self._send(member.learner, member.session, marker)

    def _give_up(self, mark: OpenMark) -> None:
        patience_s = self.setting.checkpoint_timeout_s
        for learner in list(mark.waiting):
            mark.leave_out(learner, f"no answer in {patience_s:g} s")
        if mark.round is None:
            mark.why = f"no round has closed in {patience_s:g} s"
        elif not mark.recorded and not mark.why:
            mark.why = f"the syncer's part was not written in {patience_s:g} s"
        self._close(mark)

    def _close(self, mark: OpenMark) -> None:
        self._mark = None
        self._out.append(
            CheckpointClosed(
                mark=mark.mark,
                round=self.round if mark.round is None else mark.round,
                parts=tuple((learner, *mark.parts[learner]) for learner in sorted(mark.parts)),
                left_out=tuple((learner, mark.left_out[learner][1]) for learner in sorted(mark.left_out)),
                why=mark.why,
            )
        )
