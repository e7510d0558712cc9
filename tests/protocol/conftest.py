"""A syncer core with hands that finish everything at once, under the eyes of the invariants."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import pytest

from gruppetto.protocol.actions import Fold, Persist, Publish, Send, SyncerAction, TakeOuterStep
from gruppetto.protocol.events import Folded, OuterStepped, Persisted, Published, Seeded, SyncerEvent, Tick
from gruppetto.protocol.invariants import Observer
from gruppetto.protocol.messages import Answer, Applied, Goodbye, Hello, Progress, Welcome
from gruppetto.protocol.settings import ProtocolSetting
from gruppetto.protocol.state import SyncerState
from gruppetto.protocol.syncer import SyncerCore
from gruppetto.protocol.units import Epoch, Fragment, Incarnation, LearnerId, Round, Version

LAYOUT = "layout"
Kind = TypeVar("Kind")


class Scripted:
    """Says what learners say, in one line each. ``log`` holds every action of the core, in order."""

    def __init__(self, setting: ProtocolSetting, *, epoch: int = 1, state: SyncerState | None = None) -> None:
        self.core = SyncerCore(setting, run_id="run", layout_hash=LAYOUT, epoch=Epoch(epoch), state=state)
        self.observer = Observer()
        self.now = 0.0
        self.log: list[SyncerAction] = []
        self.durable: SyncerState | None = None
        self.instant = True
        """Complete slow actions at once; otherwise the test does it."""
        self.not_finite: tuple[Fragment, ...] = ()

    def feed(self, event: SyncerEvent) -> list[SyncerAction]:
        actions = self.core.step(self.now, event)
        self.observer.saw(self.core, event, actions)
        self.log += actions
        everything = list(actions)
        for action in actions:
            done = self._completion(action)
            if done is not None and self.instant:
                everything += self.feed(done)
        return everything

    def _completion(self, action: SyncerAction) -> SyncerEvent | None:
        match action:
            case Fold():
                return Folded(round=action.round, fragment=action.fragment, learner=action.learner)
            case TakeOuterStep():
                bad = tuple(p for p in action.fragments if p in self.not_finite)
                return OuterStepped(round=action.round, not_finite=bad)
            case Persist():
                if self.instant:
                    self.durable = action.state
                return Persisted(round=action.round)
            case Publish():
                return Published(round=action.message.round)
            case _:
                return None

    def finish_folds(self) -> list[SyncerAction]:
        """Complete all folds that the test has not completed."""
        open_folds = [
            Folded(round=opened.round, fragment=fragment, learner=learner)
            for opened in self.core.open_rounds
            for learner, fragment in sorted(opened.folding)
        ]
        return [action for done in open_folds for action in self.feed(done)]

    def wait(self, seconds: float) -> list[SyncerAction]:
        self.now += seconds
        return self.feed(Tick())

    def hello(self, name: str, session: str = "", **fields: Any) -> list[SyncerAction]:
        fields = {"layout_hash": LAYOUT, **fields}
        return self.feed(Hello(learner=LearnerId(name), session=session or f"session of {name}", **fields))

    def seed(self, name: str) -> list[SyncerAction]:
        return self.feed(Seeded(learner=LearnerId(name), incarnation=self.incarnation(name)))

    def incarnation(self, name: str) -> Incarnation:
        member = self.core.members.get(LearnerId(name))
        return member.incarnation if member else Incarnation(1)

    def progress(self, name: str, clock: int, *, tokens: int = 0, **fields: Any) -> list[SyncerAction]:
        fields = {"step_s": 1.0, "steps": clock, "cursor": clock, "epoch": self.core.epoch, **fields}
        fields.setdefault("incarnation", self.incarnation(name))
        return self.feed(Progress(learner=LearnerId(name), clock=clock, tokens=tokens, **fields))

    def synchronise(self, name: str, *, clock: int = 0, at_tokens: int = 0) -> list[SyncerAction]:
        """The learner applies all that is published."""
        applied = tuple(
            Applied(fragment=Fragment(p), version=v, at_tokens=at_tokens) for p, v in enumerate(self.core.published)
        )
        return self.progress(name, clock, tokens=at_tokens, applied=applied)

    def answer(self, name: str, round: int, fragment: int = 0, /, **fields: Any) -> list[SyncerAction]:
        values: dict[str, Any] = {
            "learner": LearnerId(name),
            "incarnation": self.incarnation(name),
            "epoch": self.core.epoch,
            "round": Round(round),
            "fragment": Fragment(fragment),
            "base_version": self.core.published[fragment] if self.core.published else Version(0),
            "steps": 1,
            "tokens": 10,
            "total_tokens": 10 * round,
            "cursor": round,
            "layout_hash": LAYOUT,
        }
        return self.feed(Answer(**{**values, **fields}))

    def goodbye(self, name: str) -> list[SyncerAction]:
        return self.feed(Goodbye(learner=LearnerId(name), incarnation=self.incarnation(name)))

    def begin(self, *names: str) -> None:
        """All of these join, the first seeds, all synchronise."""
        for name in names:
            self.hello(name)
        self.seed(names[0])
        for name in names:
            self.synchronise(name)

    def sent(self, kind: type[Kind], to: str | None = None) -> list[Kind]:
        """Messages of one kind, in order."""
        return [
            a.message for a in self.log if isinstance(a, Send) and isinstance(a.message, kind) and to in (None, a.to)
        ]

    def said(self, kind: type[Kind]) -> list[Kind]:
        """Actions of one kind, in order."""
        return [a for a in self.log if isinstance(a, kind)]

    def welcome(self, name: str) -> Welcome:
        return self.sent(Welcome, name)[-1]


@pytest.fixture
def scripted() -> Callable[..., Scripted]:
    """Makes a :class:`Scripted` from protocol settings; P = H = 1, τ = 0 unless said otherwise."""

    def make(*, epoch: int = 1, state: SyncerState | None = None, **setting: Any) -> Scripted:
        dials = {"num_fragments": 1, "sync_period": 1, "overlap_steps": 0, "num_learners": 4, **setting}
        return Scripted(ProtocolSetting(**dials), epoch=epoch, state=state)

    return make
