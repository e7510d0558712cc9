"""A standby says what it is and who serves the run, and sends the page on."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import aiohttp
import pytest

from gruppetto.errors import AddressError
from gruppetto.launch.ask import fetch_status, is_standby
from gruppetto.runtime.address_book import ENDPOINT_FILE
from gruppetto.runtime.antechamber import Antechamber, who_serves


def leaves_word(state: Path, url: object) -> None:
    (state / ENDPOINT_FILE).write_text(json.dumps({"url": url}))


def test_it_knows_who_serves_from_the_state_directory(tmp_path: Path) -> None:
    assert who_serves(tmp_path) == ""
    for url, found in (
        ("http://127.0.0.1:7171", "http://127.0.0.1:7171"),
        ("https://0.0.0.0:7171", ""),
        ("http://[::]:7171", ""),
        ("ftp://nowhere", ""),
        (7, ""),
    ):
        leaves_word(tmp_path, url)
        assert who_serves(tmp_path) == found, url
    (tmp_path / ENDPOINT_FILE).write_text("half a fi")
    assert who_serves(tmp_path) == ""


@pytest.mark.parametrize("known", [True, False])
def test_status_says_what_it_is_and_the_page_is_sent_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known: bool
) -> None:
    monkeypatch.setattr("gruppetto.launch.ask.HEALTH_TIMEOUT_S", 60.0)
    live = "http://127.0.0.1:7171"
    if known:
        leaves_word(tmp_path, live)

    async def ask() -> None:
        async with Antechamber("127.0.0.1", 0, None, serving=lambda: who_serves(tmp_path)) as port:
            here = f"http://127.0.0.1:{port}"
            assert await asyncio.to_thread(is_standby, here)
            with pytest.raises(AddressError) as told:
                await asyncio.to_thread(fetch_status, here)
            who = live if known else "another syncer"
            assert str(told.value) == f"{here}: is a standby; {who} serves the run; ask that one"
            async with aiohttp.ClientSession() as http:
                for path in ("/dashboard", "/dashboard/", "/dashboard/api/head?token=secret"):
                    async with http.get(here + path, allow_redirects=False) as reply:
                        assert reply.status == (307 if known else 503)
                        sent = reply.headers.get("Location")
                    assert sent == (live + path.partition("?")[0] if known else None)
                async with http.get(f"{here}/v1/control", allow_redirects=False) as reply:
                    assert reply.status == 503 and "standby" in await reply.text()

    asyncio.run(ask())
