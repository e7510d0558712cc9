"""A real Prometheus scrapes a syncer that asks for a token, under names, kinds and values that it understands."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import Request, urlopen

import pytest
import torch
from tests.live.waiting import PATIENCE_S
from torch import nn

import gruppetto
from gruppetto.dashboard.annex import annex
from gruppetto.dashboard.metrics import METRICS
from gruppetto.launch.ask import fetch_status
from gruppetto.protocol import ProtocolSetting
from gruppetto.runtime.clock import MonotonicClock
from gruppetto.runtime.serving import Endpoint, serve
from gruppetto.runtime.setting import SyncerSetting

TOOLS = {name: shutil.which(name) or "" for name in ("prometheus", "promtool")}
pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(not all(TOOLS.values()), reason="no prometheus here (Debian: apt-get install prometheus)"),
]
TOKEN = "one for all"
CONFIG = """
global: {{scrape_interval: 2s, scrape_timeout: 2s}}
scrape_configs:
  - job_name: gruppetto
    authorization: {{credentials: "{token}"}}
    static_configs: [{{targets: ["{target}"]}}]
"""


@pytest.fixture
def syncer(tmp_path: Path) -> Iterator[str]:
    """The address of a real syncer, without an end of its run."""
    ready = threading.Event()
    found: list[Any] = []

    async def main() -> None:
        stop = asyncio.Event()

        def listens(endpoint: Endpoint) -> None:
            found.extend((endpoint.url, asyncio.get_running_loop(), stop))
            ready.set()

        setting = SyncerSetting(state=tmp_path / "state", listen="127.0.0.1:0", token=TOKEN)
        protocol = ProtocolSetting(num_fragments=2, sync_period=10)
        await serve(protocol, setting, on_ready=listens, stop=stop, annex=annex)

    thread = threading.Thread(target=lambda: asyncio.run(main()), daemon=True)
    thread.start()
    assert ready.wait(PATIENCE_S)
    url, loop, stop = found
    yield url
    loop.call_soon_threadsafe(stop.set)
    thread.join()


class Prometheus:
    """One process, and its own words about what it has scraped."""

    def __init__(self, place: Path, target: str) -> None:
        config = place / "prometheus.yml"
        config.write_text(CONFIG.format(token=TOKEN, target=target.removeprefix("http://")))
        self._log = place / "prometheus.log"
        command = [TOOLS["prometheus"], f"--config.file={config}", f"--storage.tsdb.path={place / 'tsdb'}"]
        with self._log.open("w") as log:
            self.process = subprocess.Popen([*command, "--web.listen-address=127.0.0.1:0"], stderr=log, stdout=log)
        self._address = ""

    @property
    def address(self) -> str:
        """It takes any free port, and says which in its log."""
        if not self._address:
            said = [line for line in self._log.read_text().splitlines() if "Listening on" in line]
            self._address = said[0].partition("address=")[2].split()[0] if said else ""
        return self._address

    def ask(self, what: str, **how: str) -> Any:
        with urlopen(f"http://{self.address}/api/v1/{what}?{urlencode(how)}", timeout=10) as reply:
            return json.load(reply)["data"]

    def values(self, query: str) -> dict[str, float]:
        """By learner, where a sample has one."""
        samples = self.ask("query", query=query)["result"]
        return {sample["metric"].get("learner", ""): float(sample["value"][1]) for sample in samples}


@pytest.fixture
def prometheus(tmp_path: Path, syncer: str) -> Iterator[Prometheus]:
    running = Prometheus(tmp_path, syncer)
    yield running
    running.process.kill()
    running.process.wait()


def test_prometheus_understands_every_word(syncer: str, prometheus: Prometheus) -> None:
    model = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    clock = MonotonicClock()
    with gruppetto.Learner(model, optimizer, syncer=syncer, token=TOKEN, tokens_per_step=7, name="anna") as learner:
        learner.report(loss=1.5)
        scrapes = 0.0
        while scrapes < 3 or learner.round < 12:
            model(torch.ones(8)).sum().backward()
            optimizer.step()
            time.sleep(0.05)
            if prometheus.address:
                scrapes = prometheus.values("sum_over_time(up[1m])").get("", 0.0)
            assert clock.now() < PATIENCE_S, prometheus.ask("targets")
        (target,) = prometheus.ask("targets")["activeTargets"]
        assert (target["health"], target["lastError"]) == ("up", "")
        assert prometheus.values("scrape_samples_scraped")[""] > len(METRICS) / 2
        scraped = prometheus.ask("metadata")
        status = fetch_status(syncer, token=TOKEN)

        assert prometheus.values("gruppetto_learners_live") == {"": 1.0}
        assert 1 <= prometheus.values("gruppetto_round")[""] <= status["round"]
        assert prometheus.values("gruppetto_learner_loss") == {"anna": 1.5}
        assert prometheus.values('gruppetto_learner_state{state="live"}') == {"anna": 1.0}
        assert prometheus.values("gruppetto_learner_tokens")["anna"] % 7 == 0
        with urlopen(Request(f"{syncer}/metrics", headers={"Authorization": f"Bearer {TOKEN}"}), timeout=10) as reply:
            text = reply.read()
        grown = prometheus.values("increase(gruppetto_received_bytes_total[1m])")[""]
        assert grown > 0
    named = {metric.name: metric for metric in METRICS}
    ours = {name: said[0] for name, said in scraped.items() if name.startswith("gruppetto_")}
    assert len(ours) > 20
    assert {name: said["type"] for name, said in ours.items()} == {name: named[name].kind for name in ours}
    assert {name: said["help"] for name, said in ours.items()} == {name: named[name].help for name in ours}
    assert linted(text) == (0, "")


def linted(text: bytes) -> tuple[int, str]:
    """What promtool has against it."""
    done = subprocess.run([TOOLS["promtool"], "check", "metrics"], input=text, capture_output=True, check=False)
    return done.returncode, done.stderr.decode()
