"""An attacker with no identity, with another's, and with one that counts no more. A good learner rides on meanwhile."""

from __future__ import annotations

import asyncio
import logging
import re
import ssl
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest
from tests.runtime.security.attacks.site_of_a_run import learner, unharmed

from gruppetto.dashboard.annex import annex
from gruppetto.errors import GruppettoError
from gruppetto.protocol.messages import Heartbeat
from gruppetto.runtime.address import SyncerAddress
from gruppetto.runtime.clock import wall_time_s
from gruppetto.runtime.http_client import HttpSyncer
from gruppetto.runtime.security.identity import Identity, Role
from gruppetto.runtime.security.issuing import Authority
from gruppetto.runtime.security.places import Papers, papers_of
from gruppetto.runtime.wire import CloseCode, encode_frame

EVERYTHING = (
    ("GET", "/v1/control"),
    ("POST", "/v1/heartbeat"),
    ("PUT", "/v1/contribution/1/0"),
    ("PUT", "/v1/seed/0"),
    ("GET", "/v1/fragment/0"),
    ("GET", "/v1/bodies"),
    ("GET", "/v1/status"),
    ("GET", "/v1/model"),
    ("POST", "/v1/checkpoint"),
    ("GET", "/v1/checkpoint"),
    ("GET", "/dashboard/data"),
    ("GET", "/dashboard/events"),
    ("GET", "/metrics"),
    ("GET", "/v1/../v1/status"),
    ("GET", "/nothing"),
)
Play = Callable[..., None]


