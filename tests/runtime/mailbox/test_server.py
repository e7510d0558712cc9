"""The syncer's end of a mailbox: what goes right, and everything that whoever can write to the bucket can do wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest
from obstore.store import MemoryStore
from tests import steady

from gruppetto.errors import ConnectionLost, SteppedDown
from gruppetto.protocol.membership import MemberPhase
from gruppetto.protocol.messages import Answer, Applied, Ask, Hello, Progress, Rejection, RejectionReason
from gruppetto.runtime.desk import Desk
from gruppetto.runtime.headers import ANSWER_HEADER, CHECKSUM_HEADER, CODEC_HEADER, RUNS_HEADER
from gruppetto.runtime.mailbox.bucket import Bucket
from gruppetto.runtime.mailbox.label import fragment_name, read_label
from gruppetto.runtime.mailbox.letters import (
    FIRST_LETTER_BYTES,
    LETTER_BYTES,
    Cease,
    Letter,
    Put,
    Said,
    box_name,
    decode_letter,
    encode_letter,
)
from gruppetto.runtime.mailbox.server import MailServer
from gruppetto.runtime.mailbox.tenure import Tenure
from gruppetto.runtime.wire import (
    FROM_SYNCER,
    CloseCode,
    HelloFrame,
    ProgressFrame,
    WelcomeFrame,
    checksum,
    decode_frame,
    encode_answer,
    encode_frame,
)

NUMEL = 7


class Away(Bucket):
    """A store that can go away."""

    away = False

    def _troubles(self, name: str) -> Any:
        if self.away:
            raise ConnectionLost("the store is away")
        return super()._troubles(name)


class Hand:
    """A box that is written by hand."""

    def __init__(self, place: Place, name: str, box: str) -> None:
        self.place, self.name, self.box = place, name, box
        self.up = self.down = 0
        self.came: list[Any] = []

    async def write(self, letter: Letter | bytes) -> None:
        data = letter if isinstance(letter, bytes) else encode_letter(letter)
        await self.place.bucket.put_new(box_name(1, self.box, "up", self.up), data)
        self.up += 1

    async def say(self, *frames: Any, **more: Any) -> None:
        await self.write(Letter(frames=tuple(map(encode_frame, frames)), **more))

    async def until(self, fits: Callable[[Any], bool]) -> Any:
        """Read letters until something fits: a frame, what has become of a body, or the end."""
        while True:
            for i, one in enumerate(self.came):
                if fits(one):
                    return self.came.pop(i)
            found = await self.place.bucket.get(box_name(1, self.box, "down", self.down), LETTER_BYTES)
            if found is None:
                await asyncio.sleep(0.005)
                continue
            self.down += 1
            letter = decode_letter(found[0])
            self.came += [decode_frame(frame, FROM_SYNCER) for frame in letter.frames]
            self.came += letter.said
            self.came += [letter.cease] if letter.cease is not None else []

    async def hello(self, **change: Any) -> WelcomeFrame:
        layout = self.place.world.layout
        given = {"learner": self.name, "session": f"{self.name}-1", "layout_hash": layout.layout_hash, **change}
        await self.say(HelloFrame.of(Hello(**given), layout))
        welcome: WelcomeFrame = await self.until(lambda it: isinstance(it, WelcomeFrame))
        return welcome

    async def body(self, number: int, data: bytes, **change: Any) -> Said:
        """A contribution to the round that is open, and what has become of it."""
        core = self.place.world.service.engine.core
        given: dict[str, Any] = {
            "learner": self.name, "incarnation": 1, "epoch": 1, "round": 1, "fragment": 0,
            "base_version": core.versions[0], "steps": 1, "tokens": 10, "total_tokens": 10, "cursor": 1,
            "layout_hash": self.place.world.layout.layout_hash,
        }  # fmt: skip
        headers = change.pop("headers", {})
        length = change.pop("length", len(data))
        if change.pop("there", True):
            await self.place.bucket.put_new(box_name(1, self.box, "body", number), data)
        answer = Answer(**{**given, **change})
        headers = {
            ANSWER_HEADER: encode_answer(answer), CODEC_HEADER: "fp32", CHECKSUM_HEADER: f"{checksum(data):08x}",
            **headers,
        }  # fmt: skip
        put = Put(number=number, kind="contribution", fragment=0, round=answer.round, length=length, headers=headers)
        await self.say(puts=(put,))
        said: Said = await self.until(lambda it: isinstance(it, Said) and it.number == number)
        return said


class Place:
    """A run with one learner that speaks from memory, and its mailbox."""

    def __init__(self, world: Any, bucket: Away, mail: MailServer) -> None:
        self.world, self.bucket, self.mail = world, bucket, mail

    def hand(self, name: str = "b", box: str = "00000000000000bb") -> Hand:
        return Hand(self, name, box)

    async def joined(self) -> Hand:
        """b has the weights and takes part, and a round is open in which its answer is awaited."""
        b = self.hand()
        await b.hello()
        progress = {"learner": "b", "incarnation": 1, "epoch": 1, "step_s": 1.0, "tokens": 10}
        told = Progress(clock=0, steps=0, cursor=0, applied=(Applied(fragment=0, version=0, at_tokens=0),), **progress)
        await b.say(ProgressFrame(progress=told))
        await self.until(lambda: self.world.service.engine.core.members.get("b").is_live())
        self.world.learners[0].link.contribute = lambda *what: "dropped"  # a's answer never comes
        self.world.step_all()
        ask = await b.until(lambda it: isinstance(it, Ask))
        assert (ask.round, ask.fragments) == (1, (0,))
        return b

    async def until(self, fine: Callable[[], bool]) -> None:
        while not fine():
            await asyncio.sleep(0.005)

    async def objects(self, folder: str = "00000001/box") -> list[str]:
        return [one.name for one in await self.bucket.listing(folder)]


@pytest.fixture
def place(world: Any, tensors: Any) -> Callable[..., None]:
    """``place(test)`` runs the test in a place."""

    def run(test: Callable[[Place], Awaitable[None]], *, stall_s: float = 20.0, **how: Any) -> None:
        async def inside() -> None:
            rules = {"num_learners": 1, "num_fragments": 1, "sync_period": 1, "overlap_steps": 0, **how}
            w = world(tensors(NUMEL), setting={"outer": "finetune"}, **rules)
            w.join(w.learner("a", np.zeros(NUMEL), lambda theta, cursor: theta + 1))
            desk, bucket = Desk(w.service, stall_s), Away(MemoryStore(), "s3://lab/tour", limit_s=5.0)
            await bucket.put_over("00000000/box/old", b"left by an older term")
            w.service.on_change = desk.review
            mail = MailServer(bucket, w.service, desk, poll_s=0.005, stall_s=stall_s, lease_s=1.0, clock=w.clock)
            assert await mail.claim(asyncio.Event())
            running = asyncio.create_task(mail.run())
            try:
                await test(Place(w, bucket, mail))
            finally:
                w.service.say_farewell()
                await mail.close()
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)

        steady.run(inside())

    return run


ONES = np.ones(NUMEL, np.float32).tobytes()


def test_a_contribution_goes_through_the_gate_into_the_model(place: Any) -> None:
    async def test(here: Place) -> None:
        b = await here.joined()
        said = await b.body(0, ONES)
        assert said.status == 200 and b"taken" in said.text
        here.world.clock.advance(1000.0)  # nobody waits any longer for a's
        here.world.service.tick()
        await here.until(lambda: here.world.service.engine.core.versions[0] == 1)
        await b.until(lambda it: getattr(it, "versions", None) == ((0, 1),))
        found = await here.bucket.get(fragment_name(1, 0), 4096)
        assert found is not None
        label, begins = read_label(found[0])  # type: ignore[misc]
        assert label.version == 1 and np.frombuffer(found[0][begins:], np.float32).tolist() == [-1.0] * NUMEL

    place(test)


@pytest.mark.parametrize(
    ("how", "status", "reason"),
    [
        ({"data": np.full(NUMEL, np.nan, np.float32).tobytes()}, 200, RejectionReason.NOT_FINITE),
        ({"epoch": 7}, 200, RejectionReason.STALE_EPOCH),
        ({"learner": "a"}, 403, None),
        ({"length": 4 * NUMEL + 4}, 400, None),
        ({"data": ONES + b"more", "length": 4 * NUMEL}, 400, None),
        ({"headers": {CHECKSUM_HEADER: "00000000"}}, 400, None),
        ({"headers": {CODEC_HEADER: "zip"}}, 400, None),
        ({"headers": {ANSWER_HEADER: "nonsense"}}, 400, None),
        ({"there": False}, 400, None),
    ],
)
def test_a_wrong_contribution_changes_nothing(
    place: Any, how: dict[str, Any], status: int, reason: RejectionReason | None
) -> None:
    async def test(here: Place) -> None:
        b = await here.joined()
        said = await b.body(0, **{"data": ONES, **how})
        assert said.status == status and b"taken" not in said.text
        if reason is not None:
            rejection: Rejection = await b.until(lambda it: isinstance(it, Rejection))
            assert rejection.reason is reason
        core = here.world.service.engine.core
        assert core.tokens_taken(Answer(**_answer(here, "b"))) == 0
        said = await b.body(1, ONES)
        assert said.status == 200 and b"taken" in said.text, "the right one is taken all the same"

    place(test)


def _answer(here: Place, name: str) -> dict[str, Any]:
    return {
        "learner": name, "incarnation": 1, "epoch": 1, "round": 1, "fragment": 0, "base_version": 0,
        "steps": 1, "tokens": 10, "total_tokens": 10, "cursor": 1, "layout_hash": here.world.layout.layout_hash,
    }  # fmt: skip


@pytest.mark.parametrize(
    "letter",
    [
        b"nonsense",
        b"",
        encode_letter(Letter()),
        encode_letter(Letter(frames=(b"nonsense",))),
        encode_letter(Letter(frames=(b"x",) * 1000)),
        bytes(FIRST_LETTER_BYTES + 1),
    ],
)
def test_a_box_that_begins_with_nonsense_is_closed_and_removed(place: Any, letter: bytes) -> None:
    async def test(here: Place) -> None:
        b, read, delete = here.hand(), asyncio.Event(), here.bucket.delete

        async def afterwards(names: list[str]) -> None:
            await read.wait()
            await delete(names)

        here.bucket.delete = afterwards  # type: ignore[method-assign]
        await b.write(letter)
        cease: Cease = await b.until(lambda it: isinstance(it, Cease))
        assert cease.code == CloseCode.PROTOCOL and cease.text
        read.set()
        assert here.world.service.seen.malformed == 1
        while await here.objects():  # after a while in which its owner may read why
            await asyncio.sleep(0.02)
        here.world.step_all()
        assert here.world.service.engine.core.round >= 1, "the others go on"

    place(test, stall_s=0.1)


@pytest.mark.parametrize(
    "letter",
    [
        b"nonsense",
        bytes(LETTER_BYTES + 1),
        encode_letter(Letter(frames=(b"nonsense",))),
        encode_letter(Letter(beat=b"nonsense")),
        encode_letter(Letter(puts=(Put(number=0, kind="seed", fragment=0, length=-1),))),
        encode_letter(Letter(puts=(Put(number=0, kind="seed", fragment=0, length=1, headers={RUNS_HEADER: "0-1"}),))),
        encode_letter(Letter(puts=(Put(number=-1, kind="seed", fragment=0, length=1),))),
        encode_letter(Letter(puts=(Put(number=0, kind="seed", fragment=0, length=1),) * 2)),
    ],
)
def test_nonsense_in_a_box_closes_it(place: Any, letter: bytes) -> None:
    async def test(here: Place) -> None:
        b = here.hand()
        await b.hello()
        await b.write(letter)
        cease: Cease = await b.until(lambda it: isinstance(it, Cease))
        assert cease.code == CloseCode.PROTOCOL
        assert here.world.service.seen.malformed >= 1

    place(test)


def test_what_is_nothing_of_a_mailbox_is_left_alone_and_older_terms_are_removed(place: Any) -> None:
    async def test(here: Place) -> None:
        strays = ["00000001/box/00000000000000bb/up/x", "00000001/box/BB/up/00000000", "00000001/box/a/b/c/d"]
        for name in strays:
            await here.bucket.put_over(name, b"x")
        await here.bucket.put_over("00000001/box/00000000000000cc/up/00000007", b"the first letters are missing")
        b = here.hand()
        await b.hello()
        while await here.objects("00000000") or [n for n in await here.objects() if "00cc" in n]:
            await asyncio.sleep(0.01)
        assert {name for name in await here.objects() if "00bb/up/0" not in name and "down" not in name} == set(strays)

    place(test, stall_s=0.3)


def test_while_the_store_is_away_nobody_is_taken_for_dead(place: Any) -> None:
    async def test(here: Place) -> None:
        b, members = await here.joined(), here.world.service.engine.core.members
        here.bucket.away = True
        for _ in range(6):
            here.world.clock.advance(10.0)
            before = members.get("b").last_heard
            await here.until(lambda before=before: members.get("b").last_heard > before)  # type: ignore[misc]
            here.world.service.tick()
        here.bucket.away = False
        assert members.get("b").is_live()
        said = await b.body(0, ONES)
        assert said.status == 200 and b"taken" in said.text

    place(test, liveness_s=30.0)


def test_a_box_that_falls_silent_is_closed(place: Any) -> None:
    async def test(here: Place) -> None:
        b = await here.joined()
        cease: Cease = await b.until(lambda it: isinstance(it, Cease))
        assert cease.code == CloseCode.GOING_AWAY and "nothing came" in cease.text
        await here.until(lambda: here.world.service.engine.core.members.get("b").phase is MemberPhase.AWAY)

    place(test, stall_s=1.0)


def test_a_syncer_that_has_lost_its_seat_steps_down(place: Any) -> None:
    async def test(here: Place) -> None:
        other = Tenure(here.bucket, run_id=here.world.service.run_id, epoch=2, lease_s=1.0, clock=here.world.clock)
        assert await other.claim(asyncio.Event()) and other.term == 2
        await here.until(lambda: isinstance(here.world.service.failure, SteppedDown))

    place(test)
