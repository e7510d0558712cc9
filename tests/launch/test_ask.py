"""Asking a syncer, and telling apart who answers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar

import pytest
from tests.served import Quiet, served

from gruppetto.errors import AddressError, ConnectionLost, SettingError
from gruppetto.launch import ask
from gruppetto.launch.ask import fetch_model, fetch_status, find_endpoint, read_token
from gruppetto.launch.ask_checkpoint import take_checkpoint
from gruppetto.protocol.settings import ProtocolSetting
from gruppetto.runtime.health import Observer, status_before_the_first_learner


class Answers(Quiet):
    replies: ClassVar[dict[str, tuple[int, bytes, dict[str, str]]]] = {}
    heard: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.heard.append(self.headers.get("Authorization", ""))
        code, body, headers = self.replies.get(self.path, (404, b"no weights yet\n", {}))
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def url() -> Iterator[str]:
    Answers.replies, Answers.heard = {}, []
    with served(Answers) as address:
        yield address


def test_status_and_model_of_a_syncer(url: str) -> None:
    said = status_before_the_first_learner(ProtocolSetting(), Observer(), run_id="r", epoch=1, now=0.0)
    Answers.replies["/v1/status"] = (200, json.dumps(said).encode(), {})
    assert fetch_status(url, token="secret") == said
    assert Answers.heard == ["Bearer secret"]
    assert fetch_model(url) is None
    Answers.replies["/v1/model"] = (200, b"weights", {"Gruppetto-Round": "7"})
    model = fetch_model(url)
    assert model is not None
    assert (model.round, model.content) == (7, b"weights")


def test_no_proxy_of_the_environment_is_asked(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    Answers.replies["/v1/model"] = (200, b"weights", {"Gruppetto-Round": "7"})
    model = fetch_model(url)
    assert model is not None and model.round == 7


@pytest.mark.parametrize(
    ("code", "body", "says"),
    [
        (200, b"<html>", "does not answer like a syncer"),
        (200, b"[]", "does not answer like a syncer"),
        (200, b'{"version": 1}', "does not answer like a syncer"),
        (200, b'{"round": 1}', "does not answer like a syncer .*`phase`"),
        (200, b'{"round": 1, "phase": "x", "waiting_for": "", "recoveries": [], "learners": [1]}', "like a syncer"),
        (200, b"[" * 100_000, "does not answer like a syncer"),
        (200, b"\xff\xfe\0x", "does not answer like a syncer"),
        (401, b"a token is needed\n", "wants a token; give --token-file"),
        (500, b"oh\n", "answered 500 oh"),
        (404, b"", "not found"),
    ],
)
def test_somebody_else_answers(url: str, code: int, body: bytes, says: str) -> None:
    Answers.replies["/v1/status"] = (code, body, {})
    with pytest.raises(AddressError, match=says) as caught:
        fetch_status(url)
    assert caught.value.where == url


def test_a_model_without_a_round_is_none_of_ours(url: str) -> None:
    Answers.replies["/v1/model"] = (200, b"weights", {})
    with pytest.raises(AddressError, match="does not answer like a syncer"):
        fetch_model(url)


def test_an_answer_that_drips_is_given_up(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ask, "ANSWER_S", 0.0)
    Answers.replies["/v1/status"] = (200, b" " * 1000, {})
    with pytest.raises(ConnectionLost, match="does not end"):
        fetch_status(url)


@pytest.mark.parametrize("question", [fetch_status, lambda url: take_checkpoint(url, secret=None)])
def test_https_at_a_server_without_it(url: str, question: Callable[[str], object]) -> None:
    with pytest.raises(AddressError, match="speaks no TLS; say http://"):
        question(url.replace("http:", "https:"))


def test_nobody_answers() -> None:
    with pytest.raises(ConnectionLost, match="nobody answers"):
        fetch_status("http://127.0.0.1:9")


def test_an_endpoint_is_found_in_a_state_or_run_directory(tmp_path: Path) -> None:
    assert find_endpoint(tmp_path) is None
    (tmp_path / "syncer").mkdir()
    place = tmp_path / "syncer" / "endpoint.json"
    place.write_text('{"url": "http://127.0.0.1:', encoding="utf-8")
    assert find_endpoint(tmp_path) is None
    place.write_text('{"url": "http://127.0.0.1:7171", "run_id": "r", "epoch": 1, "pid": 3}', encoding="utf-8")
    for directory in (tmp_path, tmp_path / "syncer"):
        found = find_endpoint(directory)
        assert found is not None
        assert (found.url, found.pid) == ("http://127.0.0.1:7171", 3)


def test_a_token_is_the_first_word_of_its_file(tmp_path: Path) -> None:
    assert read_token(None) is None
    file = tmp_path / "token"
    file.write_text("secret\nnot this\n", encoding="utf-8")
    assert read_token(file) == "secret"
    file.write_text("\n", encoding="utf-8")
    with pytest.raises(SettingError, match="is empty"):
        read_token(file)
