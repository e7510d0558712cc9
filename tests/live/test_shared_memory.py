"""A syncer and a learner in processes of their own, on one machine: tensors pass no socket, and come out the same."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch

import gruppetto
from gruppetto.chaos.real.proxy import Proxy

pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="nothing is shared on this system"),
]

NUMEL, VALUES = 500_000, 5
MODEL_BYTES = 4 * NUMEL
CONTROL_BYTES = 50_000
"""More than is said beside the tensors of so many rounds."""
PROGRAM = """
import sys
from pathlib import Path
from gruppetto.protocol import ProtocolSetting
from gruppetto.runtime.serving import run_syncer
from gruppetto.runtime.setting import SyncerSetting
run_syncer(
    ProtocolSetting(num_fragments=1, sync_period=4, overlap_steps=2),
    SyncerSetting(
        state=Path(sys.argv[1]), listen="127.0.0.1:0", shared_memory=sys.argv[2] == "shared",
        outer="finetune", uplink="fp32", merge=((".*", "mean"),),
    ),
    on_ready=lambda endpoint: print(endpoint.url, flush=True),
)
"""


@contextmanager
def a_syncer(state: Path, memory: str) -> Iterator[str]:
    command = [sys.executable, "-c", PROGRAM, str(state), memory]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


@contextmanager
def counted(port: int) -> Iterator[Proxy]:
    """A proxy before a port, in a thread of its own."""
    proxy, begun, over = Proxy(lambda: ("127.0.0.1", port), random.Random(0)), threading.Event(), asyncio.Event()

    async def run() -> None:
        nonlocal loop
        loop = asyncio.get_running_loop()
        proxy.start()
        begun.set()
        await over.wait()
        await proxy.stop()

    loop: asyncio.AbstractEventLoop | None = None
    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    begun.wait()
    try:
        yield proxy
    finally:
        assert loop is not None
        loop.call_soon_threadsafe(over.set)
        thread.join()


def passed_with_values(url: str) -> int:
    """Train until some new values have come; what passed the sockets after the first of them."""
    model = torch.nn.ParameterDict({"w": torch.nn.Parameter(torch.ones(NUMEL))})
    with (
        counted(int(url.rpartition(":")[2])) as proxy,
        gruppetto.Learner(
            model,
            None,
            hook=False,
            syncer=f"http://127.0.0.1:{proxy.port}",
            name="a",
            tokens_per_step=1,
            quiet=True,
        ) as learner,
    ):
        before = None
        while (came := learner.metrics()["gruppetto/bytes_down"]) < (1 + VALUES) * MODEL_BYTES:
            if before is None and came >= MODEL_BYTES:
                before = proxy.bytes_up + proxy.bytes_down
            with torch.no_grad():
                model["w"] += 1.0
            learner.step()
            time.sleep(0.02)
        assert before is not None
        return proxy.bytes_up + proxy.bytes_down - before


def test_what_two_processes_share_passes_no_socket_and_is_the_same(tmp_path: Path) -> None:
    passed = {}
    for memory in ("shared", "sent"):
        with a_syncer(tmp_path / memory, memory) as url:
            passed[memory] = passed_with_values(url)
            with urllib.request.urlopen(f"{url}/v1/model", timeout=10) as reply:
                data = reply.read()
        theta = np.frombuffer(data[8 + int.from_bytes(data[:8], "little") :], np.float32)
        # Every element has gone the same way, none another: a byte in the wrong place would show.
        assert theta.size == NUMEL and theta[0] > 1.0 and (theta == theta[0]).all()
    assert passed["shared"] < CONTROL_BYTES < (VALUES - 1) * MODEL_BYTES < passed["sent"]
