"""The page over HTTP: who may look, what is said, and that it keeps up with what is written."""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest
from aiohttp.test_utils import TestClient, TestServer

from gruppetto.chaos import draw_plan, live
from gruppetto.cli.dashboard import main
from gruppetto.dashboard import door, pages
from gruppetto.dashboard.annex import annex
from gruppetto.dashboard.pages import POLICY, STATIC
from gruppetto.dashboard.serving import directory_app, serve_pages, syncer_app, trace_of
from gruppetto.errors import AddressError, DataError
from gruppetto.numerics.layout import Layout, TensorSpec
from gruppetto.protocol.messages import Hello
from gruppetto.protocol.settings import ProtocolSetting
from gruppetto.runtime.address import SyncerAddress
from gruppetto.runtime.serving import Endpoint, serve
from gruppetto.runtime.setting import SyncerSetting
from gruppetto.runtime.wire import HelloFrame, checksum, encode_frame
from gruppetto.trace.log import TraceWriter

LAYOUT = Layout(tensors=(TensorSpec(name="a", shape=(4,), dtype="float32"),))


def run(test: Awaitable[None]) -> None:
    asyncio.run(asyncio.wait_for(test, 60))


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("run") / "trace.jsonl"
    with TraceWriter(path, {}) as writer:
        live(draw_plan(2), trace=writer)
    return path


@asynccontextmanager
async def looking(trace: Path, token: str | None = None) -> AsyncIterator[TestClient[Any, Any]]:
    async with TestClient(TestServer(directory_app(trace, token))) as client:
        yield client


