"""What the tensors of a learner's process would hold: bases, batches since, snapshots, rests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from gruppetto.chaos.record import Checkpoint
from gruppetto.chaos.truth import Batch, Cargo, Content, Work
from gruppetto.protocol.actions import Apply, KeepRest
from gruppetto.protocol.messages import Answer, ApplyMode
from gruppetto.protocol.state import LearnerState
from gruppetto.protocol.units import NEVER, Fragment, Round, Version
from gruppetto.runtime.backlog import Offer

if TYPE_CHECKING:
    from gruppetto.chaos.learner import LearnerProcess

__all__ = ["Holdings"]


class Holdings:
    """Of one process; does what the core says, and shows the witnesses what it is done with."""

    def __init__(self, process: LearnerProcess, checkpoint: Checkpoint | None = None, *, same_life: bool) -> None:
        self._process, self._world = process, process.world
        self.of_old_life: set[Fragment] = set()
        """Fragments that hold work of a life whose account is closed."""
        self._arrived: dict[Fragment, Content] = {}
        self._bases: dict[Fragment, Content] = {}
        self._batches: dict[Fragment, list[Batch]] = {}
        self._snapshots: dict[Fragment, Work] = {}
        self._sent: dict[Fragment, tuple[Round, Work]] = {}
        """Since the fragment was received, and for which round."""
        self._rests: dict[Fragment, int] = {}
        """Whose rest is owed, by the number of the snapshot."""
        self._left: dict[Fragment, dict[tuple[int, int], int]] = {}
        """What is left of those sent, by round and tokens."""
        if checkpoint is not None:
            self._bases = dict(checkpoint.bases)
            self._rests = dict(checkpoint.rests) if same_life else {}
            self._batches = {p: list(batches) for p, batches in checkpoint.batches.items()}

    @property
    def bases(self) -> Mapping[Fragment, Content]:
        return self._bases

    def saved(self, state: LearnerState) -> Checkpoint:
        """A copy that goes with ``state``."""
        held = {p: tuple(batches) for p, batches in self._batches.items()}
        return Checkpoint(state=state, bases=dict(self._bases), batches=held, rests=dict(self._rests))

    def another_life(self) -> None:
        """What the bases hold belongs to a closed account from now on."""
        self.of_old_life = set(self._bases)

    def trained(self, batch: Batch) -> None:
        """One step has been made."""
        for batches in self._batches.values():
            batches.append(batch)

    # ── what comes ───────────────────────────────────────────────────────────────────────────────────────────────

    def downloaded(self, fragment: Fragment, content: Content) -> None:
        waiting = self._arrived.get(fragment)
        if waiting is None or waiting.version < content.version:
            self._arrived[fragment] = content

    def found(self, found: Mapping[Fragment, Content]) -> None:
        """By the search for a state to begin from."""
        for p, content in found.items():
            waiting = self._arrived.get(p)
            if waiting is None or waiting.version <= content.version:
                self._arrived[p] = content

    def apply(self, action: Apply) -> None:
        p = action.fragment
        # A new life may be told to apply what it holds again.
        arrived = self._arrived.pop(p, None) or self._bases[p]
        self._world.watch.applied(self._process, action, arrived, self._bases.get(p))
        self.of_old_life.discard(p)
        sent = self._sent.pop(p, None)
        kept: list[Batch] = []
        if action.mode is ApplyMode.CARRY:
            assert sent is not None
            kept = self._batches[p][len(sent[1].batches) :]
        self._bases[p], self._batches[p] = arrived, kept

    # ── what goes ────────────────────────────────────────────────────────────────────────────────────────────────

    def take_snapshots(self, fragments: tuple[Fragment, ...]) -> None:
        self._snapshots = {p: self._work(p) for p in fragments}

    def offer(self, answer: Answer) -> Offer:
        work = self._snapshots.get(answer.fragment)
        self._world.watch.offered(self._process, answer, work, self._bases[answer.fragment])
        assert work is not None
        life = (answer.epoch, answer.incarnation)
        work = replace(work, life=life, owes=self._rests.get(answer.fragment, 0), at=self._world.engine.now)
        self._sent[answer.fragment] = answer.round, work
        return Offer(answer=answer, base=Cargo(None), theta=Cargo(work))

    def kept_back(self, coming: Mapping[Fragment, Version]) -> list[Fragment]:
        """Fragments with work that was never offered, though nothing takes its place. A value that is ``coming``, here
        to be applied, or made of its last contribution does, unless ``carry`` keeps the work since that."""
        newest = {**coming, **{p: content.version for p, content in self._arrived.items()}}
        carries = self._world.setting.apply is ApplyMode.CARRY
        found = []
        for p, batches in sorted(self._batches.items()):
            round, offered = self._sent.get(p, (NEVER, None))
            kept = newest.get(p, round) == round and (carries or (p not in newest and offered is None))
            if kept and len(batches) > (0 if offered is None else len(offered.batches)):
                found.append(p)
        return found

    def _work(self, fragment: Fragment) -> Work:
        process, base = self._process, self._bases[fragment]
        return Work(
            session=process.core.session,
            number=self._world.new_number(),
            base=base.number,
            base_version=base.version,
            batches=tuple(self._batches[fragment]),
            finite=self._world.engine.now >= process.sick_until,
            scale=1000.0 if self._world.engine.now < process.huge_until else 1.0,
            cosine=-0.5 if self._world.engine.now < process.backward_until else 0.3,
        )

    # ── what an encoding leaves of it ────────────────────────────────────────────────────────────────────────────

    def encoded(self, answer: Answer, work: Work) -> None:
        """An upload begins: from now on something is left of it."""
        self._left.setdefault(answer.fragment, {})[answer.round, answer.tokens] = work.number

    def number_of(self, answer: Answer, tokens: int) -> int:
        """Whose snapshot the contribution to this round was that is made of so many tokens; 0 if nobody knows."""
        return self._left.get(answer.fragment, {}).get((answer.round, tokens), 0)

    def keep_rest(self, action: KeepRest) -> None:
        kept = self._left.pop(action.fragment, {}).get((action.round, action.tokens))
        if kept is not None:
            self._rests[action.fragment] = kept

    def drop_rests(self) -> None:
        self._rests, self._left = {}, {}
