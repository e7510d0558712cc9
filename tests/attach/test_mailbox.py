"""Learners and a syncer that meet in a bucket alone: a real server of the store's protocol on loopback."""

from __future__ import annotations

import itertools
import logging
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.attach.conftest import SyncerThread
from tests.attach.test_learner import status, train
from torch import nn

import gruppetto
from gruppetto.errors import SettingError, StateError
from gruppetto.numerics import OuterSetting, synchronous_diloco
from gruppetto.protocol import ProtocolSetting

Start = Callable[..., Any]
Make = Callable[..., Any]


class Gate:
    """A way to the store that can be shut: who is on it is thrown out, and nobody gets in."""

    def __init__(self, endpoint: str) -> None:
        self._target = ("127.0.0.1", int(endpoint.rpartition(":")[2]))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._open: set[socket.socket] = set()
        self.shut = False
        self.turned_away = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                one, _ = self._listener.accept()
            except OSError:
                return
            if self.shut:
                self.turned_away += 1
                one.close()
                continue
            other = socket.create_connection(self._target)
            self._open |= {one, other}
            for source, sink in ((one, other), (other, one)):
                threading.Thread(target=self._pump, args=(source, sink), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                sink.sendall(data)
        for end in (source, sink):
            self._open.discard(end)
            end.close()

    def close(self) -> None:
        self.shut = True
        for end in list(self._open):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def end(self) -> None:
        self._listener.close()
        self.close()


@pytest.fixture
def gate(object_store: str) -> Iterator[Gate]:
    one = Gate(object_store)
    yield one
    one.end()


def place(endpoint: str, prefix: str) -> str:
    return f"s3://lab/{prefix}?endpoint={endpoint}&region=us-east-1&poll=0.02"


LOCK_STEP = {
    "num_learners": 2,
    "start_learners": 2,
    "min_quorum": 2,
    "num_fragments": 1,
    "sync_period": 1,
    "overlap_steps": 0,
    "merge": ((".", "mean"),),
    "outer": OuterSetting(optimizer="nesterov", lr=0.7, momentum=0.5),
    "uplink": "fp32",
}


def test_two_learners_in_lock_step_are_textbook_diloco_and_a_store_that_goes_away_costs_time_alone(
    syncer: Start, toy: Make, gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    rounds, box = 6, place(gate.endpoint, "lock-step")
    caplog.set_level(logging.INFO, "gruppetto")
    running = syncer(rounds=rounds, mailbox=box, **LOCK_STEP)
    models = [toy(seed=0), toy(seed=1)]
    began: dict[int, Any] = {}
    shut = threading.Event()

    def one(number: int) -> None:
        model = models[number]
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with gruppetto.Learner(
            model, optimizer, syncer=box, name=f"l{number}", tokens_per_step=16, max_run_ahead=0,
            run_ahead_timeout_s=60.0, quiet=True,
        ) as learner:  # fmt: skip
            began[number] = nn.utils.parameters_to_vector(model.parameters()).detach().clone()
            for index in learner.until_finished(itertools.count()):
                train(model, optimizer, index, seed=number)
                if number == 0 and learner.round == 2 and not shut.is_set():
                    gate.close()
                    shut.set()

    threads = [threading.Thread(target=one, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    assert shut.wait(60)
    while gate.turned_away < 9:  # all three have been turned away
        threading.Event().wait(0.02)
    gate.shut = False
    for thread in threads:
        thread.join()

    def inner_step(number: int) -> Callable[[Any, int], Any]:
        def step(theta: Any, index: int) -> Any:
            model = toy()
            nn.utils.vector_to_parameters(torch.from_numpy(theta.copy()), model.parameters())
            train(model, torch.optim.SGD(model.parameters(), lr=0.1), index, seed=number)
            return nn.utils.parameters_to_vector(model.parameters()).detach().numpy().copy()

        return step

    textbook = synchronous_diloco(began[0].numpy(), [inner_step(0), inner_step(1)], rounds, 1, 0.7, 0.5)
    for model in models:
        found = nn.utils.parameters_to_vector(model.parameters()).detach().numpy()
        np.testing.assert_allclose(found, textbook[-1], rtol=1e-5, atol=1e-6)
    tokens = status(running)["tokens"]
    assert tokens["merged"] == 2 * rounds * 16 and tokens["lost"] == 0
    assert tokens["consumed"] == tokens["merged"] + tokens["discarded"] + tokens["open"]
    assert {member["incarnation"] for member in status(running)["learners"].values()} == {1}, (
        "nobody was taken for dead"
    )
    said = [record.getMessage() for record in caplog.records]
    assert 1 <= sum("asked again until it answers" in line for line in said) <= 3, "one line of each of the three"
    assert not any("dialling again" in line for line in said)
    assert sum("asked of s3://lab/lock-step: " in line for line in said) == 2, "both learners say what it has cost"
    late = toy(seed=2)
    optimizer = torch.optim.SGD(late.parameters(), lr=0.1)
    with gruppetto.Learner(late, optimizer, syncer=box, name="late", tokens_per_step=16, quiet=True) as visitor:
        assert visitor.finished
    for mine, theirs in zip(late.parameters(), models[0].parameters(), strict=True):
        assert torch.equal(mine, theirs)
    running.stop()


def test_the_second_of_two_syncers_waits_and_only_a_life_of_the_same_state_goes_on(
    toy: Make, object_store: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    box, model = place(object_store, "elected"), toy()
    rules = ProtocolSetting(num_fragments=1, sync_period=1)
    how = {"mailbox": box, "lease_s": 5.0, "outer": "finetune"}
    first, other = (SyncerThread(tmp_path / state, rules, how) for state in ("first", "other"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    first.start()
    try:
        with gruppetto.Learner(model, optimizer, syncer=box, tokens_per_step=16, quiet=True) as learner:

            def steps(fine: Callable[[], bool]) -> None:
                for index in itertools.count():
                    if fine():
                        return
                    train(model, optimizer, index)
                    threading.Event().wait(0.01)

            def wait_as_the_second() -> None:
                with pytest.raises(AssertionError):
                    other.start()

            waiting = threading.Thread(target=wait_as_the_second)
            waiting.start()
            steps(lambda: learner.round >= 2 and any("this syncer waits" in line for line in caplog.messages))
            assert other.failure is None
            first.stop()
            steps(lambda: not waiting.is_alive())
            assert isinstance(other.failure, StateError)
            assert "was served here up to epoch 1, and is not in this state directory" in str(other.failure)
            before = learner.round
            first.start()
            steps(lambda: learner.round >= before + 2)
            assert learner.metrics()["gruppetto/reconnects"] == 1
        assert status(first)["epoch"] == 2
    finally:
        first.end()


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"donate": "10.0.0.1:7000"}, "gives no state to others"),
        ({"token": "sesame"}, "neither token nor certificate"),
        ({"ca_file": "ca.pem"}, "neither token nor certificate"),
    ],
)
def test_what_a_mailbox_does_not_have_is_refused_by_name(toy: Make, how: dict[str, Any], says: str) -> None:
    model = toy()
    with pytest.raises(SettingError, match=says):
        gruppetto.Learner(model, torch.optim.SGD(model.parameters(), lr=0.1), syncer="s3://lab/x", **how)
