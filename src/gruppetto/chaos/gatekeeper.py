"""What must hold at the gate where contributions are compared: a second, simpler account of who offered what."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import median_low

from gruppetto.chaos.truth import Work
from gruppetto.protocol.actions import Alarm, AlarmKind, Drop, Fold, Persist, SyncerAction
from gruppetto.protocol.messages import Answer, RejectionReason
from gruppetto.protocol.norms import FIRST_SHARE
from gruppetto.protocol.state import SyncerState
from gruppetto.protocol.syncer import SyncerCore
from gruppetto.protocol.units import Fragment, LearnerId, Round

__all__ = ["GATE_INVARIANTS", "Gatekeeper"]

GATE_INVARIANTS = {
    "a-majority-is-never-refused": "what is refused for its norm is at most half of the live, and leaves a quorum",
    "healthy-ones-pass": "a healthy contribution is neither refused for its norm nor shortened",
    "long-ones-are-tamed": "while most of what is offered is healthy, nothing far longer is merged as it is",
    "only-who-pulls-back-is-named": "the alarm of direction names nobody who never pulled back",
    "weights-are-true": "a contribution counts for its tokens and steps, or less if it would dominate",
    "yardsticks-are-votes": "a yardstick is the lower median of one vote a learner and round, merged or not, also "
    "after a restart, and nothing else is compared with",
}
"""Those of :data:`gruppetto.chaos.invariants.WORLD_INVARIANTS` that are judged here."""

VALUE_NORMS = (10.0, 20.0)
"""Of the initial weights, both pieces of every fragment; :attr:`Work.norms` are shorter."""
LONGEST_HEALTHY = 3.0
"""Of the first piece."""

Vote = tuple[Round, LearnerId, tuple[float, ...], bool]
"""With what it says, and whether it is healthy."""
Broken = tuple[str, str]
"""The name of an invariant, and what was seen."""


class Gatekeeper:
    """Follows one life of the syncer; ``before`` followed the one before it, or this one while nobody had seeded.

    Its methods give the first thing that is wrong, or None.
    """

    def __init__(self, state: SyncerState | None, before: Gatekeeper | None) -> None:
        """A life begins from what is durable: the yardsticks are, the votes are not."""
        self._votes: dict[Fragment, list[Vote]] = {}
        self._before = state.yardsticks if state is not None else ()
        self._shares: list[Vote] = []
        self._share_before = state.usual_share if state is not None else FIRST_SHARE
        self._refused: dict[tuple[Round, Fragment], set[LearnerId]] = {}
        self._lightest: float = before._lightest if before is not None else float("inf")
        self._pulled_back: set[LearnerId] = set(before._pulled_back) if before is not None else set()

    def saw(
        self, core: SyncerCore, answer: Answer | None, work: Work | None, actions: Iterable[SyncerAction]
    ) -> Broken | None:
        """Judge one step: ``answer`` is what came to the gate in it, with the ``work`` that it holds."""
        actions = list(actions)
        found = self._judge(core, answer, work, actions) if answer is not None and work is not None else None
        for action in actions:
            found = found or self._judge_action(core, action)
        return found

    def _judge_action(self, core: SyncerCore, action: SyncerAction) -> Broken | None:
        match action:
            case Persist():
                wanted = [self._voted(Fragment(p)) for p in range(core.setting.num_fragments)]
                durable = [of_pieces or (0.0, 0.0) for of_pieces in action.state.yardsticks or [()] * len(wanted)]
                if (durable, action.state.usual_share) != (wanted, self._share()):
                    return "yardsticks-are-votes", f"{action.state} is made durable, not {wanted}, {self._share()}"
            case Alarm(kind=AlarmKind.DIRECTION):
                names = set(action.text.partition(" of ")[2].partition(" point")[0].split(", "))
                if not names <= self._pulled_back:
                    return "only-who-pulls-back-is-named", f"{names} are, {self._pulled_back} did"
            case _:
                pass
        return None

    def _judge(self, core: SyncerCore, answer: Answer, work: Work, actions: Sequence[SyncerAction]) -> Broken | None:
        fold = next((a for a in actions if isinstance(a, Fold)), None)
        refused = any(isinstance(a, Drop) and a.reason is RejectionReason.NORM for a in actions)
        if fold is None and not refused:
            return None
        if work.cosine < 0:
            self._pulled_back.add(answer.learner)
        setting, p = core.setting, answer.fragment
        yardsticks = self._yardsticks(p)
        periods = max(1.0, len(work.batches) / setting.sync_period)
        compares = setting.norm_gate != "off" and len(core.members.live()) > 1
        beyond = {
            i: yardstick
            for i, (norm, yardstick) in enumerate(zip(work.norms, yardsticks, strict=True))
            if norm > setting.norm_factor * periods * yardstick and compares
        }
        mostly_healthy = self._mostly_healthy(p)
        self._vote(answer, work, sync_period=setting.sync_period)
        caps = dict(fold.caps) if fold is not None else {}
        if work.scale == 1.0 and (refused or caps):
            return "healthy-ones-pass", f"{answer.learner} in round {answer.round}: {actions}"
        counted = [min(norm, caps.get(i, norm)) for i, norm in enumerate(work.norms)]
        tame = setting.norm_factor * periods * LONGEST_HEALTHY
        if fold is not None and mostly_healthy and compares and counted[0] > tame:
            return "long-ones-are-tamed", f"{counted} of {answer.learner} among healthy ones"
        if fold is not None and caps != beyond:
            return "yardsticks-are-votes", f"{answer.learner} is folded with {caps}, not {beyond}"
        if refused and not (beyond and setting.norm_gate == "reject"):
            return "yardsticks-are-votes", f"{answer.learner} is refused at {work.norms} against {yardsticks}"
        return self._judge_refusals(core, answer, refused=refused) or self._judge_weight(core, fold, work)

    def _judge_refusals(self, core: SyncerCore, answer: Answer, *, refused: bool) -> Broken | None:
        key = (answer.round, answer.fragment)
        self._refused = {k: who for k, who in self._refused.items() if k[0] > core.round}
        who = self._refused.setdefault(key, set())
        if not refused:
            who.discard(answer.learner)
            return None
        who.add(answer.learner)
        live = len(core.members.live())
        needed = min(core.setting.min_quorum, live) if core.setting.when_short == "degrade" else core.setting.min_quorum
        if 2 * len(who) > live or live - len(who) < needed:
            return "a-majority-is-never-refused", f"{sorted(who)} of {live} live, K = {needed}"
        return None

    def _judge_weight(self, core: SyncerCore, fold: Fold | None, work: Work) -> Broken | None:
        true = work.tokens**2 / len(work.batches)
        self._lightest = min(self._lightest, true)
        cap = core.setting.weight_cap
        if fold is None or fold.weight == true or (cap is not None and cap * self._lightest <= fold.weight < true):
            return None
        return "weights-are-true", f"{fold.weight} instead of {true}, the lightest so far is {self._lightest}"

    def _vote(self, answer: Answer, work: Work, *, sync_period: int) -> None:
        share = math.hypot(*work.norms) / math.hypot(*VALUE_NORMS)
        healthy = work.scale == 1.0
        _cast(self._shares, (answer.round, answer.learner, (share,), healthy))
        if answer.round - answer.base_version >= sync_period:
            votes = self._votes.setdefault(answer.fragment, [])
            _cast(votes, (answer.round, answer.learner, work.norms, healthy))

    def _share(self) -> float:
        shares = [share for _, _, (share,), _ in self._shares]
        return median_low(shares) if len(shares) >= 4 else self._share_before

    def _voted(self, p: Fragment) -> tuple[float, ...]:
        votes = [norms for _, _, norms, _ in self._votes.get(p, [])]
        if len(votes) >= 4:
            return tuple(median_low(piece) for piece in zip(*votes, strict=True))
        return (self._before[p] if self._before else ()) or (0.0, 0.0)

    def _yardsticks(self, p: Fragment) -> tuple[float, ...]:
        by_value = [self._share() * norm for norm in VALUE_NORMS]
        return tuple(voted or other for voted, other in zip(self._voted(p), by_value, strict=True))

    def _mostly_healthy(self, p: Fragment) -> bool:
        votes = self._votes.get(p, [])
        if len(votes) < 4:
            if self._voted(p)[0] > 0:
                return self._voted(p)[0] <= LONGEST_HEALTHY
            votes = self._shares
        if len(votes) < 4:
            return self._share_before * VALUE_NORMS[0] <= LONGEST_HEALTHY
        return 2 * sum(healthy for *_, healthy in votes) > len(votes)


def _cast(votes: list[Vote], vote: Vote) -> None:
    """One vote a learner and round, the newest; sixteen, or all of the last two rounds."""
    same = [i for i, other in enumerate(votes) if other[:2] == vote[:2]]
    if same:
        votes[same[0]] = vote
    else:
        votes.append(vote)
    last_two = sorted({v[0] for v in votes})[-2:]
    while len(votes) > 16 and votes[0][0] not in last_two:
        del votes[0]
