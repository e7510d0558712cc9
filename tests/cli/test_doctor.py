"""``gruppetto doctor``: what is looked at, what is said where something is wrong, and a machine that plans can use."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.served import Quiet, served

from gruppetto.cli.__main__ import main
from gruppetto.launch.checkup import Finding, _disk, _port, _processor, _syncer
from gruppetto.launch.measuring import measure_loopback, usable_cores
from gruppetto.runtime.clock import MonotonicClock
from gruppetto.sim.machine import read_machine

WEIGHTS = bytes(1 << 20)
STATUS = b'{"round": 7, "phase": "grace", "waiting_for": "answers", "learners": {}, "recoveries": []}'
YESTERDAY = "Mon, 01 Jan 2024 00:00:00 GMT"


class Syncer(Quiet):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        body = {"/healthz": b"ok", "/v1/status": STATUS, "/v1/model": WEIGHTS}[self.path]
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def date_time_string(self, timestamp: float | None = None) -> str:
        return YESTERDAY


@pytest.fixture
def url() -> Iterator[str]:
    with served(Syncer) as address:
        yield address


def test_a_checkup_with_everything_measured(tmp_path: Path, url: str, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "new" / "machine.json"
    wishes = ["--directory", str(tmp_path), "--listen", "127.0.0.1:0", "--syncer", url, "--measure", "--out", str(file)]
    assert main(["doctor", "--json", *wishes]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["ok"]
    levels = {(f["subject"], f["level"]) for f in found["findings"]}
    for subject in ("python", "torch", "memory", "files", "port", "syncer", "link"):
        assert any(seen == subject for seen, _ in levels)
    assert ("clock", "warning") in levels
    assert all(f["fix"] for f in found["findings"] if f["level"] != "ok")
    machine = read_machine(file)
    assert machine.fold_elements_per_s > 1e6 and machine.persist_bytes_per_s > 1e5
    assert machine.start_s is not None and machine.step_s is not None and machine.start_s > machine.step_s > 0
    assert machine.link_bytes_per_s is not None and machine.link_bytes_per_s > len(WEIGHTS) / 60
    assert [path.name for path in tmp_path.iterdir()] == ["new"], "nothing is left behind"
    rows = ["simulate", "--chips", "64", "--learners", "2", "--systems", "decoupled", "--hours", "0.2", "--json"]
    assert main([*rows, "--machine", str(file), "--parameters", "24M"]) == 0
    capsys.readouterr()


def test_a_slow_machine_makes_slow_rounds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shares = []
    for persist_s in (0.01, 5.0):
        file = tmp_path / f"{persist_s}.json"
        file.write_text(json.dumps({"persist_s": persist_s, "persist_bytes_per_s": 1e12}))
        rows = ["simulate", "--chips", "64", "--learners", "3", "--systems", "decoupled", "--hours", "0.2", "--json"]
        assert main([*rows, "--machine", str(file), "--parameters", "24M", "--mtbi-years", "never"]) == 0
        shares.append(json.loads(capsys.readouterr().out)["rows"][0]["merged"])
    assert shares[1] < shares[0] - 0.1


def test_what_is_wrong_is_said_with_the_fix(tmp_path: Path) -> None:
    def only(findings: Iterator[Finding]) -> Finding:
        (finding,) = findings
        return finding

    nowhere = only(_disk(tmp_path / "nowhere", MonotonicClock()))
    assert nowhere.level == "wrong" and "--directory" in nowhere.fix and "\n" not in str(nowhere)
    silent = only(_syncer("http://127.0.0.1:9", None, MonotonicClock()))
    assert silent.level == "wrong" and "nobody answers" in silent.text
    with socket.create_server(("127.0.0.1", 0)) as taken:
        busy = _port(f"127.0.0.1:{taken.getsockname()[1]}")
    assert busy.level == "warning" and "--listen" in busy.fix
    assert "--listen" in busy.fix and "Errno" not in busy.text
    for nonsense in ("x", "127.0.0.1:many", "127.0.0.1:99999"):
        found = _port(nonsense)
        assert (found.level, found.text) == ("wrong", f"--listen {nonsense!r}: is not an address to listen on")
        assert "HOST:PORT" in found.fix


def test_nothing_is_written_that_was_not_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    there = tmp_path / "machine.json"
    there.write_text("{}")
    assert main(["doctor", "--out", str(there)]) == 2
    assert "--measure" in capsys.readouterr().err
    assert main(["doctor", "--measure", "--out", str(there)]) != 0
    assert "name another file" in capsys.readouterr().err


def test_a_loopback_has_a_latency_and_a_bandwidth() -> None:
    line = measure_loopback(MonotonicClock())
    assert 0 < line.latency_s < 1 and line.bytes_per_s > 1e6


def test_where_nobody_tells_which_cores_are_ours_all_of_them_are(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 1 <= usable_cores() <= (os.cpu_count() or 1)
    monkeypatch.delattr(os, "sched_getaffinity")
    assert usable_cores() == os.cpu_count()
    assert _processor().text.startswith(f"{os.cpu_count()} cores")
