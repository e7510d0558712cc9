"""A small world for tests: real cores, real trace, a clock that is a number, and parts that answer at once."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from gruppetto.protocol import LearnerCore, ProtocolSetting, SyncerCore, SyncerState
from gruppetto.protocol.actions import Fold, Persist, Publish, Pull, Seed, Send, TakeOuterStep
from gruppetto.protocol.events import (
    Arrived,
    Boundary,
    Folded,
    LearnerEvent,
    LinkLost,
    OuterStepped,
    Persisted,
    Published,
    Seeded,
    Settle,
    StepDone,
    StepStarted,
    SyncerEvent,
)
from gruppetto.protocol.messages import Answer, Deferred, Progress, Welcome
from gruppetto.protocol.units import Epoch, LearnerId
from gruppetto.trace.log import TraceWriter
from gruppetto.trace.schema import core_header

STEP_S = 0.5
TOKENS = 100


@dataclass(kw_only=True)
class World:
    """A syncer and its learners. Learners step in turn; a step takes half a second and a hundred tokens."""

    path: Path
    setting: ProtocolSetting
    names: tuple[str, ...]
    now: float = 0.0
    epoch: int = 1
    state: SyncerState | None = None
    last_persisted: SyncerState | None = None
    learners: dict[str, LearnerCore] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.core = SyncerCore(
            self.setting, run_id="run", layout_hash="layout", epoch=Epoch(self.epoch), state=self.state
        )
        header = core_header(
            self.setting, run_id="run", layout_hash="layout", epoch=Epoch(self.epoch), state=self.state
        )
        self.trace = TraceWriter(self.path, header)
        self._inbox: deque[tuple[str, SyncerEvent | LearnerEvent]] = deque()
        for name in self.names:
            self.join(name)

    def join(self, name: str, session: str = "") -> None:
        core = LearnerCore(LearnerId(name), session=session or f"{name}-{self.epoch}", layout_hash="layout")
        self.learners[name] = core
        self.tell("syncer", core.hello())
        self.learn(name, Boundary())

    def kill(self, name: str) -> None:
        incarnation = self.learners.pop(name).incarnation
        self.tell("syncer", LinkLost(learner=LearnerId(name), incarnation=incarnation))

    def leave(self, name: str) -> None:
        self.tell("syncer", self.learners.pop(name).goodbye())

    def run(self, steps: int) -> None:
        for _ in range(steps):
            for name in sorted(self.learners):
                self.learn(name, StepStarted())
            self.now += STEP_S
            for name in sorted(self.learners):
                core = self.learners[name]
                self.learn(name, StepDone(tokens=TOKENS, cursor=core.cursor + 1))

    def end(self) -> None:
        for name in sorted(self.learners):
            self.leave(name)
        self.tell("syncer", Settle())
        self.trace.note(self.now, "syncer", "ledger", **self.core.ledger.in_tokens())
        self.trace.close()

    def learn(self, name: str, event: LearnerEvent) -> None:
        for action in self.learners[name].step(self.now, event):
            match action:
                case Progress() | Answer() | Deferred():
                    self._inbox.append(("syncer", action))
                case Pull():
                    self._inbox.append((name, Arrived(fragment=action.fragment, version=action.version)))
                case Seed():
                    core = self.learners[name]
                    self._inbox.append(("syncer", Seeded(learner=core.learner, incarnation=core.incarnation)))
        self._deliver()

    def tell(self, who: str, event: SyncerEvent | LearnerEvent) -> None:
        self._inbox.append((who, event))
        self._deliver()

    def _deliver(self) -> None:
        while self._inbox:
            who, event = self._inbox.popleft()
            if who != "syncer":
                if who in self.learners:
                    self.learn(who, event)  # type: ignore[arg-type]
                    if isinstance(event, Arrived | Welcome):
                        self.learn(who, Boundary())
                continue
            self.trace.event(self.now, "syncer", event)  # type: ignore[arg-type]
            actions = self.core.step(self.now, event)  # type: ignore[arg-type]
            self.trace.actions(self.now, "syncer", actions)
            for action in actions:
                match action:
                    case Send():
                        self._inbox.append((action.to, action.message))
                    case Fold():
                        done = Folded(round=action.round, fragment=action.fragment, learner=action.learner)
                        self._inbox.append(("syncer", done))
                    case TakeOuterStep():
                        self._inbox.append(("syncer", OuterStepped(round=action.round)))
                    case Persist():
                        self.last_persisted = action.state
                        self._inbox.append(("syncer", Persisted(round=action.round)))
                    case Publish():
                        for to in action.to:
                            self._inbox.append((to, action.message))
                        self._inbox.append(("syncer", Published(round=action.message.round)))


@pytest.fixture
def make_world(tmp_path: Path) -> Callable[..., World]:
    """A world whose trace is ``tmp_path / "trace.jsonl"``."""

    def make(*names: str, **more: object) -> World:
        setting = more.pop("setting", ProtocolSetting(num_learners=4, num_fragments=3, sync_period=3, rounds=20))
        return World(path=tmp_path / "trace.jsonl", setting=setting, names=names, **more)  # type: ignore[arg-type]

    return make