@asynccontextmanager
async def syncer(place: Path, *, trace: TraceWriter | None = None, **setting: Any) -> AsyncIterator[Endpoint]:
    stop, ready = asyncio.Event(), asyncio.get_running_loop().create_future()
    chosen = SyncerSetting(state=place / "syncer", listen="127.0.0.1:0", outer="finetune", **setting)
    rules = ProtocolSetting(num_fragments=1, sync_period=1, overlap_steps=0)
    task = asyncio.create_task(serve(rules, chosen, trace=trace, on_ready=ready.set_result, stop=stop, annex=annex))
    await asyncio.wait({task, ready}, return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        task.result()
    try:
        yield ready.result()
    finally:
        stop.set()
        await task


async def joins(http: aiohttp.ClientSession, url: str, name: str, **shown: str) -> aiohttp.ClientWebSocketResponse:
    """A learner introduces itself, and gives the first weights."""
    socket = await http.ws_connect(f"{url}/v1/control", headers=shown)
    hello = Hello(learner=name, session=f"{name}-1", layout_hash=LAYOUT.layout_hash)  # type: ignore[arg-type]
    await socket.send_bytes(encode_frame(HelloFrame.of(hello, LAYOUT)))
    await socket.receive()
    body = np.zeros(4, np.float32).tobytes()
    told = {"Gruppetto-Learner": name, "Gruppetto-Incarnation": "1", "Gruppetto-Checksum": f"{checksum(body):08x}"}
    async with http.put(f"{url}/v1/seed/0", data=body, headers={**told, **shown}) as reply:
        assert reply.status == 200, await reply.text()
    return socket


async def news(reply: aiohttp.ClientResponse) -> AsyncIterator[dict[str, Any]]:
    async for line in reply.content:
        if line.startswith(b"data: "):
            yield json.loads(line.removeprefix(b"data: "))


def test_every_file_is_here_and_small_and_asks_for_nothing_outside() -> None:
    assert {"index.html", "enter.html", "style.css", "icon.svg", "main.js"} <= STATIC.keys()
    assert sum(map(len, STATIC.values())) < 300_000
    for name, content in STATIC.items():
        text = content.decode().replace('"http://www.w3.org/2000/svg"', "")
        assert "http://" not in text and "https://" not in text, name
        assert "innerHTML" not in text and "eval(" not in text, name
        for wanted in re.findall(r'from "\./([^"]+)"', text):
            assert wanted in STATIC, (name, wanted)


def test_the_page_and_its_data(trace: Path) -> None:
    async def test() -> None:
        async with looking(trace) as client:
            async with client.get("/", allow_redirects=False) as reply:
                assert (reply.status, reply.headers["Location"]) == (302, "/dashboard/")
            for name in ("", "style.css", "main.js"):
                async with client.get(f"/dashboard/{name}") as reply:
                    assert reply.status == 200 and reply.headers["Content-Security-Policy"] == POLICY
            for path in ("/dashboard/nothing.js", "/dashboard/../../etc/passwd", "/dashboard/learner?name=nobody"):
                assert (await client.get(path)).status == 404
            assert (await client.post("/dashboard/data")).status == 405
            for path in ("", "main.js", "data", "events"):
                asked = await client.head(f"/dashboard/{path}")
                assert (asked.status, await asked.read()) == (200, b"")
            data = await (await client.get("/dashboard/data?from=nan&to=-1&slots=1e9")).json()
            assert len(data["lanes"]) > 1 and data["from"] == 0
            name = data["lanes"][0]["name"]
            learner = await (await client.get("/dashboard/learner", params={"name": name})).json()
            assert learner["series"]["step_s"]["n"]
            table = await client.get("/dashboard/export?format=csv")
            assert "attachment" in table.headers["Content-Disposition"]
            assert (await table.text()).startswith("series,from_s")
            assert (await client.get("/dashboard/export?format=xml")).status == 400
            assert (await client.get("/metrics")).status == 404  # there is no syncer to say any

    run(test())


def test_a_page_hears_what_is_written_after_it_was_opened(tmp_path: Path) -> None:
    async def test() -> None:
        path = tmp_path / "trace.jsonl"
        with TraceWriter(path, {"run_id": "r"}) as writer:
            (tmp_path / "trace-2.jsonl").write_bytes(b"{}\n")
            async with looking(path) as client, client.get("/dashboard/events") as reply:
                assert reply.headers["Content-Type"] == "text/event-stream"
                told = news(reply)
                assert (head := await anext(told))["headline"]["state"] == "empty"
                assert head["shard"] == "1/2", "it shows one of two, and says so"
                writer.note(1.0, "judge", "evaluation", round=0, loss=2.5, perplexity=12.0)
                writer.flush()
                assert (await anext(told))["evaluated"][2] == 2.5

    run(test())


def test_who_has_gone_makes_room_though_nothing_happens_any_more(
    trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "MAX_LOOKERS", 2)
    monkeypatch.setattr(pages, "NEWS_EVERY_S", 0.01)
    ended = tmp_path / "trace.jsonl"
    ended.write_bytes(trace.read_bytes())
    os.utime(ended, (1, 1))  # nobody writes it

    async def test() -> None:
        async with looking(ended) as client:
            there = [await client.get("/dashboard/events") for _ in range(2)]
            assert [reply.status for reply in there] == [200, 200]
            assert (await client.get("/dashboard/events")).status == 503
            while await there[0].content.readline() != b": nothing new\n":
                pass
            there[0].close()
            while (await client.get("/dashboard/events")).status != 200:
                pass

    run(test())


def test_who_may_look(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        async with looking(trace, "secret") as client:
            for path in ("/dashboard/data", "/dashboard/events", "/dashboard/main.js", "/dashboard/export"):
                assert (await client.get(path)).status == 401, path
            form = await client.get("/dashboard/")
            assert form.status == 401 and "Token" in await form.text()
            shown = await client.get("/dashboard/data", headers={"Authorization": "Bearer secret"})
            assert shown.status == 200
            assert (await client.get("/dashboard/?token=wrong", allow_redirects=False)).status == 401
            entered = await client.get("/dashboard/?token=secret", allow_redirects=False)
            assert (entered.status, entered.headers["Location"]) == (303, "/dashboard/")
            cookie = entered.headers["Set-Cookie"]
            assert {"HttpOnly", "SameSite=Strict"} <= {part.strip() for part in cookie.split(";")}
            assert "secret" not in cookie
            client.session.cookie_jar.clear()
            by_form = await client.post("/dashboard/enter", data={"token": "secret"}, allow_redirects=False)
            assert by_form.status == 303
            value = by_form.cookies[door.COOKIE].value
            assert (await client.get("/dashboard/data", cookies={door.COOKIE: value})).status == 200
            client.session.cookie_jar.clear()
            for wrong in ("", "1", "x.y", f"9{value}", value[:-1] + ("0" if value[-1] != "0" else "1")):
                reply = await client.get("/dashboard/data", headers={"Cookie": f"{door.COOKIE}={wrong}"})
                assert reply.status == 401, wrong
        async with looking(trace, "secret") as again:  # a syncer that was started again
            reply = await again.get("/dashboard/data", headers={"Cookie": f"{door.COOKIE}={value}"})
            assert reply.status == 200
        async with looking(trace, "another") as other:
            reply = await other.get("/dashboard/data", headers={"Cookie": f"{door.COOKIE}={value}"})
            assert reply.status == 401
        later = door.wall_time_s() + door.HOLDS_S + 1
        monkeypatch.setattr(door, "wall_time_s", lambda: later)
        async with looking(trace, "secret") as late:
            reply = await late.get("/dashboard/data", headers={"Cookie": f"{door.COOKIE}={value}"})
            assert reply.status == 401

    run(test())


def test_what_is_open_on_this_machine_is_not_open_to_a_name_that_points_here(trace: Path) -> None:
    async def test() -> None:
        async with looking(trace) as client:
            for host, status in (("evil.example", 403), ("evil.example:80", 403), ("localhost:1", 200), ("[::1]", 200)):
                assert (await client.get("/dashboard/data", headers={"Host": host})).status == status, host

    run(test())


@pytest.mark.parametrize("recorded", [True, False])
def test_a_syncer_shows_itself(tmp_path: Path, recorded: bool) -> None:
    """With a trace and without: a learner is there, and is seen when it goes."""

    async def test() -> None:
        writer = TraceWriter(tmp_path / "trace.jsonl" if recorded else None, {})
        async with syncer(tmp_path, trace=writer) as endpoint, aiohttp.ClientSession() as http:
            socket = await joins(http, endpoint.url, "anna")
            async with http.get(f"{endpoint.url}/dashboard/events") as reply:
                told = news(reply)
                head = await anext(told)
                assert head["live"] and head["learners"] == 1 and head["run_id"] == endpoint.run_id
                await socket.close()
                while (
                    not (troubles := (await anext(told))["headline"]["troubles"]) or troubles[0]["state"] != "offline"
                ):
                    pass
                assert troubles[0]["who"] == "anna"
            async with http.get(f"{endpoint.url}/metrics") as reply:
                text = await reply.text()
                assert reply.headers["Content-Type"].startswith("text/plain; version=0.0.4")
                assert 'gruppetto_learner_state{learner="anna",state="away"} 1' in text
            async with http.get(f"{endpoint.url}/v1/status") as reply:
                assert (await reply.json())["run_id"] == endpoint.run_id

    run(test())


def test_at_a_syncer_the_token_is_that_of_everything_else_and_the_cookie_only_for_looking(tmp_path: Path) -> None:
    async def test() -> None:
        async with syncer(tmp_path, token="secret") as endpoint, aiohttp.ClientSession() as http:
            assert (await http.get(f"{endpoint.url}/metrics")).status == 401
            shown = {"Authorization": "Bearer secret"}
            assert (await http.get(f"{endpoint.url}/metrics", headers=shown)).status == 200
            entered = await http.post(
                f"{endpoint.url}/dashboard/enter", data={"token": "secret"}, allow_redirects=False
            )
            cookies = {"Cookie": f"{door.COOKIE}={entered.cookies[door.COOKIE].value}"}
            assert (await http.get(f"{endpoint.url}/dashboard/data", headers=cookies)).status == 200
            assert (await http.get(f"{endpoint.url}/v1/status", headers=cookies)).status == 401
            assert (await http.get(f"{endpoint.url}/v1/model", headers=cookies)).status == 401
            await _looked_at_from_elsewhere(endpoint.url)

    async def _looked_at_from_elsewhere(url: str) -> None:
        """The browser of the proxy needs no token, and sees none."""
        app = syncer_app(SyncerAddress.parse(url), "secret")
        async with TestClient(TestServer(app)) as client:
            assert (await client.get("/dashboard/")).status == 200
            assert (await client.get("/dashboard/data")).status == 200
            async with client.get("/dashboard/events") as reply:
                assert (await anext(news(reply)))["headline"]["state"] == "empty"
            assert (await client.get("/v1/status")).status == 404
        async with TestClient(TestServer(syncer_app(SyncerAddress.parse("127.0.0.1:1"), None))) as client:
            reply = await client.get("/dashboard/data")
            assert reply.status == 502 and "is the syncer running there?" in await reply.text()

    run(test())


def test_what_cannot_be_shown_is_said_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"holds no trace\.jsonl"):
        trace_of(tmp_path)
    with pytest.raises(DataError, match=r"holds no trace\.jsonl"):
        main([str(tmp_path)])
    (book := tmp_path / "book.txt").write_bytes(b"Call me Ishmael.")
    with pytest.raises(DataError, match="is not a trace"):
        trace_of(book)
    book.write_bytes(b"")  # of a run that has not begun
    assert trace_of(book) == book
    with pytest.raises(DataError, match="no such directory"):
        main([str(tmp_path / "mistyped")])
    with pytest.raises(AddressError, match="is not an address"):
        main(["ftp://x"])
    with pytest.raises(AddressError, match="reachable from other machines"):
        serve_pages(directory_app(tmp_path), "0.0.0.0:0", on_ready=print, token=None, allow_plaintext=True)
