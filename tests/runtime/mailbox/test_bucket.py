"""A real server of the store's protocol: conditions hold, and troubles are told apart."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Any

import pytest
from aiohttp import web

from gruppetto.errors import AddressError, ConnectionLost, GruppettoError, ProtocolError, SettingError
from gruppetto.runtime.mailbox import bucket as bucket_module
from gruppetto.runtime.mailbox.address import MailboxAddress
from gruppetto.runtime.mailbox.bucket import Bucket, Conflict, open_bucket


def opened(endpoint: str, place: str = "lab/bucket-test", limit_s: float = 10.0) -> Bucket:
    return open_bucket(MailboxAddress.parse(f"s3://{place}?endpoint={endpoint}&region=us-east-1"), limit_s=limit_s)


def run(test: Awaitable[None]) -> None:
    asyncio.run(asyncio.wait_for(test, 30))  # type: ignore[arg-type]


def test_what_a_mailbox_asks_of_a_store(object_store: str) -> None:
    async def test() -> None:
        store = opened(object_store)
        first = await store.put_new("lease", b"one")
        assert await store.get("lease", 3) == (b"one", first)
        with pytest.raises(Conflict):
            await store.put_new("lease", b"two")
        assert await store.put_new("lease", b"one") == first, "it is there: the answer to an earlier try was lost"
        second = await store.put_if("lease", b"three", first)
        with pytest.raises(Conflict):
            await store.put_if("lease", b"four", first)
        assert await store.get("lease", 5) == (b"three", second)
        with pytest.raises(ProtocolError, match="5 bytes; at most 4"):
            await store.get("lease", 4)
        assert await store.get("nothing", 4) is None
        await store.put_over("00000001/box/x", b"12345")
        async with aclosing(store.stream("00000001/box/x", 5, 5)) as chunks:
            assert b"".join([bytes(chunk) async for chunk in chunks]) == b"12345"
        for length, limit, wrong in ((4, 4, ProtocolError), (None, 4, ProtocolError)):
            with pytest.raises(wrong, match="has 5 bytes"):
                await anext(store.stream("00000001/box/x", length, limit))
        with pytest.raises(ConnectionLost, match="not there"):
            await anext(store.stream("00000001/box/y", 5, 5))
        assert [(one.name, one.num_bytes) for one in await store.listing("00000001/box")] == [("00000001/box/x", 5)]
        assert await store.folders() == ["00000001"]
        await store.delete(["00000001/box/x", "00000001/box/y", "lease"])
        assert await store.listing("00000001") == [] and await store.folders() == []

    run(test())


def test_who_has_no_credentials_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client looks for those of the machine last, at an address that nobody knows."""
    said = "Error performing PUT http://169.254.169.254/latest/api/token - "
    store = opened("http://127.0.0.1:1")
    for trouble, error in (("status code: 403 Forbidden", AddressError), ("error sending request", ConnectionLost)):

        async def fails(*_: object, trouble: str = trouble, **__: object) -> None:
            raise OSError(said + trouble)

        monkeypatch.setattr(store._library, "get_async", fails)
        with pytest.raises(error, match="no credentials were found; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, "):
            run(store.get("lease", 1))


