"""Told to stop by a signal, every verb ends in good order, with the exit code that shells have for it."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gruppetto.cli.__main__ import VERBS, main

CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}


@pytest.mark.parametrize("number", CODES)
def test_one_rule_for_all_verbs(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    put_away: list[str] = []

    def verb(arguments: list[str]) -> int:
        try:
            os.kill(os.getpid(), number)
            signal.pause()
        finally:
            put_away.append(arguments[0])
        return 0

    handlers = [signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)]
    with monkeypatch.context() as patched:
        patched.setattr(importlib, "import_module", lambda name: SimpleNamespace(main=verb))
        codes = {name: main([name, name]) for name in VERBS}
    assert codes == dict.fromkeys(VERBS, CODES[number])
    assert put_away == list(VERBS)
    assert capsys.readouterr().err == f"gruppetto: stopped by {number.name}\n" * len(VERBS)
    assert [signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)] == handlers


@pytest.mark.parametrize("number", CODES)
def test_the_syncer_keeps_it_and_forgets_where_it_listened(
    number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[bool] = []

    def ready(*_: Any) -> None:
        seen.append((tmp_path / "endpoint.json").exists())
        os.kill(os.getpid(), number)

    monkeypatch.setattr("gruppetto.cli.syncer._ready", ready)
    assert main(["syncer", "--listen", "127.0.0.1:0", "--state", str(tmp_path)]) == CODES[number]
    assert seen == [True] and not (tmp_path / "endpoint.json").exists()
    assert capsys.readouterr().err.endswith(f"gruppetto: stopped by {number.name}\n")


PARENT = """
import sys, time
from pathlib import Path
from gruppetto.launch.children import start
child = start("child", ["-c", sys.argv[1]], Path(sys.argv[2]), threads=1)
print(child.process.pid, flush=True)
time.sleep(60)
"""
CHILD = """
import os, signal
from gruppetto.cli import parent
parent.ORPHAN_GRACE_S = {grace_s}
signal.signal(signal.SIGTERM, {handler})
parent.end_with_parent()
print("watching", flush=True)
{then}
while True:
    signal.pause()
"""
DEAF, TOLD = "signal.SIG_IGN", "lambda *_: (print('told', flush=True), os._exit(0))"


@pytest.mark.parametrize(
    ("handler", "then", "said"),
    [
        (TOLD, "", "watching\ntold\n"),
        (DEAF, "", "watching\n"),
        pytest.param(
            TOLD,
            "os.kill(os.getpid(), signal.SIGSTOP)",
            "watching\ntold\n",
            marks=pytest.mark.skipif(sys.platform != "linux", reason="only Linux wakes a stopped orphan"),
        ),
    ],
    ids=["told", "deaf", "stopped"],
)
def test_a_child_ends_with_a_parent_that_is_killed(tmp_path: Path, handler: str, then: str, said: str) -> None:
    """kill -9: told first, then made to end, and woken up for it if it was stopped."""
    log = tmp_path / "child.log"
    grace_s = 0.1 if handler == DEAF else 60.0  # who hears it leaves by itself, however slowly
    code = CHILD.format(handler=handler, then=then, grace_s=grace_s)
    command = [sys.executable, "-c", PARENT, code, str(log)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        while not log.read_text(encoding="utf-8") or (then and _state(child) != "T"):
            assert parent.poll() is None
        parent.kill()
    while _state(child) not in ("", "Z"):
        pass
    assert log.read_text(encoding="utf-8") == said


def _state(pid: int) -> str:
    """One letter of ps; empty when there is no such process."""
    shown = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return shown.stdout.strip()[:1]


GOES_ON = """
import importlib, os, sys
from types import SimpleNamespace
from rich.console import Console
from gruppetto.cli.__main__ import main

def verb(arguments):
    console = Console(stderr=True)
    for _ in range(3):
        print("how it gets on", file=sys.stderr, flush=True)
        console.print("how it gets on")
    os.write(1, b"done")
    return 7

importlib.import_module = lambda name: SimpleNamespace(main=verb)
sys.exit(main([sys.argv[1]]))
"""


@pytest.mark.parametrize(
    ("gone", "verb", "code", "said"),
    [*((gone, "train", 7, b"done") for gone in ("reader", "room", "closed")), ("reader", "nosuch", 2, b"")],
)
def test_nobody_has_to_listen_to_how_a_verb_gets_on(gone: str, verb: str, code: int, said: bytes) -> None:
    """A pipe without a reader, a full disk, no standard error at all: the verb does what it was asked for."""
    if gone == "room" and not Path("/dev/full").exists():
        pytest.skip("only Linux has a disk that is always full")
    reader, writer = os.pipe()
    os.close(reader)
    stderr = os.open("/dev/full", os.O_WRONLY) if gone == "room" else writer
    close = (lambda: os.close(2)) if gone == "closed" else None
    command = [sys.executable, "-c", GOES_ON, verb]
    ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=stderr, check=False, preexec_fn=close)
    for descriptor in {writer, stderr}:
        os.close(descriptor)
    assert (ended.returncode, ended.stdout) == (code, said)
