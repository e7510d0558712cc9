"""Several are asked at the same time: one who is silent keeps nobody from hearing the others."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.served import Quiet, served

from gruppetto.errors import ConnectionLost
from gruppetto.launch import ask_shards
from gruppetto.launch import at_once as at_once_module
from gruppetto.launch.ask import find_endpoints_beside
from gruppetto.launch.ask_shards import fetch_status_of_all, shard_lines
from gruppetto.launch.at_once import at_once
from gruppetto.protocol.settings import ProtocolSetting
from gruppetto.runtime.clock import MonotonicClock
from gruppetto.runtime.health import Observer, status_before_the_first_learner


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Of all that are asked these alone are silent: the time in which to answer begins when the others have."""

    def those(*names: str) -> None:
        class AfterTheOthers(MonotonicClock):
            def __init__(self) -> None:
                for thread in threading.enumerate():
                    if thread.name.startswith("ask ") and thread.name.removeprefix("ask ") not in names:
                        thread.join()
                super().__init__()

        monkeypatch.setattr(at_once_module, "MonotonicClock", AfterTheOthers)
        monkeypatch.setattr(ask_shards, "SILENT_S", 60.0)
        monkeypatch.setattr(ask_shards, "at_once", lambda asks, within_s: at_once(asks, within_s=0.2))

    return those


def test_who_is_late_is_left_out_and_errors_of_ours_come_out(silent: Callable[..., None]) -> None:
    silent("late")
    never = threading.Event()

    def lost() -> int:
        raise ConnectionLost("nobody there")

    def wrong() -> int:
        raise ZeroDivisionError

    said = at_once({"late": lambda: never.wait(30) or 1, "lost": lost, "b": lambda: 2, "a": lambda: 1}, within_s=0.2)
    never.set()
    assert list(said.items()) == [("b", 2), ("a", 1)]
    with pytest.raises(ZeroDivisionError):
        at_once({"wrong": wrong}, within_s=30.0)


class Shards:
    """Three syncers that answer, and one that is stopped: its machine takes connections, and says nothing."""

    def __init__(self, stack: ExitStack, *, stopped: str, together: int = 1) -> None:
        self.urls: dict[str, str] = {}
        self._stopped, self._together = stopped, threading.Barrier(together)
        for number in "123":
            if number == stopped:
                deaf = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
                self.urls[number] = f"http://127.0.0.1:{deaf.getsockname()[1]}"
            else:
                self.urls[number] = stack.enter_context(self._answering(number))

    def says(self, number: str) -> dict[str, Any]:
        said = status_before_the_first_learner(ProtocolSetting(), Observer(), run_id="r", epoch=1, now=0.0)
        return said | {"shard": f"{number}/3", "shards": self.urls, "round": int(number)}

    @contextmanager
    def _answering(self, number: str) -> Iterator[str]:
        shards = self

        class Answers(Quiet):
            def do_GET(self) -> None:
                if number != "1":
                    shards._together.wait(30)
                self.send_response(200)
                self.end_headers()
                self.wfile.write(json.dumps(shards.says(number)).encode())

        with served(Answers) as address:
            yield address


def test_all_shards_are_asked_at_the_same_time(silent: Callable[..., None]) -> None:
    silent()
    with ExitStack() as stack:
        shards = Shards(stack, stopped="", together=2)  # the others answer when both have been asked
        told = fetch_status_of_all(shards.urls["1"])
    assert [told["round"], *(each["round"] for each in told["by_shard"].values())] == [1, 2, 3]


def test_a_stopped_shard_is_named_and_the_rest_is_shown(silent: Callable[..., None]) -> None:
    silent("2")
    with ExitStack() as stack:
        shards = Shards(stack, stopped="2")
        told = fetch_status_of_all(shards.urls["1"])
        assert [told["shard"], told["by_shard"]["3"]["round"]] == ["1/3", 3]
        assert shard_lines(told)[0].startswith(f"! shard 2/3 does not answer ({shards.urls['2']})")


def test_the_others_speak_for_a_first_shard_that_is_stopped(silent: Callable[..., None], tmp_path: Path) -> None:
    with ExitStack() as stack:
        shards = Shards(stack, stopped="1")
        silent(shards.urls["1"])
        for number, url in shards.urls.items():
            state = tmp_path / ("syncer" if number == "1" else f"syncer-{number}")
            state.mkdir()
            (state / "endpoint.json").write_text(json.dumps({"url": url, "pid": 1}))
        beside = [each.url for each in find_endpoints_beside(tmp_path)]
        assert beside == [shards.urls["2"], shards.urls["3"]]
        assert [each.url for each in find_endpoints_beside(tmp_path / "syncer")] == beside
        told = fetch_status_of_all(shards.urls["1"], beside=beside)
        assert told["shard"] == "2/3" and told["by_shard"]["3"]["round"] == 3
        assert shard_lines(told)[0].startswith(f"! shard 1/3 does not answer ({shards.urls['1']})")


def test_what_another_run_says_at_an_address_of_old_counts_for_nothing(silent: Callable[..., None]) -> None:
    silent()
    with ExitStack() as stack:
        shards, others = Shards(stack, stopped=""), Shards(stack, stopped="")
        others.says = lambda number: shards.says(number) | {"run_id": "other", "round": 99}  # type: ignore[method-assign]
        told = fetch_status_of_all(shards.urls["1"], beside=[others.urls["2"]])
        assert [each["round"] for each in told["by_shard"].values()] == [2, 3]
