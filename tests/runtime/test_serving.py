"""A syncer in a process of its own: signals, kill −9, and what is there afterwards."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from gruppetto.errors import AddressError
from gruppetto.protocol import ProtocolSetting
from gruppetto.runtime.authority import Authority
from gruppetto.runtime.serving import serve
from gruppetto.runtime.setting import SyncerSetting
from gruppetto.runtime.store_errors import StoreInUse

PROGRAM = """
import sys
from pathlib import Path
from gruppetto.protocol import ProtocolSetting
from gruppetto.runtime.serving import run_syncer
from gruppetto.runtime.setting import SyncerSetting
run_syncer(
    ProtocolSetting(),
    SyncerSetting(state=Path(sys.argv[1]), listen="127.0.0.1:0"),
    on_ready=lambda endpoint: print(endpoint.url, endpoint.epoch, flush=True),
)
"""


@pytest.mark.live
def test_a_syncer_stops_cleanly_on_a_signal_and_survives_being_killed(tmp_path):
    for epoch, number, code in ((1, signal.SIGTERM, 0), (2, signal.SIGKILL, -9), (3, signal.SIGINT, 0)):
        command = [sys.executable, "-c", PROGRAM, str(tmp_path / "state")]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            url, said = process.stdout.readline().split()
            assert int(said) == epoch
            with urllib.request.urlopen(f"{url}/v1/status", timeout=10) as reply:
                assert json.load(reply)["waiting_for"] == "the first learner"
            endpoint = tmp_path / "state" / "endpoint.json"
            assert json.loads(endpoint.read_text())["pid"] == process.pid
            process.send_signal(number)
            assert process.wait(timeout=20) == code
        assert endpoint.exists() == (number == signal.SIGKILL)


def test_a_syncer_may_have_as_many_connections_as_the_machine_allows() -> None:
    import resource

    from gruppetto.runtime.serving import MANY_FILES, allow_many_files

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (512, hard))
        allow_many_files()
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] >= min(MANY_FILES, hard if hard > 0 else MANY_FILES)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_an_address_that_cannot_be_had_costs_the_run_no_life(tmp_path: Path) -> None:
    state = tmp_path / "state"

    def start(listen: str) -> None:
        asyncio.run(serve(ProtocolSetting(), SyncerSetting(state=state, listen=listen, allow_plaintext=True)))

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(AddressError, match="use a free port"):
            start(f"127.0.0.1:{port}")
        with pytest.raises(AddressError, match="name or address of this machine"):
            start("192.0.2.1:7171")
        assert not state.exists(), "nothing was claimed"
        state.mkdir()
        life = Authority(state)
        assert life.claim(1) == 1
        with pytest.raises(StoreInUse, match="another syncer is using this state directory"):
            start(f"127.0.0.1:{port}")
        life.close()
