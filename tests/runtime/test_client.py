"""The learner's client against a scripted syncer that fails in all the ways a link can. No torch anywhere."""

from __future__ import annotations

import asyncio
import json
import logging
import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from aiohttp import WSMsgType, web

from gruppetto.errors import ProtocolError, Refused
from gruppetto.numerics import CODECS, Fragmentation, Layout, TensorSpec, fragment
from gruppetto.protocol import LearnerCore
from gruppetto.protocol.actions import Apply, KeepRest, TakeSnapshot
from gruppetto.protocol.events import Boundary, LearnerEvent, StepDone, StepStarted
from gruppetto.protocol.messages import (
    Announcement,
    Answer,
    ApplyMode,
    Ask,
    Begin,
    ClipCause,
    Clipping,
    Refusal,
    RefusalReason,
    Rejection,
    RejectionReason,
    Welcome,
)
from gruppetto.protocol.units import Epoch, Fragment, Incarnation, LearnerId, Round, Version
from gruppetto.runtime.address import SyncerAddress
from gruppetto.runtime.address_book import AddressBook, Directory
from gruppetto.runtime.backlog import Offer, SeedPart
from gruppetto.runtime.client import LearnerClient
from gruppetto.runtime.headers import CHECKSUM_HEADER, CODEC_HEADER, LAYOUT_HEADER, VERSION_HEADER
from gruppetto.runtime.leases import Lease, LeasePool
from gruppetto.runtime.transfers import TRIES
from gruppetto.runtime.wire import (
    Frame,
    Goodbye,
    HelloFrame,
    ProgressFrame,
    WelcomeFrame,
    checksum,
    decode_answer,
    decode_frame,
    encode_frame,
)

LAYOUT = Layout(tensors=(TensorSpec(name="w", shape=(4,), dtype="float32"),))
PARTS = fragment(LAYOUT, 1)
P0 = Fragment(0)


