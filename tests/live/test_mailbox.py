"""A syncer and learners, each a process, that reach nothing but a bucket."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from typing import Any

import pytest

from gruppetto.runtime.mailbox.address import MailboxAddress
from gruppetto.runtime.mailbox.bucket import open_bucket

pytestmark = [pytest.mark.live, pytest.mark.timeout(600)]


def test_who_meets_in_a_bucket_may_come_late_be_killed_and_leave(rig: Callable[..., Any], object_store: str) -> None:
    r, box = rig(), f"s3://lab/live?endpoint={object_store}&region=us-east-1&poll=0.05"
    r.file.write_text(f'{r.file.read_text()}[syncer]\nmailbox = "{box}"\nurls = ["{box}"]\n')
    r.syncer()

    def learner(name: str) -> Any:
        return r._start("learner", str(r.file), "--name", name)

    def objects() -> list[str]:
        found = asyncio.run(open_bucket(MailboxAddress.parse(box), limit_s=10.0).listing("00000001/box"))
        return [one.name for one in found]

    first = learner("a")
    r.until_merged("a")
    late = learner("b")
    r.until_merged("b")
    # A box that has just been emptied is not there.
    r.until(lambda: len({name.split("/")[2] for name in objects()}) == 2)
    assert len(objects()) < 100
    r.kill(first)
    r.until(lambda: r.of("a")["state"] == "away")
    r.until_merged("b")
    late.send_signal(signal.SIGTERM)
    code, _ = r.ended(late)
    assert code == 143 and r.of("b")["state"] == "left"
    r.until(lambda: not objects())
    books = r.status()["tokens"]
    assert books["merged"] > 0
    assert books["consumed"] == sum(books[what] for what in ("merged", "promised", "lost", "discarded", "open")), books
