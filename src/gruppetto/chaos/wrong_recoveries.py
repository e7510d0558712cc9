"""What can be done wrong where a life of the syncer ends and another one begins from what is left, as the docstrings
say; :mod:`gruppetto.chaos.canaries` says who must notice."""

from __future__ import annotations

from dataclasses import replace

from gruppetto.chaos.disk import Commit, Disk, Legacy
from gruppetto.protocol.learner import LearnerCore
from gruppetto.protocol.messages import Refusal, Welcome
from gruppetto.protocol.state import OlderValue
from gruppetto.protocol.syncer import SyncerCore
from gruppetto.protocol.units import Epoch

__all__ = [
    "ClaimsAnEpochTwice",
    "ForgetsTheCommitInFlight",
    "ForgetsWhatWasLost",
    "GoesBackToAnOlderLife",
    "KeepsTheNameOfADamagedValue",
    "PublishesBeyondItsReserve",
    "ReusesAnUnseenRound",
    "TakesOverWithoutAFence",
]


class ReusesAnUnseenRound(SyncerCore):
    """What it does not know has not happened."""

    def _republish(self, unseen: int, damaged: tuple[OlderValue, ...]) -> None:
        super()._republish(0, damaged)


class KeepsTheNameOfADamagedValue(SyncerCore):
    """An older value goes by the version of the one that is damaged."""

    def _republish(self, unseen: int, damaged: tuple[OlderValue, ...]) -> None:
        super()._republish(unseen, ())


class ForgetsWhatWasLost(SyncerCore):
    """The books say still that it is merged."""

    def _republish(self, unseen: int, damaged: tuple[OlderValue, ...]) -> None:
        unchanged = (replace(value, merged=self.ledger.merged_in[value.fragment]) for value in damaged)
        super()._republish(unseen, tuple(unchanged))


class PublishesBeyondItsReserve(SyncerCore):
    """With commits now and then, now is never."""

    def _needs_commit(self) -> bool:
        return super()._needs_commit() and (not self.setting.reserve or self._is_last(self.round))


class TakesOverWithoutAFence(Disk):
    """Whoever writes last is right."""

    def has_authority(self, epoch: Epoch) -> bool:
        return True

    def write(self, now: float, commit: Commit) -> bool:
        return super().write(now, replace(commit, epoch=self.epoch))


class ForgetsTheCommitInFlight(Disk):
    """The old life is taken for dead, and what it is just writing for not written."""

    def claim(self, *, alone: bool) -> Legacy:
        return super().claim(alone=True)


class ClaimsAnEpochTwice(Disk):
    """Two lives that begin at once find the same newest epoch, and both take the next one."""

    def claim(self, *, alone: bool) -> Legacy:
        if not alone:
            self.epoch = Epoch(self.epoch - 1)
        return super().claim(alone=alone)


class GoesBackToAnOlderLife(LearnerCore):
    """Any syncer will do."""

    def knows_newer(self, said: Welcome | Refusal) -> bool:
        return False
