"""Small models with fixed seeds, and a real syncer on loopback in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.ports import HeldPort
from torch import Tensor, nn

from gruppetto.protocol import ProtocolSetting
from gruppetto.runtime.serving import Endpoint, serve
from gruppetto.runtime.setting import SyncerSetting

torch.set_num_threads(1)


class Toy(nn.Module):
    """An embedding, a matrix, a gain, a scalar and an empty tensor: every shape that a fragment has to cope with."""

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()
        self.wte = nn.Parameter(torch.randn(12, 4, generator=generator))
        self.matrix = nn.Parameter(torch.randn(4, 4, generator=generator))
        self.gain = nn.Parameter(torch.ones(4))
        self.scale = nn.Parameter(torch.tensor(0.5))
        self.nothing = nn.Parameter(torch.empty(0, 3))

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        logits = (self.wte[ids] @ self.matrix * self.gain * self.scale) @ self.wte.T
        return nn.functional.cross_entropy(logits, labels)

    @staticmethod
    def batch(index: int, seed: int = 0) -> tuple[Tensor, Tensor]:
        """Sixteen tokens and what follows each of them."""
        generator = torch.Generator().manual_seed(1000 * seed + index)
        ids = torch.randint(12, (16,), generator=generator)
        return ids, (ids * 5 + 1) % 12


@pytest.fixture
def toy() -> Callable[..., Toy]:
    """Makes a toy model from a seed."""

    def make(seed: int = 0) -> Toy:
        return Toy(torch.Generator().manual_seed(seed))

    return make


class SyncerThread:
    """A syncer that can be stopped and started again on the same address and state."""

    def __init__(self, state: Path, protocol: ProtocolSetting, setting: dict[str, Any]) -> None:
        self._state, self._protocol, self._setting = state, protocol, setting
        self._port = HeldPort()
        self.url = ""
        self.failure: BaseException | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> SyncerThread:
        ready = threading.Event()
        setting = SyncerSetting(state=self._state, listen=self._port.address, **self._setting)

        def listens(endpoint: Endpoint) -> None:
            self.url = endpoint.url
            ready.set()

        async def main() -> None:
            self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
            await serve(self._protocol, setting, on_ready=listens, stop=self._stop)

        def run() -> None:
            try:
                asyncio.run(main())
            except BaseException as wrong:
                self.failure = wrong
            finally:
                ready.set()

        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()
        ready.wait()
        assert self.failure is None, self.failure
        return self

    def stop(self) -> None:
        if self._thread is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join()
        assert self.failure is None, self.failure

    def end(self) -> None:
        """For good."""
        self.stop()
        self._port.close()


@pytest.fixture
def syncer(tmp_path: Path) -> Iterator[Callable[..., SyncerThread]]:
    """Starts a syncer with these settings, of the protocol or its own; all are stopped after the test."""
    started: list[SyncerThread] = []

    def start(**settings: Any) -> SyncerThread:
        own = {key: settings.pop(key) for key in list(settings) if key in SyncerSetting.__dataclass_fields__}
        protocol = ProtocolSetting(**settings)
        started.append(SyncerThread(tmp_path / f"state-{len(started)}", protocol, own))
        return started[-1].start()

    yield start
    for one in started:
        one.end()


@pytest.fixture(autouse=True)
def no_thread_is_left_behind() -> Iterator[None]:
    yield
    left = [t.name for t in threading.enumerate() if t.name.startswith(("gruppetto-learner", "gruppetto-heartbeat"))]
    assert not left