@pytest.mark.parametrize(
    "strays",
    [
        ["1/box/../y"],
        ["1/box//y", "1/box/./y"],
        ["1/box/bb//y", "1/box/bb/../z/y", "1/box/cc/up/../y"],
        ["1/box/aa/up/1//y"],
        ["1/box/cc/../y", "/y", "../y"],
    ],
)
def test_names_that_cannot_be_said_hide_nothing(
    object_store: str, strays: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Anybody may make them with another client; ours refuses every answer in which one of them occurs."""
    import boto3

    place = f"strays-{len(strays)}-{len(strays[0])}"
    ours = ["1/box/aa/body/1", "1/box/aa/up/1", "1/box/bb/down/3", "1/box/bb/up/2", "1/box/cc/up/3"]

    async def test() -> None:
        store = opened(object_store, f"lab/{place}")
        for name in ours:
            await store.put_over(name, b"1")
        foreign = boto3.client(
            "s3", endpoint_url=object_store, region_name="us-east-1", aws_access_key_id="a", aws_secret_access_key="b"
        )
        for name in strays:
            foreign.put_object(Bucket="lab", Key=f"{place}/{name}", Body=b"")
        assert sorted(one.name for one in await store.listing("1/box")) == ours
        assert await store.folders() == ([] if "/y" in strays else ["1"])
        assert caplog.text.count("is nothing of a mailbox; delete it") == 1

    run(test())


def test_a_bucket_that_is_not_there(object_store: str) -> None:
    async def test() -> None:
        store = opened(object_store, "labour/x")
        asks: list[Callable[[], Awaitable[Any]]] = [
            lambda: store.get("a", 1),
            lambda: store.put_new("a", b"1"),
            lambda: store.listing("a"),
            lambda: store.folders(),
        ]
        for ask in asks:
            with pytest.raises(AddressError, match="s3://labour/x: there is no such bucket; make it, or check name"):
                await ask()

    run(test())


@pytest.mark.parametrize(
    ("status", "error", "says"),
    [
        (403, AddressError, "the store refuses these credentials .*; let them get, put, list and delete"),
        (401, AddressError, "the store refuses these credentials"),
        (503, ConnectionLost, "cannot be used at this moment"),
        (500, ConnectionLost, "cannot be used at this moment"),
        (0, ConnectionLost, "did not answer for too long|cannot be used at this moment"),
    ],
)
def test_a_store_that_does_not_answer_as_it_should(
    object_store: str, status: int, error: type[GruppettoError], says: str
) -> None:
    async def answer(request: web.Request) -> web.Response:
        if not status:
            await asyncio.Event().wait()
        return web.Response(status=status)

    async def test() -> None:
        app = web.Application()
        app.router.add_route("*", "/{rest:.*}", answer)
        runner = web.AppRunner(app, shutdown_timeout=0.01)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        store = opened(f"http://127.0.0.1:{runner.addresses[0][1]}", limit_s=10.0 if status else 0.05)
        try:
            asks: list[Callable[[], Awaitable[Any]]] = [
                lambda: store.get("a", 1),
                lambda: store.put_if("a", b"1", "tag"),
                lambda: store.listing("a"),
                lambda: anext(store.stream("a", 1, 1)),
            ]
            for ask in asks:
                with pytest.raises(error, match=says) as told:
                    await ask()
                assert "\n" not in str(told.value) and "testing" not in str(told.value)
                with pytest.raises(error) as again:
                    await ask()
                assert str(again.value) == str(told.value), "what is the same is news once"
        finally:
            await runner.cleanup()

    run(test())


def test_the_library_that_it_takes_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(bucket_module.importlib, "import_module", missing)
    with pytest.raises(SettingError, match=r"pip install 'gruppetto\[s3\]'"):
        opened("http://127.0.0.1:1")


@pytest.mark.parametrize(
    "text",
    ["s3://lab", "s3://lab/", "s3:///x", "s3://lab/a/../b", "s3://lab/a//b", "s3://LAB/x", "s3://lab/x#y", "s3://l/x",
     "s3://lab/x y", "s3://lab/x?poll=0", "s3://lab/x?poll=nan", "s3://lab/x?pull=1", "s3://lab/x?endpoint=ftp://a",
     "s3://lab/x?endpoint=https://a/b", "s3://lab/x?region=a/b", "s3://lab/x?poll", "http://lab/x"],
)  # fmt: skip
def test_what_is_no_mailbox(text: str) -> None:
    with pytest.raises(AddressError, match=r"^mailbox: "):
        MailboxAddress.parse(text)


@pytest.mark.parametrize(
    "text",
    ["s3://AKIA77:SeCrEt@lab/x", "s3://lab/x?secret_access_key=SeCrEt", "s3://lab/x?access_key_id=AKIA77",
     "s3://lab/x?endpoint=https://AKIA77:SeCrEt@a"],
)  # fmt: skip
def test_credentials_are_never_in_an_address(text: str) -> None:
    with pytest.raises(AddressError) as told:
        MailboxAddress.parse(text)
    assert "SeCrEt" not in str(told.value) and "AKIA77" not in str(told.value)
