"""What the code on the pages takes for granted: a model and its batches, a syncer, somebody else's trainer."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.docs.regression import training

import gruppetto
from gruppetto.attach.integrations.torchtitan import RidesAlong, Section
from gruppetto.attach.view import Place
from gruppetto.protocol import ProtocolSetting, actions, events, state
from gruppetto.protocol.syncer import SyncerCore
from gruppetto.runtime.serving import Endpoint, serve
from gruppetto.runtime.setting import SyncerSetting

Names = dict[str, Any]
HERE = "http://127.0.0.1:7171"
"""Where the pages have their syncer."""


class Rider:
    """As much of a learner as data and trackers look at."""

    slot, cursor, incarnation, steps = 0, 0, 1, 0
    place = Place(1, 0, 0)

    def took(self, cursor: int, *, incarnation: int) -> None:
        self.cursor = cursor

    def metrics(self) -> dict[str, float]:
        return {"gruppetto/round": 3.0, "gruppetto/steps": float(self.steps)}

    def until_finished(self, items: Any) -> Iterator[Any]:
        for self.steps, item in zip(range(1, 21), items, strict=False):
            yield item


class Writer:
    def __init__(self, directory: str) -> None:
        self.said: list[tuple[str, float, int]] = []

    def add_scalar(self, name: str, value: float, step: int) -> None:
        self.said.append((name, value, step))


def _loop(_: ExitStack) -> Names:
    return {**training(), "gruppetto": gruppetto}


def _beside_a_learner(_: ExitStack) -> Names:
    data = {"dataset": list(range(64)), "loader": range(20), "train": lambda batch: torch.tensor(float(batch))}
    return {"gruppetto": gruppetto, "learner": Rider(), "SummaryWriter": Writer, **data}


def _beside_torchtitan(_: ExitStack) -> Names:
    class Trainer:
        @dataclass(kw_only=True, slots=True)
        class Config:
            steps: int = 10

    theirs = SimpleNamespace(trainer=SimpleNamespace(Trainer=Trainer))
    return {"torchtitan": theirs, "RidesAlong": RidesAlong, "Section": Section, "dataclass": dataclass, "field": field}


def _in_a_process_group(stack: ExitStack) -> Names:
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    stack.callback(torch.distributed.destroy_process_group)
    names = _loop(stack)
    for batch in (next(names["loader"]),):
        names["model"](**batch).loss.backward()
    names["optimizer"].step()
    learner = gruppetto.Learner(names["model"], names["optimizer"], syncer=HERE, tokens_per_step=1, donate=None)
    return {**names, "learner": learner, "place": "saved"}


def _core(_: ExitStack) -> Names:
    return {**vars(actions), **vars(events), **vars(state)}


STAGES: dict[str, Callable[[ExitStack], Names]] = {
    "in a loop": _loop,
    "beside a learner": _beside_a_learner,
    "beside torchtitan": _beside_torchtitan,
    "in a process group": _in_a_process_group,
    "as the core's shape": _core,
}


def _check_the_core(names: Names) -> None:
    shape = names["SyncerCore"]
    for name in [*shape.__annotations__, *(name for name in vars(shape) if not name.startswith("_"))]:
        assert hasattr(SyncerCore, name) or name in SyncerCore.__init__.__code__.co_names, name


def _check_titan(names: Names) -> None:
    assert names["Trainer"].Config().gruppetto.settings() is not None


AFTERWARDS: dict[str, Callable[[Names], None]] = {
    "as the core's shape": _check_the_core,
    "beside torchtitan": _check_titan,
}
"""What a block must have brought about, beyond running."""


@pytest.fixture
def play(syncer_at: Callable[[], str]) -> Iterator[Callable[[str, str, str], None]]:
    """Execute Python of a page on a stage: (code, name of the stage, place for errors)."""
    with ExitStack() as stack:

        def run(code: str, stage: str, place: str) -> None:
            if HERE in code and "with gruppetto.Learner" in code:
                code = code.replace(HERE, syncer_at())
            names = STAGES[stage](stack)
            exec(compile(code, place, "exec"), names)
            AFTERWARDS.get(stage, lambda names: None)(names)

        yield run


@pytest.fixture
def syncer_at(tmp_path: Path) -> Iterator[Callable[[], str]]:
    """Starts a real syncer, a few rounds long, on loopback in a thread; gives its address."""
    ends: list[Callable[[], None]] = []

    def start() -> str:
        ready, address = threading.Event(), []

        async def main() -> None:
            loop, stop = asyncio.get_running_loop(), asyncio.Event()

            def listens(endpoint: Endpoint) -> None:
                address.append(endpoint.url)
                ready.set()

            def end() -> None:
                loop.call_soon_threadsafe(stop.set)
                thread.join()

            ends.append(end)
            setting = SyncerSetting(state=tmp_path / f"syncer-{len(ends)}", listen="127.0.0.1:0")
            await serve(ProtocolSetting(rounds=8, num_fragments=2, sync_period=4), setting, on_ready=listens, stop=stop)

        thread = threading.Thread(target=lambda: asyncio.run(main()), daemon=True)
        thread.start()
        assert ready.wait(120)
        return address[0]

    yield start
    for end in ends:
        end()
