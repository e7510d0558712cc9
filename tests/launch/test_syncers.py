"""A syncer and its standby: who is started how, who is in charge, and what a death changes, with real processes."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from gruppetto.config import load_run
from gruppetto.errors import RunFailed
from gruppetto.launch.children import Child, start
from gruppetto.launch.local import _LocalRun
from gruppetto.launch.syncers import Seat
from gruppetto.runtime.clock import ManualClock

STATUS = {
    "round": 3,
    "epoch": 1,
    "phase": "open",
    "waiting_for": "",
    "recoveries": [],
    "tokens": {"open": 0},
    "learners": {},
}


class Answers(BaseHTTPRequestHandler):
    """A syncer in charge and a standby at one address: each is asked for something else."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"standby\n" if self.path == "/healthz" else json.dumps(STATUS).encode())

    def log_message(self, format: str, *args: object) -> None:
        pass


class Pair(_LocalRun):
    """A run whose two syncers are processes that wait for their end, and say in ``commands`` how they were called."""

    commands: list[Sequence[str]]
    url: str

    def in_charge(self, seat: Seat) -> None:
        """It writes down that it is, and it is asked how things stand."""
        assert seat.child is not None
        epochs = self._syncers.first.state / "epochs"
        epochs.mkdir(parents=True, exist_ok=True)
        (epochs / f"{len(list(epochs.iterdir())) + 1:05}").touch()
        endpoint = {"url": self.url, "pid": seat.child.process.pid}
        (self._syncers.first.state / "endpoint.json").write_text(json.dumps(endpoint), encoding="utf-8")
        self._ask()

    def kill(self, seat: Seat) -> None:
        assert seat.child is not None
        seat.child.process.kill()
        seat.child.process.wait()

    def after(self, seconds: float) -> None:
        assert isinstance(self._clock, ManualClock)
        self._clock.advance(seconds)
        self._mend()

    def shown(self) -> tuple[str, str]:
        """The states of the syncer and of the standby, as the view shows them."""
        self._write_processes()
        assert self._sight.standby is not None
        return self._sight.processes["syncer"]["state"], self._sight.standby["state"]


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    config = load_run(overrides={"run.num_learners": 1, "launch.standby": True})
    run = Pair(config, tmp_path, cache=tmp_path, clock=ManualClock(), show=lambda _: None)
    run.commands = []

    def begin(name: str, command: Sequence[str], log: Path, *, threads: int) -> Child:
        run.commands.append(command)
        return start(name, ["-c", "import os; os.read(0, 1)"], log, threads=threads)

    monkeypatch.setattr("gruppetto.launch.engine.start", begin)
    monkeypatch.setattr("gruppetto.launch.ask.HEALTH_TIMEOUT_S", 60.0)
    with HTTPServer(("127.0.0.1", 0), Answers) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        run.url = f"http://127.0.0.1:{server.server_port}"
        run._syncers.start()
        yield run
        run.end()
        server.shutdown()


def test_the_second_one_waits_and_learners_are_told_of_both(pair: Pair) -> None:
    first, second = pair.commands
    assert "--standby" not in first and "--standby" in second
    listens = [command[command.index("--listen") + 1] for command in pair.commands]
    assert pair._syncers.first.address == ",".join(f"http://{listen}" for listen in listens)
    assert len(set(listens)) == 2
    assert {command[command.index("--trace") + 1] for command in pair.commands} == {str(pair.directory / "trace.jsonl")}


def test_a_standby_is_waiting_once_it_says_so(pair: Pair) -> None:
    one, two = pair._syncers.first.seats
    pair.in_charge(one)
    assert pair.shown() == ("running", "starting")
    pair._syncers.first.listen_for_standby()
    assert not two.waits  # nobody listens there yet
    two.url = pair.url
    pair._syncers.first.listen_for_standby()
    assert pair.shown() == ("running", "waiting")
    assert not one.waits, "who is in charge is not asked"


def test_it_is_said_where_the_page_is_and_that_nobody_answers(pair: Pair) -> None:
    one, _ = pair._syncers.first.seats
    assert pair._sight.page == ""
    pair._ask()
    pair._write_processes()
    assert pair._sight.silent == "starting"
    pair.in_charge(one)
    pair._write_processes()
    assert (pair._sight.page, pair._sight.silent) == (f"{pair.url}/dashboard/", "")
    where = pair._syncers.first.state / "endpoint.json"
    where.write_text(where.read_text(encoding="utf-8").replace(pair.url, "http://127.0.0.1:1"), encoding="utf-8")
    pair._ask()
    pair._write_processes()
    assert pair._sight.silent == "not answering"
    assert pair._sight.page == f"{pair.url}/dashboard/", "what was true last"


