"""The second phase: all faults have ended, and the run has to be well again within a bound."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gruppetto.protocol.messages import Answer, Deferred, RejectionReason
from gruppetto.protocol.round import Phase

if TYPE_CHECKING:
    from gruppetto.chaos.world import World

__all__ = ["Recovery"]

FORGIVEN = frozenset({RejectionReason.LATE.value, RejectionReason.STALE_BASE.value})
"""What may become of a good contribution: without a grace window the slower learners are late, always."""

OF_ANOTHER_LIFE = frozenset(
    {
        RejectionReason.STALE_EPOCH.value,
        RejectionReason.STALE_INCARNATION.value,
        RejectionReason.UNKNOWN_LEARNER.value,
        RejectionReason.DUPLICATE.value,
    }
)
"""It was on its way still. It says nothing about the learner of today."""

ON_THEIR_WAY = 2
"""Rounds in which what was spoilt before the calm may arrive after it."""


class Recovery:
    """Made at the moment of calm; ``missing`` says what is not well yet."""

    def __init__(self, world: World) -> None:
        self._world = world
        commit = world.disk.commit
        self._round = commit.state.round if commit else 0
        self._heard: set[str] = set()
        self._spoilt: dict[str, dict[int, str]] = {}
        """In which rounds a learner's contributions were refused, and why, until one is taken."""

    def heard(self, answer: Answer | Deferred, reason: str | None) -> None:
        """A contribution has come to the gate, or is promised; ``reason`` is why it was turned away."""
        if reason in OF_ANOTHER_LIFE:
            return
        self._heard.add(answer.learner)
        if reason is None and isinstance(answer, Answer):
            self._spoilt.pop(answer.learner, None)
        elif reason is not None and reason not in FORGIVEN:
            self._spoilt.setdefault(answer.learner, {})[answer.round] = reason

    def missing(self) -> list[str]:
        """Empty when rounds close, and every learner is linked, takes part and has what was published since."""
        world = self._world
        syncer = world.syncer
        if syncer is None:
            return ["the syncer is down"]
        if syncer.over:
            return []
        if world.setting.rounds is not None and syncer.core.phase is Phase.FINISHED:
            return ["the books of the finished run are not closed"]
        missing = [] if syncer.core.round > self._round else [f"no round has closed: {syncer.core.waiting_for}"]
        linked = sum(1 for process in world.processes if process.present and process.core.linked)
        for process in world.fleet.values():
            core = process.core
            if linked >= world.setting.slots and not core.linked:
                continue  # a double under its old name has the slot
            if not (process.present and process.begun and core.linked and core.epoch == syncer.epoch):
                missing.append(f"{process.name} is not back")
            elif process.name not in self._heard:
                missing.append(f"{process.name} contributes nothing")
            elif len(self._spoilt.get(process.name, ())) > ON_THEIR_WAY:
                missing.append(f"{process.name} is refused: {self._spoilt[process.name]}")
            elif any(fragment.version <= self._round for fragment in core.fragments):
                missing.append(f"{process.name} still has a value from before")
        return missing
