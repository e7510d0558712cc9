"""A syncer that is told to stop makes a last commit: what it has published is durable when it goes (section 9).

What is open of rounds is given up between two deeds: nothing of it was published, and the next life opens it anew and
asks again. What was folded into it is open work once more, in the books too. A round that has its verdict is carried
to its end first, which takes the machine a moment and nobody's answer. What was promised by learners that have left
stays promised in the commit. A shard that has finished before others keeps who is there, and where in their data.
"""

from __future__ import annotations

from gruppetto.protocol.events import Stop
from gruppetto.protocol.round import Phase
from gruppetto.protocol.standing import Standing

__all__ = ["Stopping"]

INTERRUPTIBLE = (Phase.STARTING, Phase.QUORUM, Phase.GRACE)
"""Nothing of the open round is decided yet."""
NOTHING_TO_SAVE = (Phase.SEEDING, Phase.FINISHED)


class Stopping(Standing):
    """Nothing is opened, asked or merged any more once the last commit is on its way."""

    @property
    def stopped(self) -> bool:
        """It was told to stop, and all that it has published is durable."""
        idle = self.phase in NOTHING_TO_SAVE and not self.finished_early
        return self.phase is Phase.STOPPED or (self._stopping and idle)

    def _on_stop(self, now: float, event: Stop) -> None:
        self._stopping = True

    def _stop_if_ready(self) -> None:
        """After every event, before anything else is decided."""
        decided = self._open is not None and self._open.closing is not None
        if not self._stopping or not (self.phase in INTERRUPTIBLE or self.finished_early) or decided:
            return
        opened, self._open = self._open, None
        self._later.clear()
        if opened is not None and not self._overlaps:
            # What came ahead of its round is promised, and not merged in the books; so is all with rounds in flight.
            for learner, fragment in sorted(opened.admitted.keys() - opened.early):
                self.ledger.voided(learner, fragment, opened.admitted[learner, fragment])
        self._last_commit = True
        self._persist()
