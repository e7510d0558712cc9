"""A syncer in memory, and learners made of numpy around the real core."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from aiohttp import web
from tests.runtime.memory import InlineWorker, MemoryControl, MemoryLink

from gruppetto.numerics import CODECS, Layout, TensorSpec, encode_difference
from gruppetto.protocol import LearnerCore, ProtocolSetting
from gruppetto.protocol.actions import Apply, LearnerAction, Pull, SaveState, Seed, TakeSnapshot
from gruppetto.protocol.events import Arrived, Boundary, LinkDown, StateSaved, StepDone, StepStarted
from gruppetto.protocol.messages import Answer, ApplyMode, Deferred, Heartbeat, Marked, Progress
from gruppetto.protocol.units import Fragment, LearnerId, Version
from gruppetto.runtime.clock import ManualClock
from gruppetto.runtime.http_server import HttpServer
from gruppetto.runtime.service import SyncerService
from gruppetto.runtime.setting import SyncerSetting
from gruppetto.runtime.shared_memory import SharedMemory
from gruppetto.runtime.wire import HelloFrame, ProgressFrame, WelcomeFrame, checksum
from gruppetto.trace.log import TraceWriter

InnerStep = Callable[[np.ndarray, int], np.ndarray]


def layout_of(*sizes: int) -> Layout:
    return Layout(
        tensors=tuple(TensorSpec(name=f"w{i}", shape=(size,), dtype="float32") for i, size in enumerate(sizes))
    )


class NumpyLearner:
    """A learner whose model is one flat vector: tensors end to end, in the order of the layout."""

    def __init__(
        self,
        service: SyncerService,
        name: str,
        layout: Layout,
        theta: np.ndarray,
        inner_step: InnerStep,
        clock: ManualClock,
        session: str | None = None,
    ) -> None:
        self.layout, self.inner_step, self.clock = layout, inner_step, clock
        self.theta = theta.astype(np.float32).copy()
        self.core = LearnerCore(LearnerId(name), session=session or f"{name}-1", layout_hash=layout.layout_hash)
        self.link = MemoryLink(service)
        self.control: MemoryControl | None = None
        self.parts: Any = None
        self.codecs: tuple[str, str] = ("", "")
        self.bases: dict[Fragment, np.ndarray] = {}
        self.arrived: dict[Fragment, np.ndarray] = {}
        self.snapshots: dict[Fragment, np.ndarray] = {}
        self.replies: list[str] = []
        self.frames: list[Any] = []
        self.saved: list[tuple[Any, np.ndarray, dict[Fragment, np.ndarray]]] = []
        """Parts of checkpoints: core, model, bases."""
        ends = np.cumsum([t.numel for t in layout.tensors])
        self._offsets = {t.name: int(end) - t.numel for t, end in zip(layout.tensors, ends, strict=True)}

    def connect(self) -> None:
        self.control = self.link.connect(HelloFrame.of(self.core.hello(), self.layout))

    def pump(self) -> bool:
        """Take in what has come; whether anything had."""
        assert self.control is not None
        frames = self.control.receive()
        for frame in frames:
            self.frames.append(frame)
            if isinstance(frame, WelcomeFrame):
                self.parts = frame.to_fragmentation(self.layout)
                self.codecs = (frame.uplink, frame.downlink)
                self.feed(frame.welcome)
            else:
                self.feed(frame)
        if self.control.closed is not None and self.core.linked:
            self.feed(LinkDown())
        return bool(frames)

    def boundary(self) -> None:
        self.feed(Boundary())

    def step(self, tokens: int = 10) -> None:
        self.feed(StepStarted())
        self.theta = self.inner_step(self.theta, self.core.cursor).astype(np.float32)
        self.feed(StepDone(tokens=tokens, cursor=self.core.cursor + 1))

    def beat(self) -> None:
        self.link.heartbeat(Heartbeat(learner=self.core.learner, incarnation=self.core.incarnation))

    def goodbye(self) -> None:
        assert self.control is not None
        self.control.send(self.core.goodbye())
        self.control.close()

    def feed(self, event: Any) -> None:
        for action in self.core.step(self.clock.now(), event):
            self._perform(action)

    def get(self, p: Fragment) -> np.ndarray:
        spec = self.parts.fragments[p]
        flat = [self.theta[self._offsets[x.name] + x.start : self._offsets[x.name] + x.stop] for x in spec.pieces]
        return np.concatenate(flat).astype(np.float32)

    def put(self, p: Fragment, values: np.ndarray) -> None:
        for x in self.parts.fragments[p].pieces:
            at = self._offsets[x.name]
            self.theta[at + x.start : at + x.stop] = values[x.offset : x.offset + x.numel]

    def _send(self, frame: Any) -> None:
        """A learner whose link is down keeps its news for the next Welcome."""
        if self.control is not None and self.control.is_open:
            self.control.send(frame)

    def _perform(self, action: LearnerAction) -> None:
        assert self.control is not None
        match action:
            case Seed():
                for p in range(len(self.parts.fragments)):
                    body = CODECS["fp32"].encode(self.get(Fragment(p)))
                    self.link.seed(self.core.learner, self.core.incarnation, Fragment(p), body)
            case Pull(fragment=p, version=version):
                came = self.link.fetch(p, version)
                assert checksum(came.body) == came.checksum
                self.arrived[p] = CODECS[came.codec].decode(came.body, self.parts.fragments[p].numel).copy()
                self.feed(Arrived(fragment=p, version=came.version))
            case Apply(fragment=p, mode=mode):
                assert mode is ApplyMode.OVERWRITE
                self.bases[p] = self.arrived.pop(p) if p in self.arrived else self.bases[p]
                self.put(p, self.bases[p])
            case TakeSnapshot(fragments=fragments):
                self.snapshots = {p: self.get(p) for p in fragments}
            case Answer():
                codec = CODECS[self.codecs[0]]
                body = encode_difference(self.bases[action.fragment], self.snapshots[action.fragment], codec)
                self.replies.append(self.link.contribute(action, codec.name, body))
            case Progress():
                self._send(ProgressFrame(progress=action, metrics={"loss": 1.0}))
            case Deferred() | Marked():
                self._send(action)
            case SaveState():
                self.saved.append((action.state, self.theta.copy(), {p: b.copy() for p, b in self.bases.items()}))
                self.feed(StateSaved(mark=action.mark, ok=True, text=f"disk of {self.core.learner}"))
            case _:
                raise AssertionError(action)


def answer(learner: NumpyLearner, /, **change: Any) -> Answer:
    """What a learner might say by hand of one step, in round 1; but for what is changed."""
    fields: dict[str, Any] = {
        "learner": learner.core.learner,
        "incarnation": learner.core.incarnation,
        "epoch": learner.core.epoch,
        "round": 1,
        "fragment": Fragment(0),
        "base_version": Version(0),
        "steps": 1,
        "tokens": 10,
        "total_tokens": 10,
        "cursor": 1,
        "layout_hash": learner.layout.layout_hash,
    }
    return Answer(**{**fields, **change})


def settle(learners: list[NumpyLearner]) -> None:
    """Deliver everything, in order, until nothing is under way; then let every learner apply what arrived."""
    deliver(learners)
    for learner in learners:
        learner.boundary()
    deliver(learners)


def deliver(learners: list[NumpyLearner]) -> None:
    came = True
    while came:
        came = False
        for learner in learners:
            came = learner.pump() or came


class World:
    """One syncer in memory and its learners."""

    def __init__(self, path: Path, protocol: ProtocolSetting, layout: Layout, **setting: Any) -> None:
        self.path, self.protocol, self.layout, self.setting = path, protocol, layout, setting
        self.clock = ManualClock()
        self.memory: SharedMemory | None = self.setting.pop("memory", None)
        self.learners: list[NumpyLearner] = []
        self.service = self.open()

    def open(self, trace: TraceWriter | None = None) -> SyncerService:
        chosen: dict[str, Any] = {"uplink": "fp32", "merge": ((".*", "mean"),), **self.setting}
        return SyncerService(
            self.protocol,
            SyncerSetting(state=self.path / "syncer", **chosen),
            clock=self.clock,
            trace=trace or TraceWriter(self.path / "trace.jsonl", {}),
            merger=InlineWorker(),
            disk=InlineWorker(),
            memory=self.memory,
        )

    def restart(self) -> None:
        """The syncer dies and comes back; the learners notice."""
        self.service.close()
        self.begin_again()

    def begin_again(self) -> None:
        """The next life of a syncer that is dead."""
        self.service = self.open()
        for learner in self.learners:
            if learner.core.linked:
                learner.feed(LinkDown())
            learner.link = MemoryLink(self.service)

    def learner(self, name: str, theta: np.ndarray, inner_step: InnerStep, **more: Any) -> NumpyLearner:
        made = NumpyLearner(self.service, name, more.pop("layout", self.layout), theta, inner_step, self.clock, **more)
        self.learners.append(made)
        return made

    def join(self, *learners: NumpyLearner) -> None:
        for learner in learners:
            learner.connect()
            settle(self.learners_in_touch())
        settle(self.learners_in_touch())

    def learners_in_touch(self) -> list[NumpyLearner]:
        return [learner for learner in self.learners if learner.control is not None and learner.core.refusal is None]

    def settle(self, learners: list[NumpyLearner]) -> None:
        settle(learners)

    def step_all(self, rounds: int = 1) -> None:
        for _ in range(rounds):
            self.clock.advance(1.0)
            for learner in self.learners_in_touch():
                learner.step()
                learner.beat()
            settle(self.learners_in_touch())

    def unsent(self) -> tuple[Answer, np.ndarray]:
        """What the first learner would contribute to the round that is open now, and its bytes; they stay here."""
        learner, held = self.learners[0], []

        def hold(answer: Answer, codec: str, body: Any) -> str:
            held.append((answer, np.frombuffer(bytes(body), np.uint8)))
            return "dropped"

        contribute, learner.link.contribute = learner.link.contribute, hold
        self.step_all()
        learner.link.contribute = contribute
        return held[-1]

    @asynccontextmanager
    async def served(self) -> AsyncIterator[tuple[HttpServer, int]]:
        """An HTTP server before the service, and its port. The token is sesame."""
        server = HttpServer(self.service, token="sesame", stall_s=20.0, memory=self.memory)
        self.service.on_change = server.review
        runner = web.AppRunner(server.app, shutdown_timeout=1.0)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        try:
            yield server, runner.addresses[0][1]
        finally:
            server.hang_up()
            await runner.cleanup()

    def theta(self) -> np.ndarray:
        """Θ as one vector, tensors in the order of the layout."""
        model = self.service.borrow_model()
        assert model is not None
        data = b"".join(model)
        self.service.give_back(*model.values)
        header = int.from_bytes(data[:8], "little")
        return np.frombuffer(data[8 + header :], np.float32)


@pytest.fixture
def world(tmp_path: Path) -> Callable[..., World]:
    """Make a world: ``world(layout, **protocol)``; ``setting={...}`` for the syncer's own dials."""
    made: list[World] = []

    def make(layout: Layout, *, setting: dict[str, Any] | None = None, **protocol: Any) -> World:
        fresh = World(tmp_path / f"world{len(made)}", ProtocolSetting(**protocol), layout, **(setting or {}))
        made.append(fresh)
        return fresh

    yield make
    for one in made:
        one.service.close()


@pytest.fixture
def tensors() -> Callable[..., Layout]:
    return layout_of