def test_the_dead_ones_place_is_taken_by_another_standby_after_a_pause(
    pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    one, two = pair._syncers.first.seats
    pair.in_charge(one)
    two.waits = True
    pair.kill(one)
    pair.after(0.0)
    assert "syncer died (SIGKILL): a standby is there; another one is started in 0.5 s" in caplog.text
    assert pair._syncers.first.first is two
    pair.in_charge(two)
    assert pair.shown() == ("running", "restarting in 1 s")
    pair.after(0.4)
    assert len(pair.commands) == 2
    pair.after(0.1)
    assert "--standby" in pair.commands[2]
    assert pair.commands[2][pair.commands[2].index("--listen") + 1] == one.listen
    assert (pair._syncers.first.first, pair._syncers.first.other) == (two, one)
    # And back again: the roles have changed, the places have not.
    one.waits = True
    pair.kill(two)
    pair.after(0.0)
    pair.in_charge(one)
    pair.after(0.5)
    assert "--standby" in pair.commands[3] and pair._syncers.first.first is one
    assert [seat.role for seat in pair._syncers.first.seats] == ["syncer", "standby"]


def test_a_standby_that_dies_is_replaced_and_nothing_else_happens(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    one, two = pair._syncers.first.seats
    pair.in_charge(one)
    pair.kill(two)
    pair.after(0.0)
    assert "standby died (SIGKILL): the syncer goes on; another one is started in 0.5 s" in caplog.text
    pair.after(0.5)
    assert "--standby" in pair.commands[2] and pair.shown() == ("running", "starting")


def test_one_that_hangs_is_replaced_and_is_the_next_standby_when_it_has_found_out(pair: Pair) -> None:
    one, two = pair._syncers.first.seats
    pair.in_charge(one)
    two.waits = True
    pair.in_charge(two)  # the lease ran out; the first one lives
    assert (pair._syncers.first.first, pair.shown()) == (two, ("running", "replaced"))
    assert one.child is not None
    one.child = start("syncer", ["-c", "raise SystemExit(3)"], pair.directory / "syncer.log", threads=1)
    one.child.process.wait()
    pair.after(0.0)
    pair.after(0.5)
    assert "--standby" in pair.commands[2] and pair.shown() == ("running", "starting")


def test_who_loses_the_race_at_the_start_is_the_next_standby(pair: Pair) -> None:
    """It is refused as a user's mistake would be, which is not repeated otherwise."""
    one, two = pair._syncers.first.seats
    pair.in_charge(two)
    one.child = start("syncer", ["-c", "raise SystemExit(2)"], pair.directory / "syncer.log", threads=1)
    one.child.process.wait()
    pair.after(0.0)
    pair.after(0.5)
    assert "--standby" in pair.commands[2]


def test_when_both_are_dead_the_next_one_takes_over_from_nobody(pair: Pair) -> None:
    """A first syncer beside one that has just taken over would be refused, so nobody is started as one any more."""
    one, two = pair._syncers.first.seats
    pair.in_charge(one)
    pair.kill(one)
    pair.kill(two)
    pair.after(0.0)
    pair.after(0.5)
    assert ["--standby" in command for command in pair.commands[2:]] == [True, True]


def test_before_a_run_has_begun_its_first_syncer_is_started_as_one(pair: Pair) -> None:
    pair.kill(pair._syncers.first.seats[0])
    pair.after(0.0)
    pair.after(0.5)
    assert "--standby" not in pair.commands[2]


def test_a_finished_run_wants_no_new_standby_but_one_who_serves(pair: Pair) -> None:
    one, two = pair._syncers.first.seats
    pair.in_charge(one)
    pair._sight.status = {**STATUS, "phase": "finished"}
    pair.kill(two)
    pair.after(0.0)
    pair.after(60.0)
    assert len(pair.commands) == 2
    pair.kill(one)
    pair.after(0.0)
    pair.after(60.0)
    assert len(pair.commands) > 2


def test_the_run_fails_when_both_are_dead_for_good(tmp_path: Path) -> None:
    config = load_run(overrides={"run.num_learners": 1, "launch.standby": True, "launch.restart": False})
    run = _LocalRun(config, tmp_path, cache=tmp_path, clock=ManualClock(), show=lambda _: None)
    one, two = run._syncers.seats
    for seat, code in ((one, "import os; os.read(0, 1)"), (two, "raise SystemExit(1)")):
        seat.child = start(seat.name, ["-c", code], tmp_path / f"{seat.name}.log", threads=1)
    assert two.child is not None and one.child is not None
    two.child.process.wait()
    run._mend()
    one.child.process.kill()
    one.child.process.wait()
    with pytest.raises(RunFailed, match="the syncer is killed"):
        run._mend()
    run.end()