def test_a_stranger_gets_nothing_but_the_news_that_somebody_lives(
    at_the_site: Play, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(site: Any) -> None:
        good = await site.peer("a").join()
        stranger = site.stranger()
        for headers in (
            {},
            {"Authorization": "Bearer gt-x"},
            {"Authorization": "Basic eDp5"},
            {"Authorization": "Bearer"},
        ):
            for method, path in EVERYTHING:
                async with stranger.http.request(method, site.url + path, headers=headers, data=b"") as reply:
                    assert reply.status == 401, (method, path, await reply.text())
        with pytest.raises(aiohttp.WSServerHandshakeError, match="401"):
            await stranger.dial()
        assert await stranger.get("/healthz") == 200
        await unharmed(site, good)

    with caplog.at_level(logging.WARNING):
        at_the_site(test, annex=annex)
    said = [r for r in caplog.records if "no certificate or token" in r.message]
    assert [r.message.rpartition("(")[2] for r in said][:2] == [
        "once; more of its kind are counted)",
        "10 times by now)",
    ]
    assert len(said) <= 3 and not any("gt-x" in r.message for r in caplog.records)


def test_nobody_speaks_for_another_on_any_route(at_the_site: Play) -> None:
    async def test(site: Any) -> None:
        good = await site.peer("a").join()
        thief = site.peer("a", learner("b"))  # b's papers, a's name
        await thief.dial()
        closed = await thief.until_closed()
        assert closed.data == CloseCode.PROTOCOL and closed.extra == "b may not speak for a"
        beat = encode_frame(Heartbeat(learner="a", incarnation=1))
        async with thief.http.post(f"{site.url}/v1/heartbeat", data=beat) as reply:
            assert reply.status == 403 and "b may not speak for a" in await reply.text()
        for answer in (thief.answer(1), thief.answer(7), thief.answer(1, incarnation=9)):
            assert await thief.contribute(answer, Gruppetto_Rank="3") == (403, "b may not speak for a\n")
        assert await thief.seed() == (403, "b may not speak for a\n")
        await unharmed(site, good)

    at_the_site(test)


def test_who_may_look_may_not_train_and_who_trains_takes_no_checkpoint(at_the_site: Play) -> None:
    async def test(site: Any) -> None:
        good = await site.peer("a").join()
        viewer, operator = (
            site.peer("a", Identity(role=role, name=name)) for role, name in ((Role.VIEWER, "v"), (Role.OPERATOR, "o"))
        )
        for looker, model in ((viewer, 403), (operator, 200)):
            assert await looker.get("/v1/status") == await looker.get("/metrics") == 200
            assert await looker.get("/v1/model") == await looker.get("/v1/fragment/0") == model
            assert (await looker.contribute(looker.answer(1)))[0] == (await looker.seed())[0] == 403
            with pytest.raises(aiohttp.WSServerHandshakeError, match="403"):
                await looker.dial()
        for who, status in ((good, 403), (viewer, 403), (operator, 202)):
            async with who.http.post(f"{site.url}/v1/checkpoint") as reply:
                assert reply.status == status
        await unharmed(site, good)

    at_the_site(test, annex=annex)


def of_another_authority(place: Path, ca: Path) -> Papers:
    """Papers of a learner a that another authority has made; whoever shows them believes our syncer."""
    other = Authority(place / "other", now=wall_time_s())
    other.found(days=10)
    other.make(learner("a"), days=5)
    papers = papers_of(place / "other", learner("a"))
    assert papers.tls is not None
    papers.tls.load_verify_locations(ca)
    return papers


def expired(place: Path, certs: Path) -> Papers:
    """Papers of a learner a that our authority made long ago."""
    for name in ("ca.pem", "ca.key"):
        (place / name).write_bytes((certs / name).read_bytes())
    Authority(place, now=wall_time_s() - 20 * 86_400).make(learner("a"), days=10)
    return papers_of(place, learner("a"))


@pytest.mark.parametrize(
    ("whose", "why"), [("other", "self-signed|unable to get"), ("expired", "certificate has expired")]
)
def test_certificates_of_another_authority_or_time_open_nothing(
    at_the_site: Play, house: Any, tmp_path: Path, whose: str, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "old").mkdir()
    papers = (
        of_another_authority(tmp_path, house.certs / "ca.pem")
        if whose == "other"
        else expired(tmp_path / "old", house.certs)
    )

    async def test(site: Any) -> None:
        good = await site.peer("a").join()
        async with HttpSyncer(SyncerAddress.parse(site.url), token=None, tls=papers.tls, stall_s=5.0) as client:
            said = "has expired; renew it" if whose == "expired" else "does it take .*learner-a.pem"
            with pytest.raises(GruppettoError, match=said):
                async with client.control():
                    pass
        for _ in range(11):
            bad = site.with_papers(papers, "a")
            with pytest.raises((aiohttp.ClientError, OSError, ssl.SSLError)):
                await bad.get("/healthz")
        await unharmed(site, good)

    with caplog.at_level(logging.WARNING):
        at_the_site(test)
    said = [r.message for r in caplog.records if r.message.startswith("a certificate was refused")]
    assert len(said) == 2 and re.search(why, said[0]) and "10 times" in said[1]


def test_who_is_revoked_is_out_within_seconds_and_who_is_not_stays(
    at_the_site: Play, house: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gruppetto.runtime.security.watch.LOOK_EVERY_S", 0.05)

    async def test(site: Any) -> None:
        good, gone = await site.peer("a").join(), site.peer("b")
        idle = site.peer("b")
        assert await idle.get("/v1/status") == 200  # its connection stays open, and nothing goes on there
        await gone.dial()
        await gone.next()
        token = house.authority.add_token(learner("b")).read_text().strip()
        by_token = site.with_papers(Papers(token=token, tls=house.papers(learner("a")).tls), "b")
        while await by_token.get("/v1/status") != 200:  # the syncer looks at its lists now and then
            await asyncio.sleep(0.01)
        began = asyncio.Event()
        slow = asyncio.create_task(drip_for_ever(site.peer("b"), began))
        await began.wait()
        assert house.authority.revoke(learner("b")) == 2
        async with asyncio.timeout(60):
            await gone.until_closed()
            await slow
        for who in (idle, site.with_papers(gone_papers, "b"), by_token):
            assert await who.get("/v1/status") == 401
        with pytest.raises(aiohttp.WSServerHandshakeError, match="401"):
            await idle.dial()
        await good.ride()
        house.make(learner("b"))
        assert await site.peer("b").get("/v1/status") == 200, "with new papers it may come back"
        assert dict((await site.status())["security"]["days_left"]).keys() >= {"this syncer", "the authority"}

    gone_papers = house.papers(learner("b"))
    at_the_site(test)


async def drip_for_ever(peer: Any, began: asyncio.Event) -> None:
    """A heartbeat whose bytes come one by one."""

    async def drops() -> Any:
        while True:
            yield b"x"
            await asyncio.sleep(0.01)
            began.set()

    with suppress(aiohttp.ClientError, OSError):
        async with peer.http.post(
            f"{peer.url}/v1/heartbeat", data=drops(), headers={"Content-Length": "4000"}
        ) as reply:
            assert reply.status == 401


def test_a_replayed_contribution_counts_once_and_a_replayed_hello_takes_nobodys_place(at_the_site: Play) -> None:
    async def test(site: Any) -> None:
        good = await site.peer("a").join()
        await good.ride(2)
        recorded = good.answer(2)
        before = await site.status()
        for _ in range(20):  # by itself, word for word
            code, said = await good.contribute(recorded)
            assert code == 200 and said.endswith("dropped")
        for who in (site.peer("a", learner("b")), site.stranger()):  # by others
            assert (await who.contribute(recorded))[0] in (401, 403)
        now = await site.status()
        assert now["fragment_tokens"]["merged"] == before["fragment_tokens"]["merged"] == 20
        assert now["round"] == 2
        await unharmed(site, good)
        # The same hello again is the same process on another connection; from anybody else it is none.
        again = site.peer("a", learner("b"))
        await again.dial()
        assert (await again.until_closed()).data == CloseCode.PROTOCOL
        await unharmed(site, good)

    at_the_site(test)


def test_a_viewers_token_opens_the_page_by_a_cookie_that_ends_with_it(
    at_the_site: Play, house: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gruppetto.runtime.security.watch.LOOK_EVERY_S", 0.05)
    viewer = Identity(role=Role.VIEWER, name="eve")
    token = house.authority.add_token(viewer).read_text().strip()

    async def test(site: Any) -> None:
        bare = site.stranger()
        assert await bare.get("/dashboard/data") == 401
        assert await bare.get("/metrics", Authorization=f"Bearer {token}") == 200
        async with bare.http.post(f"{site.url}/dashboard/enter", data={"token": "gt-wrong"}) as reply:
            assert reply.status == 401
        async with bare.http.post(f"{site.url}/dashboard/enter", data={"token": token}, allow_redirects=False) as reply:
            cookie = reply.headers["Set-Cookie"]
            assert reply.status == 303 and "Secure" in cookie and "HttpOnly" in cookie and token not in cookie
        shown = {"Cookie": cookie.partition(";")[0]}
        assert await bare.get("/dashboard/data", **shown) == 200
        assert await bare.get("/v1/status", **shown) == 401, "it is good for looking at the page alone"
        house.authority.revoke_tokens(viewer)
        while await bare.get("/dashboard/data", **shown) != 401:
            await asyncio.sleep(0.01)
        forged = shown["Cookie"].rpartition(".")[0] + "." + "0" * 64
        assert await bare.get("/dashboard/data", Cookie=forged) == 401

    at_the_site(test, annex=annex)


def test_what_is_taken_is_the_learners_own_word(at_the_site: Play) -> None:
    """With good papers everything goes as without any."""

    async def test(site: Any) -> None:
        good = await site.peer("a").join()
        await good.ride(3)
        async with good.http.get(f"{site.url}/v1/fragment/0", params={"version": "3"}) as reply:
            assert np.array_equal(np.frombuffer(await reply.read(), np.float32), np.arange(7, dtype=np.float32) - 3)

    at_the_site(test)