class ScriptedSyncer:
    """Speaks the wire and does what it is told. ``fragment`` and ``contribution`` answer the n-th request, from 0."""

    def __init__(self) -> None:
        self.fragment: Callable[[int], web.Response] = lambda n: self.good_fragment()
        self.contribution: Callable[[int], web.Response] = lambda n: web.Response(body=b"")
        self.seed: Callable[[int], web.Response] = lambda n: web.Response(body=b"")
        self.seeds: list[list[float]] = []
        self.first: Callable[[int], Frame] = lambda n: self.welcome()
        self.value = np.float32([1, 2, 3, 4])
        self.version = 0
        self.heard: list[Frame] = []
        self.answers: list[tuple[Answer, list[float]]] = []
        self.hellos, self.asked, self.offered = 0, 0, 0
        self._sockets: list[web.WebSocketResponse] = []
        ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve(ready)), daemon=True)
        self._thread.start()
        ready.wait()

    async def _serve(self, ready: threading.Event) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        app = web.Application()
        app.router.add_get("/v1/control", self._control)
        app.router.add_get("/v1/fragment/{p}", self._fragment)
        app.router.add_put("/v1/contribution/{t}/{p}", self._contribution)
        app.router.add_put("/v1/seed/{p}", self._seed)
        runner = web.AppRunner(app, shutdown_timeout=0.0)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.address = SyncerAddress.parse(f"127.0.0.1:{runner.addresses[0][1]}")
        ready.set()
        await self._stop.wait()
        await runner.cleanup()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def say(self, frame: Frame) -> None:
        """To whoever is connected."""
        asyncio.run_coroutine_threadsafe(self._sockets[-1].send_bytes(encode_frame(frame)), self._loop).result()

    def hang_up(self, code: int = 1001, reason: bytes = b"") -> None:
        asyncio.run_coroutine_threadsafe(self._sockets[-1].close(code=code, message=reason), self._loop).result()

    async def _control(self, request: web.Request) -> web.StreamResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        hello = decode_frame((await socket.receive()).data, {"HelloFrame"})
        assert isinstance(hello, HelloFrame) and hello.to_layout() == LAYOUT
        self.hellos += 1
        self._sockets.append(socket)
        await socket.send_bytes(encode_frame(self.first(self.hellos - 1)))
        async for message in socket:
            if message.type is WSMsgType.BINARY:
                self.heard.append(decode_frame(message.data, {"ProgressFrame", "Deferred", "Goodbye"}))
        return socket

    async def _fragment(self, request: web.Request) -> web.StreamResponse:
        self.asked += 1
        return self.fragment(self.asked - 1)

    async def _contribution(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        self.offered += 1
        reply = self.contribution(self.offered - 1)
        if reply.status == 200:
            values = CODECS[request.headers[CODEC_HEADER]].decode(body, 4).tolist()
            self.answers.append((decode_answer(request.headers["Gruppetto-Answer"]), values))
        return reply

    async def _seed(self, request: web.Request) -> web.StreamResponse:
        self.seeds.append(np.frombuffer(await request.read(), np.float32).tolist())
        return self.seed(len(self.seeds) - 1)

    def good_fragment(self, **change: str) -> web.Response:
        body = self.value.tobytes()
        headers = {
            VERSION_HEADER: str(self.version),
            LAYOUT_HEADER: LAYOUT.layout_hash,
            CODEC_HEADER: "fp32",
            CHECKSUM_HEADER: f"{checksum(body):08x}",
        }
        return web.Response(body=body, headers=headers | change)

    def welcome(self, **change: Any) -> WelcomeFrame:
        welcome = Welcome(
            run_id="run",
            epoch=Epoch(1),
            incarnation=Incarnation(1),
            slot=0,
            cursor=0,
            round=Round(self.version),
            versions=(Version(self.version),),
            seed=False,
            begun=True,
            num_fragments=1,
            sync_period=1,
            snapshot_window=2,
            apply=ApplyMode.OVERWRITE,
            blend_alpha=0.5,
            rounds=None,
        )
        frame: dict[str, Any] = {
            "welcome": welcome,
            "fragmenter": "balanced",
            "fragments_asked": 1,
            "merge": (),
            "uplink": "fp32",
            "downlink": "fp32",
            "layout_hash": LAYOUT.layout_hash,
            "fragmentation_hash": PARTS.fragmentation_hash,
            "liveness_s": 60.0,
            "run": {},
        }
        return WelcomeFrame(**(frame | change))


class FourNumbers:
    """A model of four numbers, a training loop that adds 1 to each, and what the client wants to know of them."""

    def __init__(self, syncer: SyncerAddress | AddressBook) -> None:
        self.pool = LeasePool()
        self.theta = np.zeros(4, np.float32)
        self.base: Lease | None = None
        self.copy: Lease | None = None
        self.came: Lease | None = None
        self.core = LearnerCore(LearnerId("a"), session="s", layout_hash=LAYOUT.layout_hash)
        self.client = LearnerClient(self.core, self, LAYOUT, syncer, rng=random.Random(0), stall_s=10.0)

    def cut(self, fragmentation: Fragmentation, apply: ApplyMode) -> None:
        assert fragmentation == PARTS

    def share(self, fragment: Fragment) -> None:
        return None

    def lend(self, fragment: Fragment) -> Lease:
        return self.pool.lend(4)

    def arrive(self, fragment: Fragment, version: Version, values: Lease) -> None:
        self.came = values

    def offer(self, answer: Answer) -> Offer:
        assert self.base is not None and self.copy is not None
        return Offer(answer=answer, base=self.base.hold(), theta=self.copy.hold())

    def left(self, answer: Answer, rest: Lease) -> None:
        raise AssertionError("casts leave nothing unsaid")

    def keep_rest(self, action: KeepRest) -> None:
        raise AssertionError(action)

    def drop_rests(self) -> None:
        raise AssertionError("there are none")

    def feed(self, event: LearnerEvent) -> None:
        """With the lock held."""
        for action in self.core.step(self.client.clock.now(), event):
            match action:
                case Apply():
                    assert self.came is not None
                    self.base, self.came = self.came, None
                    self.theta[:] = self.base.values
                case TakeSnapshot():
                    self.copy = self.pool.lend(4)
                    self.copy.values[:] = self.theta
                case _:
                    self.client.perform([action])

    def wait(self, until: Callable[[], bool]) -> None:
        with self.client.news:
            assert self.client.news.wait_for(until, timeout=120.0)

    def become_ready(self) -> None:
        self.wait(lambda: self.came is not None)
        with self.client.news:
            self.feed(Boundary())
        self.wait(lambda: self.core.ready)

    def give_seed(self) -> None:
        """As the training thread does when it is asked for the initial weights."""
        self.wait(lambda: self.client.seed_wanted)
        with self.client.news:
            self.client.seed_wanted = False
            theta = self.pool.lend(4)
            theta.values[:] = self.theta
            self.client.backlog.seed(SeedPart(fragment=P0, theta=theta))
            self.client.perform(())

    def train(self) -> None:
        with self.client.news:
            self.feed(StepStarted())
            self.theta += 1
            self.feed(StepDone(tokens=10, cursor=self.core.cursor + 1))


@pytest.fixture
def syncer() -> Iterator[ScriptedSyncer]:
    scripted = ScriptedSyncer()
    yield scripted
    scripted.close()


@pytest.fixture
def learner(syncer: ScriptedSyncer) -> Iterator[FourNumbers]:
    four = FourNumbers(syncer.address)
    yield four
    four.client.close(5.0)


def test_a_round_trip(syncer: ScriptedSyncer, learner: FourNumbers) -> None:
    learner.client.start()
    learner.become_ready()
    assert learner.theta.tolist() == [1, 2, 3, 4]
    learner.train()
    syncer.say(Ask(epoch=Epoch(1), round=Round(1), fragments=(P0,)))
    learner.wait(lambda: learner.client.offered == 1)
    ((answer, delta),) = syncer.answers
    assert (answer.round, answer.steps, answer.tokens) == (1, 1, 10)
    assert delta == [-1, -1, -1, -1], "base − θ"
    learner.client.close(5.0)
    assert isinstance(syncer.heard[-1], Goodbye)
    told = [f.progress for f in syncer.heard if isinstance(f, ProgressFrame)]
    assert told[-1].clock == 1
    assert [a.fragment for p in told for a in p.applied] == [0]


def test_a_damaged_download_is_fetched_again(syncer: ScriptedSyncer, learner: FourNumbers) -> None:
    syncer.fragment = lambda n: syncer.good_fragment(**({CHECKSUM_HEADER: "00000000"} if n < TRIES - 1 else {}))
    learner.client.start()
    learner.become_ready()
    assert (syncer.asked, syncer.hellos) == (TRIES, 1)
    assert learner.theta.tolist() == [1, 2, 3, 4]


def test_downloads_that_keep_failing_make_the_connection_anew(syncer: ScriptedSyncer, learner: FourNumbers) -> None:
    syncer.fragment = lambda n: web.Response(status=503) if n < TRIES else syncer.good_fragment()
    learner.client.start()
    learner.become_ready()
    assert syncer.hellos == 2


@pytest.mark.parametrize("status", [400, 503])
def test_a_contribution_is_sent_until_it_is_delivered(
    syncer: ScriptedSyncer, learner: FourNumbers, status: int
) -> None:
    """The round may need it to close: given up silently, it would hold up everybody where K = M."""
    failures = TRIES + 1
    syncer.contribution = lambda n: web.Response(status=status if n < failures else 200)
    learner.client.start()
    learner.become_ready()
    for round in (1, 2):
        learner.train()
        syncer.say(Ask(epoch=Epoch(1), round=Round(round), fragments=(P0,)))
        expected = failures + round
        learner.wait(lambda: syncer.offered == expected and learner.client.backlog.uploads == 0)  # noqa: B023
    assert [answer.round for answer, _ in syncer.answers] == [1, 2]
    assert (syncer.offered, syncer.hellos) == (failures + 2, 1)


def test_a_contribution_to_a_round_that_is_over_is_not_sent(syncer: ScriptedSyncer, learner: FourNumbers) -> None:
    def too_late(n: int) -> web.Response:
        syncer.say_from_the_loop(Announcement(epoch=Epoch(1), round=Round(9), versions=()))
        return web.Response(status=503)

    syncer.contribution = too_late
    syncer.say_from_the_loop = lambda frame: asyncio.ensure_future(  # type: ignore[attr-defined]
        syncer._sockets[-1].send_bytes(encode_frame(frame))
    )
    learner.client.start()
    learner.become_ready()
    learner.train()
    syncer.say(Ask(epoch=Epoch(1), round=Round(1), fragments=(P0,)))
    learner.wait(lambda: learner.core.newest_round == 9)
    learner.wait(lambda: learner.client.backlog.uploads == 0)
    assert syncer.offered < TRIES
    assert learner.client.offered == 0


def test_every_vector_is_let_go_when_the_link_breaks(syncer: ScriptedSyncer, learner: FourNumbers) -> None:
    learner.client.start()
    learner.become_ready()
    learner.train()
    base, copy = learner.base, learner.copy
    assert base is not None and copy is not None
    with learner.client.news:  # the client cannot look at its backlog meanwhile
        learner.client.perform([ask_for_answer(learner)])
        assert base._holders == 2
        learner.client.backlog.link_down()
    assert (base._holders, copy._holders) == (1, 1)


def ask_for_answer(learner: FourNumbers) -> Answer:
    (answer,) = [
        action
        for action in learner.core.step(
            learner.client.clock.now(), Ask(epoch=Epoch(1), round=Round(1), fragments=(P0,))
        )
        if isinstance(action, Answer)
    ]
    return answer


def test_a_lost_link_is_dialled_again_and_what_was_missed_is_pulled(
    syncer: ScriptedSyncer, learner: FourNumbers
) -> None:
    learner.client.start()
    learner.become_ready()
    syncer.version, syncer.value = 4, np.float32([9, 9, 9, 9])
    syncer.hang_up()
    learner.become_ready()
    assert learner.theta.tolist() == [9, 9, 9, 9]
    assert (learner.client.reconnects, learner.core.clock) == (1, 4)


def test_begin_may_come_later(syncer: ScriptedSyncer, learner: FourNumbers) -> None:
    syncer.first = lambda n: replace(syncer.welcome(), welcome=replace(syncer.welcome().welcome, begun=False))
    learner.client.start()
    learner.wait(lambda: learner.came is not None)
    with learner.client.news:
        learner.feed(Boundary())
        assert learner.client.waiting_for == "the other learners"
    syncer.say(Begin(epoch=Epoch(1), round=Round(0)))
    learner.wait(lambda: learner.core.ready)
    assert learner.client.waiting_for == ""


def test_a_refusal_is_final(syncer: ScriptedSyncer, learner: FourNumbers) -> None:
    syncer.first = lambda n: Refusal(reason=RefusalReason.FULL, text="no room")
    learner.client.start()
    learner.wait(lambda: learner.client.failure is not None)
    assert isinstance(learner.client.failure, Refused)
    assert learner.client.failure.reason == "full"
    learner.client._thread.join()
    assert syncer.hellos == 1


def asking_for_seed(syncer: ScriptedSyncer, seed: bool = True) -> WelcomeFrame:
    frame = syncer.welcome()
    return replace(frame, welcome=replace(frame.welcome, versions=(), seed=seed, begun=False))


def test_a_second_welcome_makes_a_seeder_of_who_is_connected(syncer: ScriptedSyncer, learner: FourNumbers) -> None:
    """The learner that was to give the first weights has gone; the next is asked, on the connection it has."""
    syncer.first = lambda n: asking_for_seed(syncer, seed=False)
    learner.theta[:] = [5, 6, 7, 8]
    learner.client.start()
    learner.wait(lambda: learner.core.linked)
    assert not learner.client.seed_wanted
    syncer.say(asking_for_seed(syncer))
    learner.give_seed()
    learner.wait(lambda: learner.client.backlog.uploads == 0)
    assert syncer.seeds == [[5, 6, 7, 8]]
    syncer.say(Announcement(epoch=Epoch(1), round=Round(0), versions=((P0, Version(0)),)))
    learner.wait(lambda: learner.came is not None)
    assert (syncer.hellos, learner.client.reconnects) == (1, 0)


def test_who_was_to_give_the_first_weights_and_was_cut_off_pulls_those_of_another(
    syncer: ScriptedSyncer, learner: FourNumbers
) -> None:
    """Its training thread had not looked when the link was lost; the next Welcome does not ask any more."""
    syncer.first = lambda n: asking_for_seed(syncer) if n == 0 else syncer.welcome()
    learner.client.start()
    learner.wait(lambda: learner.client.seed_wanted)
    syncer.hang_up()
    learner.become_ready()
    assert not learner.client.seed_wanted
    assert (syncer.seeds, syncer.hellos, learner.client.failure) == ([], 2, None)


def test_a_seed_whose_turn_is_over_asks_anew_how_the_run_stands(syncer: ScriptedSyncer, learner: FourNumbers) -> None:
    """The syncer has given this learner up, and its connection does not know yet."""
    syncer.first = lambda n: asking_for_seed(syncer) if n == 0 else syncer.welcome()
    syncer.seed = lambda n: web.Response(status=409, text="nobody asked a (incarnation 1) for initial weights")
    learner.client.start()
    learner.give_seed()
    learner.become_ready()
    assert (len(syncer.seeds), syncer.hellos, learner.client.failure) == (1, 2, None)


@pytest.mark.parametrize("failures", [TRIES - 1, TRIES])
def test_a_seed_that_is_never_taken_is_a_failure_to_report(
    syncer: ScriptedSyncer, learner: FourNumbers, failures: int
) -> None:
    syncer.first = lambda n: asking_for_seed(syncer)
    syncer.seed = lambda n: web.Response(status=400, text="hold NaN") if n < failures else web.Response()
    learner.client.start()
    learner.give_seed()
    learner.wait(lambda: learner.client.backlog.uploads == 0)
    if failures < TRIES:
        assert len(syncer.seeds) == TRIES
        assert learner.client.failure is None
    else:
        learner.client._thread.join(120.0)
        assert (len(syncer.seeds), syncer.hellos) == (TRIES, 1)
        assert isinstance(learner.client.failure, ProtocolError)
        assert "initial weights: PUT" in str(learner.client.failure) and "hold NaN" in str(learner.client.failure)


def test_what_the_syncer_does_not_accept_is_a_failure_to_report(syncer: ScriptedSyncer, learner: FourNumbers) -> None:
    """Said again on another connection it would be refused again: for ever, and nobody would know."""
    learner.client.start()
    learner.become_ready()
    syncer.hang_up(1002, b"ProgressFrame.progress.tokens is -100, out of range")
    learner.client._thread.join(120.0)
    assert isinstance(learner.client.failure, ProtocolError)
    assert "tokens is -100, out of range" in str(learner.client.failure)
    assert (syncer.hellos, learner.core.linked) == (1, False)


def test_connections_that_do_not_last_are_complained_of_once(
    syncer: ScriptedSyncer, learner: FourNumbers, caplog: pytest.LogCaptureFixture
) -> None:
    learner.client.start()
    learner.become_ready()
    with caplog.at_level(logging.WARNING, "gruppetto.learner"):
        for lost in (1, 2, 3):
            syncer.hang_up()
            learner.wait(lambda: learner.client.reconnects == lost and learner.core.linked)  # noqa: B023
    assert len(caplog.records) == 1


def test_what_the_gate_did_not_take_is_logged_with_advice_and_ever_more_rarely(
    syncer: ScriptedSyncer, learner: FourNumbers, caplog: pytest.LogCaptureFixture
) -> None:
    learner.client.start()
    learner.become_ready()
    where: dict[str, Any] = {"epoch": Epoch(1), "round": Round(1), "fragment": P0}
    with caplog.at_level(logging.INFO, "gruppetto.learner"):
        for _ in range(25):
            syncer.say(Rejection(**where, reason=RejectionReason.NOT_FINITE))
            syncer.say(Rejection(**where, reason=RejectionReason.LATE))
            syncer.say(Clipping(**where, cause=ClipCause.NORM, factor=1000.0))
        learner.wait(lambda: learner.core.clippings == {"norm": 25})
    said = [(record.levelno, record.getMessage()) for record in caplog.records if "was " in record.getMessage()]
    assert len(said) == 6
    warned = [text for level, text in said if level == logging.WARNING]
    assert len(warned) == 4  # nobody has to do anything about a single late one
    assert all("lower the learning rate, clip gradients" in text for text in warned)
    assert any("1e+03 times the usual" in text for text in warned)


@pytest.mark.parametrize(
    ("change", "says"),
    [({"uplink": "zip"}, "uplink encoding is 'zip'"), ({"fragmentation_hash": "x"}, "cuts the model differently")],
)
def test_a_syncer_of_another_kind(
    syncer: ScriptedSyncer, learner: FourNumbers, change: dict[str, str], says: str
) -> None:
    syncer.first = lambda n: syncer.welcome(**change)
    learner.client.start()
    learner.wait(lambda: learner.client.failure is not None)
    assert isinstance(learner.client.failure, ProtocolError)
    assert says in str(learner.client.failure)


def test_a_syncer_that_comes_back_at_another_port_is_found_where_it_says_so(
    syncer: ScriptedSyncer, tmp_path: Path
) -> None:
    endpoint, moved = tmp_path / "endpoint.json", ScriptedSyncer()
    endpoint.write_text(json.dumps({"url": str(syncer.address)}))
    four = FourNumbers(Directory(tmp_path))
    try:
        four.client.start()
        four.become_ready()
        again = moved.welcome()
        moved.first = lambda n: replace(again, welcome=replace(again.welcome, epoch=Epoch(2)))
        endpoint.write_text(json.dumps({"url": str(moved.address)}))
        syncer.hang_up()
        four.wait(lambda: four.core.epoch == 2 and four.core.linked)
        assert four.client.address == moved.address
    finally:
        four.client.close(5.0)
        moved.close()
