"""Deliberately wrong cores. Each looks almost right, and the fuzzer must catch it: a check that nothing fails is none.

A canary is a subclass of a shipping core with one thing done differently. ``caught_by`` names the invariants that may
tell, ``within`` how many seeds it may take.
"""

from __future__ import annotations

from dataclasses import dataclass

from gruppetto.chaos.disk import Disk
from gruppetto.chaos.fuzz import RAISED, Cores
from gruppetto.chaos.wrong_alarms import (
    CallsOneSlowRoundAHabit,
    CallsOneSpentWindowAHabit,
    LosesPatience,
    NeverWithdraws,
    PassesOverWhatIsNoNumber,
    SeesNoDisk,
)
from gruppetto.chaos.wrong_books import ForgetsWhoDeparted, NamesWhoeverWasHere
from gruppetto.chaos.wrong_cuts import (
    BelievesEveryMark,
    CutsBetweenCommits,
    ForgetsWhomItAwaits,
    NeverGivesUp,
    RecordsInTheMiddle,
    ResumesAsAnotherLife,
    ResumesWithoutItsCounters,
    SavesTooLate,
    TakesEveryPart,
    TrustsWhatItSavedLongAgo,
)
from gruppetto.chaos.wrong_ends import (
    BooksItsVisitors,
    HandsBatchesOutAgain,
    KeepsThemWaiting,
    LeasesSlotsForEver,
    LetsItsVisitorsTrain,
    TakesItselfForTheRun,
)
from gruppetto.chaos.wrong_flights import (
    BooksWhatIsInFlight,
    ClosesWhoeverIsReady,
    CountsAnswersOfTheNext,
    OpensOneTooMany,
    OverlooksTheNextQuorum,
)
from gruppetto.chaos.wrong_gates import (
    ComparesWithWhatItAdmits,
    CountsRetriesAsVotes,
    ForgetsTheFactor,
    IgnoresEpochs,
    IgnoresIncarnations,
    MistakesTheDirection,
    RefusesAMajority,
    RefusesTheQuorum,
    TakesDuplicates,
    TakesTheLate,
    TakesWhatIsNotFinite,
    TakesWhatIsStale,
    WeighsByTokens,
)
from gruppetto.chaos.wrong_learners import (
    AnswersWithoutWork,
    BeginsItsSlotAgain,
    BeginsOnWhateverItFinds,
    ForgetsWhatItHeldBack,
    HeedsEveryEpoch,
    HoldsUpItsOwnRound,
    KeepsOldSnapshots,
    KeepsTheWorkOfItsLastLife,
    LeavesBeforeItHasAll,
    NeverResetsItsCounters,
    StampsAtTheEnd,
    StaysBehindAfterAReconnect,
    WaitsForItsSyncer,
)
from gruppetto.chaos.wrong_parting import (
    BooksAPromiseAtOnce,
    ClosesOnWhatCameAhead,
    ForgetsItsPromises,
    KeepsItsPromisesTooSoon,
    RemembersPromisesOfTheDead,
    TakesAStaleParting,
    TakesLeaveOfAClosingRound,
)
from gruppetto.chaos.wrong_recoveries import (
    ClaimsAnEpochTwice,
    ForgetsTheCommitInFlight,
    ForgetsWhatWasLost,
    KeepsTheNameOfADamagedValue,
    PublishesBeyondItsReserve,
    ReusesAnUnseenRound,
    TakesOverWithoutAFence,
)
from gruppetto.chaos.wrong_restarts import (
    ForgetsItsCursors,
    ForgetsItsRound,
    ForgetsItsVersions,
    ForgetsItsYardsticks,
)
from gruppetto.chaos.wrong_rests import ForgetsItsRests, KeepsARestTooSoon
from gruppetto.chaos.wrong_rounds import (
    AsksOnlyOnce,
    ComparesDifferences,
    DoesNotWaitForFolds,
    ForgetsTheQuorum,
    ForgetsToVoid,
    ForgetsWhenTheyAreDue,
    PublishesBeforeItPersists,
    SettlesNothing,
    SkipsARound,
    StepsOnAnEmptyRound,
    TakesAFailedPersistForGood,
    TellsOnlyContributors,
    WantsMoreThanTheQuorum,
)
from gruppetto.chaos.wrong_skips import (
    OverlooksTheFirstAnswers,
    OverlooksTheLastAnswer,
    OverlooksTheLastFold,
    OverlooksTheQuorum,
)
from gruppetto.chaos.wrong_stops import GoesWithoutAWord, SavesAHalfMergedRound
from gruppetto.chaos.wrong_welcomes import (
    AsksForWeightsAgain,
    ForgetsTheDead,
    FreshLearnersDonate,
    FreshLearnersSeed,
    GivesAnIncarnationTwice,
    RefusesWhoComesBack,
    TellsOfARoundTooEarly,
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
        (wrong,) = {self.cores.syncer, self.cores.learner, self.cores.disk} - {SyncerCore, LearnerCore, Disk}
        return getattr(wrong, "__name__", str(wrong))


def _syncer(kind: type[SyncerCore], *caught_by: str, within: int) -> Canary:
    return Canary(cores=Cores(syncer=kind), caught_by=caught_by, within=within)


def _learner(kind: type[LearnerCore], *caught_by: str, within: int) -> Canary:
    return Canary(cores=Cores(learner=kind), caught_by=caught_by, within=within)


def _disk(kind: type[Disk], *caught_by: str, within: int) -> Canary:
    return Canary(cores=Cores(disk=kind), caught_by=caught_by, within=within)


CANARIES: tuple[Canary, ...] = (
    _syncer(PublishesBeforeItPersists, "persist-before-publish", within=3),
    _syncer(TakesAFailedPersistForGood, "persist-before-publish", within=60),
    _syncer(TakesDuplicates, "merged-once", within=200),
    _syncer(TakesWhatIsStale, "merged-onto-its-base", "ledger-balances", within=200),
    _syncer(TakesWhatIsNotFinite, "only-finite", within=100),
    _syncer(TakesTheLate, "merged-onto-its-base", "ledger-balances", "merged-once", "progress-resumes", within=100),
    _syncer(IgnoresEpochs, "old-lives-are-fenced", within=200),
    _syncer(IgnoresIncarnations, "old-lives-are-fenced", within=200),
    _syncer(WantsMoreThanTheQuorum, "progress-resumes", "alarms-hold", within=30),
    _syncer(ForgetsTheQuorum, "no-commit-below-quorum", "every-fold-is-in", within=30),
    _syncer(DoesNotWaitForFolds, "every-fold-is-in", within=10),
    _syncer(OverlooksTheLastFold, "closes-when-it-may", within=10),
    _syncer(OverlooksTheLastAnswer, "closes-when-it-may", within=50),
    _syncer(OverlooksTheQuorum, "asks-when-it-may", within=10),
    _syncer(OverlooksTheFirstAnswers, "closes-when-it-may", within=10),
    _syncer(ForgetsWhenTheyAreDue, "due-in-its-turn", within=20),
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
    _syncer(AsksOnlyOnce, "progress-resumes", within=600),
    _syncer(ForgetsToVoid, "books-match-weights", within=100),
    _syncer(RefusesWhoComesBack, "rightly-refused", within=40),
    _syncer(SettlesNothing, "settled", "departed-are-one-sum", within=300),
    _syncer(StepsOnAnEmptyRound, "no-commit-below-quorum", "every-fold-is-in", within=40),
    _syncer(ComparesWithWhatItAdmits, "yardsticks-are-votes", within=40),
    _syncer(ForgetsTheFactor, "healthy-ones-pass", within=20),
    _syncer(RefusesAMajority, "a-majority-is-never-refused", within=200),
    _syncer(RefusesTheQuorum, "a-majority-is-never-refused", within=300),
    _syncer(CountsRetriesAsVotes, "yardsticks-are-votes", within=600),
    _syncer(ForgetsItsYardsticks, "yardsticks-are-votes", "long-ones-are-tamed", within=100),
    _syncer(WeighsByTokens, "weights-are-true", within=10),
    _syncer(MistakesTheDirection, "only-who-pulls-back-is-named", within=400),
    _syncer(BooksAPromiseAtOnce, "books-match-weights", within=120),
    _syncer(KeepsItsPromisesTooSoon, "books-match-weights", within=120),
    _syncer(TakesLeaveOfAClosingRound, "books-match-weights", "merged-onto-its-base", within=1500),
    _syncer(ForgetsItsPromises, "books-match-weights", "merged-once", within=120),
    _syncer(RemembersPromisesOfTheDead, "books-match-weights", within=600),
    _syncer(TakesAStaleParting, "merged-onto-its-base", "ledger-balances", "books-match-weights", within=1000),
    _syncer(ClosesOnWhatCameAhead, "riders-come-first", within=120),
    _learner(StampsAtTheEnd, "stamped-at-start", within=20),
    _learner(AnswersWithoutWork, "answers-are-true", within=20),
    _learner(KeepsOldSnapshots, "answers-are-true", within=20),
    _learner(KeepsTheWorkOfItsLastLife, "answers-are-true", "batch-merged-once", within=200),
    _learner(WaitsForItsSyncer, "never-waits", "progress-resumes", within=30),
    _learner(HeedsEveryEpoch, "old-lives-are-fenced", within=200),
    _learner(NeverResetsItsCounters, "answers-are-true", within=10),
    _learner(BeginsItsSlotAgain, "batch-merged-once", within=60),
    _learner(StaysBehindAfterAReconnect, "progress-resumes", within=120),
    _syncer(FreshLearnersSeed, "seeded-once", within=40),
    _syncer(FreshLearnersDonate, "donors-have-the-weights", within=60),
    _learner(BeginsOnWhateverItFinds, "begins-up-to-date", within=100),
    _learner(ForgetsWhatItHeldBack, "progress-resumes", within=60),
    _syncer(ReusesAnUnseenRound, "one-value-per-version", "versions-only-grow", "rightly-refused", within=60),
    _syncer(KeepsTheNameOfADamagedValue, "books-match-weights", "progress-resumes", within=60),
    _syncer(ForgetsWhatWasLost, "books-match-weights", within=60),
    _syncer(PublishesBeyondItsReserve, "persist-before-publish", "durable-before-told", within=40),
    _disk(TakesOverWithoutAFence, "cursors-are-durable", "one-value-per-version", within=60),
    _disk(ForgetsTheCommitInFlight, "one-value-per-version", "rightly-refused", within=200),
    _disk(ClaimsAnEpochTwice, "one-authority-per-epoch", RAISED, within=100),
    _learner(SavesTooLate, "cut-is-consistent", within=60),
    _learner(ResumesAsAnotherLife, "resumed-lives-go-on", "batch-merged-once", "books-match-weights", within=60),
    _learner(ResumesWithoutItsCounters, "answers-are-true", within=60),
    _syncer(RecordsInTheMiddle, "cut-is-consistent", within=60),
    _syncer(BelievesEveryMark, "cut-is-consistent", "old-lives-are-fenced", within=100),
    _syncer(ForgetsWhomItAwaits, "resumed-lives-go-on", within=60),
    _syncer(
        TakesEveryPart,
        "batch-merged-once",
        "books-match-weights",
        "progress-resumes",
        "cut-is-consistent",
        within=150,
    ),
    _syncer(NeverGivesUp, "checkpoints-end", within=300),
    _syncer(CutsBetweenCommits, "cut-is-consistent", within=100),
    _syncer(GoesWithoutAWord, "a-stop-loses-nothing", within=150),
    _syncer(SavesAHalfMergedRound, "books-match-weights", within=60),
    _syncer(NeverWithdraws, "alarms-hold", within=60),
    _syncer(SeesNoDisk, "alarms-hold", within=10),
    _syncer(LosesPatience, "alarms-hold", within=60),
    _syncer(PassesOverWhatIsNoNumber, "alarms-hold", within=10),
    _syncer(CallsOneSpentWindowAHabit, "alarms-hold", within=60),
    _syncer(CallsOneSlowRoundAHabit, "alarms-hold", within=60),
    _syncer(ForgetsWhoDeparted, "names-add-up", within=200),
    _syncer(NamesWhoeverWasHere, "departed-are-one-sum", within=200),
    _learner(TrustsWhatItSavedLongAgo, "durable-before-applied", "progress-resumes", within=400),
    _learner(ForgetsItsRests, "rests-are-said-once", within=20),
    _learner(KeepsARestTooSoon, "rests-are-said-once", within=400),
    _learner(HoldsUpItsOwnRound, "progress-resumes", within=60),
    _learner(LeavesBeforeItHasAll, "notice-is-used", within=200),
    _syncer(ClosesWhoeverIsReady, "one-round-at-a-time", "apart-in-flight", within=60),
    _syncer(CountsAnswersOfTheNext, "books-match-weights", "every-fold-is-in", "riders-come-first", within=60),
    _syncer(BooksWhatIsInFlight, "books-match-weights", within=60),
    _syncer(OpensOneTooMany, "apart-in-flight", within=20),
    _syncer(OverlooksTheNextQuorum, "asks-when-it-may", within=60),
    _syncer(TakesItselfForTheRun, "the-rest-is-ridden", "rightly-refused", within=30),
    _syncer(KeepsThemWaiting, "the-rest-is-ridden", within=60),
    _syncer(HandsBatchesOutAgain, "the-rest-is-ridden", within=60),
    _syncer(LeasesSlotsForEver, "visitors-only-look", within=60),
    _syncer(BooksItsVisitors, "visitors-only-look", within=60),
    _syncer(LetsItsVisitorsTrain, "visitors-only-look", within=60),
)
"""Every wrong core, with the invariants that tell."""
