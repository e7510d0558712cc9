"""Deliberately wrong cores. Each looks almost right, and the fuzzer must catch it: a check that nothing fails is none.

A canary is a subclass of a shipping core with one thing done differently. ``caught_by`` names the invariants that may
tell, ``within`` how many seeds it may take.
"""

from __future__ import annotations

from dataclasses import dataclass

from gruppetto.chaos.fuzz import RAISED, Cores
from gruppetto.chaos.wrong_learners import (
    AnswersWithoutWork,
    BeginsItsSlotAgain,
    HeedsEveryEpoch,
    KeepsOldSnapshots,
    KeepsTheWorkOfItsLastLife,
    NeverResetsItsCounters,
    StampsAtTheEnd,
    StaysBehindAfterAReconnect,
    WaitsForItsSyncer,
)
from gruppetto.chaos.wrong_syncers import (
    AsksForWeightsAgain,
    AsksOnlyOnce,
    ComparesDifferences,
    DoesNotWaitForFolds,
    ForgetsItsCursors,
    ForgetsItsRound,
    ForgetsItsVersions,
    ForgetsTheDead,
    ForgetsTheQuorum,
    ForgetsToVoid,
    GivesAnIncarnationTwice,
    IgnoresEpochs,
    IgnoresIncarnations,
    PublishesBeforeItPersists,
    RefusesWhoComesBack,
    SettlesNothing,
    SkipsARound,
    StepsOnAnEmptyRound,
    TakesAFailedPersistForGood,
    TakesDuplicates,
    TakesTheLate,
    TakesWhatIsNotFinite,
    TakesWhatIsStale,
    TellsOfARoundTooEarly,
    TellsOnlyContributors,
    WantsMoreThanTheQuorum,
)
from gruppetto.protocol.learner import LearnerCore
from gruppetto.protocol.syncer import SyncerCore

__all__ = ["CANARIES", "Canary"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Canary:
    """A wrong core, and who has to notice."""

    cores: Cores
    caught_by: tuple[str, ...]
    within: int
    """Seeds, from 0 on."""

    @property
    def name(self) -> str:
        core = self.cores.learner if self.cores.syncer is SyncerCore else self.cores.syncer
        return getattr(core, "__name__", str(core))


def _syncer(kind: type[SyncerCore], *caught_by: str, within: int) -> Canary:
    return Canary(cores=Cores(syncer=kind), caught_by=caught_by, within=within)


def _learner(kind: type[LearnerCore], *caught_by: str, within: int) -> Canary:
    return Canary(cores=Cores(learner=kind), caught_by=caught_by, within=within)


CANARIES: tuple[Canary, ...] = (
    _syncer(PublishesBeforeItPersists, "persist-before-publish", within=3),
    _syncer(TakesAFailedPersistForGood, "persist-before-publish", within=60),
    _syncer(TakesDuplicates, "merged-once", within=200),
    _syncer(TakesWhatIsStale, "merged-onto-its-base", "ledger-balances", within=40),
    _syncer(TakesWhatIsNotFinite, "only-finite", within=100),
    _syncer(TakesTheLate, "merged-onto-its-base", "ledger-balances", "merged-once", "progress-resumes", within=100),
    _syncer(IgnoresEpochs, "old-lives-are-fenced", within=200),
    _syncer(IgnoresIncarnations, "old-lives-are-fenced", within=200),
    _syncer(WantsMoreThanTheQuorum, "progress-resumes", within=30),
    _syncer(ForgetsTheQuorum, "no-commit-below-quorum", "every-fold-is-in", within=30),
    _syncer(DoesNotWaitForFolds, "every-fold-is-in", within=10),
    _syncer(ForgetsItsVersions, "versions-only-grow", within=60),
    _syncer(ForgetsItsRound, "versions-only-grow", within=60),
    _syncer(ForgetsItsCursors, "cursors-are-durable", within=60),
    _syncer(ForgetsTheDead, "ledger-balances", RAISED, within=40),
    _syncer(GivesAnIncarnationTwice, "batch-merged-once", "answers-are-true", "cursors-are-durable", within=400),
    _syncer(ComparesDifferences, "wakes-lie-ahead", within=60),
    _syncer(TellsOnlyContributors, "progress-resumes", within=60),
    _syncer(TellsOfARoundTooEarly, "durable-before-told", within=100),
    _syncer(SkipsARound, "progress-resumes", within=60),
    _syncer(AsksForWeightsAgain, "seeded-once", "durable-before-applied", within=10),
    _syncer(AsksOnlyOnce, "progress-resumes", within=80),
    _syncer(ForgetsToVoid, "books-match-weights", within=100),
    _syncer(RefusesWhoComesBack, "rightly-refused", within=40),
    _syncer(SettlesNothing, "settled", within=100),
    _syncer(StepsOnAnEmptyRound, "no-commit-below-quorum", "every-fold-is-in", within=40),
    _learner(StampsAtTheEnd, "stamped-at-start", within=20),
    _learner(AnswersWithoutWork, "answers-are-true", within=20),
    _learner(KeepsOldSnapshots, "answers-are-true", within=20),
    _learner(KeepsTheWorkOfItsLastLife, "answers-are-true", "batch-merged-once", within=200),
    _learner(WaitsForItsSyncer, "never-waits", "progress-resumes", within=30),
    _learner(HeedsEveryEpoch, "old-lives-are-fenced", within=200),
    _learner(NeverResetsItsCounters, "answers-are-true", within=10),
    _learner(BeginsItsSlotAgain, "batch-merged-once", within=60),
    _learner(StaysBehindAfterAReconnect, "progress-resumes", within=120),
)
"""Every wrong core, with the invariants that tell."""
