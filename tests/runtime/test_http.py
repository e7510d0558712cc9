"""The real server on loopback: what goes right, and everything that a peer can do wrong."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from contextlib import asynccontextmanager, suppress

import aiohttp
import numpy as np
import pytest
import safetensors.numpy
from tests.steady import LoopClock, run

from gruppetto.chaos import handmade
from gruppetto.errors import AddressError, StateError
from gruppetto.numerics import Layout, TensorSpec
from gruppetto.protocol import ProtocolSetting
from gruppetto.protocol.messages import (
    Announcement,
    Answer,
    Applied,
    Ask,
    Begin,
    Goodbye,
    Heartbeat,
    Hello,
    Refusal,
    Rejection,
)
from gruppetto.runtime.http_server import HttpServer
from gruppetto.runtime.saved_model import load_model
from gruppetto.runtime.serving import serve
from gruppetto.runtime.setting import SyncerSetting
from gruppetto.runtime.wire import (
    MAX_HELLO_BYTES,
    WIRE_VERSION,
    CloseCode,
    HelloFrame,
    WelcomeFrame,
    checksum,
    encode_answer,
    encode_frame,
)

LAYOUT = Layout(
    tensors=(
        TensorSpec(name="a", shape=(2, 3), dtype="float32"),
        TensorSpec(name="b", shape=(), dtype="float32"),
    )
)
SEED = np.arange(7, dtype=np.float32)


class Peer(handmade.Peer):
    """A hand-made learner that speaks the wire, rightly or wrongly."""

    layout = LAYOUT

    async def dial(self, **change):
        await super().dial(**change)
        self.first = await self.next()
        return self

    async def seed(self, values=SEED, **change):
        body = values.tobytes()
        given = {"Gruppetto_Learner": self.name, "Gruppetto_Incarnation": "1"}
        return await self.put("/v1/seed/0", body, **{**given, "Gruppetto_Checksum": f"{checksum(body):08x}", **change})

    async def join(self):
        """Seed the run, apply the seed, begin."""
        await self.dial()
        assert (await self.seed())[0] == 200
        await self.progress(0, (Applied(fragment=0, version=0, at_tokens=0),))
        await self.until(Begin)
        return self

    async def contribute(self, values=None, *, path=None, body=None, codec="fp32", crc=None, **change):
        given = {
            "learner": self.name, "incarnation": 1, "epoch": 1, "round": 1, "fragment": 0, "base_version": 0,
            "steps": 1, "tokens": 10, "total_tokens": 10, "cursor": 1, "layout_hash": LAYOUT.layout_hash,
        }  # fmt: skip
        data = (np.ones(7, np.float32) if values is None else values).tobytes() if body is None else body
        answer = Answer(**{**given, **change})
        return await self.put(
            path or f"/v1/contribution/{answer.round}/{answer.fragment}",
            data,
            Gruppetto_Answer=encode_answer(answer),
            Gruppetto_Codec=codec,
            Gruppetto_Checksum=crc or f"{checksum(data):08x}",
        )


@asynccontextmanager
async def syncer(path, *, protocol=None, **setting):
    stop, ready = asyncio.Event(), asyncio.get_running_loop().create_future()
    chosen = {"listen": "127.0.0.1:0", "uplink": "fp32", "merge": ((".*", "mean"),), "outer": "finetune", **setting}
    rules = {"num_fragments": 1, "sync_period": 1, "overlap_steps": 0, **(protocol or {})}
    task = asyncio.create_task(
        serve(
            ProtocolSetting(**rules),
            SyncerSetting(state=path / "syncer", **chosen),
            clock=LoopClock(),
            on_ready=ready.set_result,
            stop=stop,
        )
    )
    await asyncio.wait({task, ready}, return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        task.result()
    token = setting.get("token")
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {token}"} if token else {}) as http:
        try:
            yield Peer(http, ready.result().url, "a")
        finally:
            stop.set()
            await task


async def status(peer):
    async with peer.http.get(f"{peer.url}/v1/status") as reply:
        assert reply.status == 200
        return json.loads(await reply.read())


def test_a_round_over_the_network(tmp_path):
    async def test():
        async with syncer(tmp_path) as peer:
            async with peer.http.get(f"{peer.url}/v1/fragment/0") as reply:
                assert reply.status == 404 and "the model looks like" in await reply.text()
            await peer.join()
            assert isinstance(peer.first, WelcomeFrame) and peer.first.welcome.seed
            await peer.progress(1)
            ask = await peer.until(Ask)
            assert ask.fragments == (0,)
            code, said = await peer.contribute(2 * np.ones(7, np.float32))
            assert code == 200 and said.endswith("taken")
            news = await peer.until(Announcement)
            assert dict(news.versions) == {0: 1}
            async with peer.http.get(f"{peer.url}/v1/fragment/0", params={"version": "0"}) as reply:
                body = await reply.read()
                assert reply.headers["Gruppetto-Version"] == "1"
                assert reply.headers["Gruppetto-Layout"] == LAYOUT.layout_hash
                assert reply.headers["Gruppetto-Codec"] == "fp32"
                assert reply.headers["Gruppetto-Checksum"] == f"{checksum(body):08x}"
            assert np.array_equal(np.frombuffer(body, np.float32), SEED - 2)
            async with peer.http.get(f"{peer.url}/v1/model") as reply:
                assert reply.headers["Gruppetto-Round"] == "1"
                model = safetensors.numpy.load(await reply.read())
            assert np.array_equal(model["a"], (SEED[:6] - 2).reshape(2, 3)) and model["b"] == SEED[6] - 2
            for params, code in (({"version": "2"}, 404), ({"version": "-1"}, 400), ({"version": "x"}, 400)):
                async with peer.http.get(f"{peer.url}/v1/fragment/0", params=params) as reply:
                    assert reply.status == code
            now = await status(peer)
            assert now["round"] == 1 and now["learners"]["a"]["last_merged_round"] == 1
            assert now["bytes"]["up"] > 56 and now["bytes"]["down"] > 56

    run(test())


def test_what_is_wrong_with_a_contribution_is_said_and_changes_nothing(tmp_path):
    async def test():
        async with syncer(tmp_path) as peer:
            await peer.join()
            await peer.progress(1)
            await peer.until(Ask)
            good = np.ones(7, np.float32).tobytes()
            for code, text, change in (
                (400, "24 are announced", {"body": good[:-4]}),
                (400, "32 are announced", {"body": good + b"1234"}),
                (400, "checksum", {"crc": "00000000"}),
                (400, "eight hexadecimal", {"crc": "xyz"}),
                (400, "come as fp32", {"codec": "bf16"}),
                (400, "no fragment 5", {"fragment": 5}),
                (400, "is about round 1", {"path": "/v1/contribution/2/0"}),
                (404, "Not Found", {"path": "/v1/contribution/one/0"}),
                (200, "dropped", {"incarnation": 9}),
                (200, "dropped", {"epoch": 2}),
                (200, "dropped", {"values": np.full(7, np.nan, np.float32)}),
            ):
                found, said = await peer.contribute(**change)
                assert found == code and text in said, (change, found, said)
            assert (await peer.put("/v1/contribution/1/0", good, Gruppetto_Answer="!!"))[0] == 400
            now = await status(peer)
            assert now["rejected"] == {"malformed": 8, "not-finite": 1, "stale-epoch": 1, "stale-incarnation": 1}
            assert now["round"] == 0
            assert (await peer.contribute())[1].endswith("taken")
            assert (await peer.contribute())[1].endswith("dropped")

    run(test())


async def raw(url, request, *, hang_up):
    """Send bytes, perhaps close the sending side, read whatever comes."""
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(request)
    if hang_up:
        writer.write_eof()
    answer = await reader.read()
    writer.close()
    return answer


def test_a_body_that_stops_short_frees_its_buffer(tmp_path):
    async def test():
        async with syncer(tmp_path, max_bodies=1) as peer:
            await peer.join()
            await peer.progress(1)
            await peer.until(Ask)
            answer = Answer(
                learner="a", incarnation=1, epoch=1, round=1, fragment=0, base_version=0, steps=1, tokens=10,
                total_tokens=10, cursor=1, layout_hash=LAYOUT.layout_hash,
            )  # fmt: skip
            head = (
                "PUT /v1/contribution/1/0 HTTP/1.1\r\nHost: x\r\nConnection: close\r\nGruppetto-Codec: fp32\r\n"
                f"Gruppetto-Checksum: 00000000\r\nGruppetto-Answer: {encode_answer(answer)}\r\n"
            )
            await raw(peer.url, f"{head}Content-Length: 28\r\n\r\n".encode() + b"x" * 10, hang_up=True)
            chunked = await raw(peer.url, f"{head}Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n".encode(), hang_up=False)
            assert b" 411 " in chunked
            assert (await peer.contribute())[1].endswith("taken"), "the only buffer is free again"

    run(test())


def test_a_stalled_body_is_dropped(tmp_path):
    async def test():
        async with syncer(tmp_path, protocol={"liveness_s": 0.05}) as peer:
            await peer.dial()
            host, port = peer.url.removeprefix("http://").split(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(
                b"PUT /v1/seed/0 HTTP/1.1\r\nHost: x\r\nGruppetto-Learner: a\r\nGruppetto-Incarnation: 1\r\n"
                b"Gruppetto-Checksum: 00000000\r\nContent-Length: 28\r\n\r\nxyz"
            )
            assert b"only 3 bytes came in 0.05 s" in await reader.read(1000)
            writer.close()
            await peer.socket.close()

    run(test())


async def begin_upload(peer, body, **change):
    """The head of a contribution to round 1 on a raw connection, and the beginning of its body."""
    given = {
        "learner": "a", "incarnation": 1, "epoch": 1, "round": 1, "fragment": 0, "base_version": 0,
        "steps": 1, "tokens": 10, "total_tokens": 10, "cursor": 1, "layout_hash": LAYOUT.layout_hash,
    }  # fmt: skip
    answer = Answer(**{**given, **change})
    head = (
        f"PUT /v1/contribution/{answer.round}/0 HTTP/1.1\r\nHost: x\r\nGruppetto-Codec: fp32\r\n"
        f"Gruppetto-Checksum: 00000000\r\nGruppetto-Answer: {encode_answer(answer)}\r\nContent-Length: 28\r\n\r\n"
    )
    return await open_and_send(peer, head.encode() + body)


async def open_and_send(peer, data):
    host, port = peer.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(data)
    await writer.drain()
    return reader, writer


async def two_at_round_one(peer):
    """Learners a and b in one run, both asked for round 1."""
    a = await peer.join()
    b = await Peer(peer.http, peer.url, "b").dial()
    await b.progress(0, (Applied(fragment=0, version=0, at_tokens=0),))
    for learner in (a, b):
        await learner.progress(1)
    for learner in (a, b):
        await learner.until(Ask)
    return a, b


def test_an_upload_that_nobody_wants_is_answered_before_its_body_comes(tmp_path):
    async def test():
        async with syncer(tmp_path, max_bodies=1) as peer:
            await peer.join()
            await peer.progress(1)
            await peer.until(Ask)
            for change in ({"learner": "nobody"}, {"round": 7}, {"epoch": 3}, {"incarnation": 2}):
                reader, writer = await begin_upload(peer, b"x", **change)
                assert b"200 OK" in await reader.readuntil(b"dropped")
                writer.close()
            assert (await peer.contribute())[1].endswith("taken")

    run(test())


def test_an_upload_is_given_up_when_its_round_is_over(tmp_path):
    async def test():
        async with syncer(tmp_path, protocol={"num_learners": 2, "min_quorum": 1}) as peer:
            a, b = await two_at_round_one(peer)
            reader, slow = await begin_upload(peer, b"x")
            assert (await b.contribute(cursor=1))[1].endswith("taken")
            # The fleet moves on without a.
            await b.progress(2)
            assert b"200 OK" in await reader.readuntil(b"dropped")
            assert (await a.until(Rejection)).reason == "late"
            slow.close()
            await asyncio.gather(a.socket.close(), b.socket.close())

    run(test())


def test_one_learner_cannot_take_the_buffers_of_all(tmp_path):
    async def test():
        async with syncer(tmp_path, max_bodies=3, protocol={"num_learners": 2, "min_quorum": 1}) as peer:
            a, b = await two_at_round_one(peer)
            many = [await begin_upload(peer, b"x") for _ in range(5)]
            assert (await b.contribute())[1].endswith("taken")
            for _, writer in many:
                writer.close()
            await asyncio.gather(a.socket.close(), b.socket.close())

    run(test())


def test_an_upload_that_drips_is_dropped_though_bytes_come(tmp_path):
    async def test():
        async with syncer(tmp_path, protocol={"liveness_s": 0.1}) as peer:
            await peer.dial()
            reader, writer = await open_and_send(
                peer,
                b"PUT /v1/seed/0 HTTP/1.1\r\nHost: x\r\nGruppetto-Learner: a\r\nGruppetto-Incarnation: 1\r\n"
                b"Gruppetto-Checksum: 00000000\r\nContent-Length: 28\r\n\r\n",
            )
            reply = asyncio.create_task(reader.read(1000))
            dripped = 0
            while not reply.done() and dripped < 27:
                writer.write(b"x")
                dripped += 1
                await asyncio.wait({reply}, timeout=0.02)
            assert b"bytes came in 0.1 s" in await reply and dripped < 27
            writer.close()
            await peer.socket.close()

    run(test())


def test_requests_that_are_not_http_do_not_fill_the_log(tmp_path, caplog):
    async def test():
        async with syncer(tmp_path) as peer:
            for _ in range(30):
                reply = await raw(peer.url, b"GET /healthz HTTP/1.1\r\nContent-Length: -5\r\n\r\n", hang_up=False)
                assert b" 400 " in reply

    run(test())
    said = [record for record in caplog.records if "cannot be served" in record.getMessage()]
    assert len(said) == 2
    assert "Traceback" not in caplog.text and len(caplog.text) < 2000


@pytest.mark.parametrize("name", ["endpoint.json", "endpoint.json.tmp"])
def test_an_endpoint_that_cannot_be_written_is_said(tmp_path, name):
    async def test():
        (tmp_path / "syncer" / name).mkdir(parents=True)
        with pytest.raises(StateError, match=r"endpoint.json: cannot be written"):
            async with syncer(tmp_path):
                pass

    run(test())


def test_a_heartbeat_keeps_a_learner_alive_and_nonsense_does_not(tmp_path):
    async def test():
        async with syncer(tmp_path) as peer:
            await peer.join()
            for data, code in (
                (encode_frame(Heartbeat(learner="a", incarnation=1)), 204),
                (encode_frame(Heartbeat(learner="nobody", incarnation=1)), 204),
                (b"nonsense", 400),
                (b"x" * 5000, 400),
                (b"", 400),
            ):
                async with peer.http.post(f"{peer.url}/v1/heartbeat", data=data) as reply:
                    assert reply.status == code

    run(test())


def test_nonsense_on_the_control_connection_closes_it_with_the_reason(tmp_path):
    async def first(peer, send):
        socket = await peer.http.ws_connect(f"{peer.url}/v1/control")
        await send(socket)
        message = await socket.receive()
        return socket.close_code, message.extra

    async def test():
        async with syncer(tmp_path) as peer:
            hello = Hello(learner="a", session="s", layout_hash="wrong")
            for send, text in (
                (lambda s: s.send_str("hello"), "begins with a binary HelloFrame"),
                (lambda s: s.send_bytes(b"\x00"), "not a frame"),
                (lambda s: s.send_bytes(encode_frame(Heartbeat(learner="a", incarnation=1))), "may not come here"),
                (lambda s: s.send_bytes(encode_frame(HelloFrame.of(hello, LAYOUT))), "the Hello says wrong"),
                (
                    lambda s: s.send_bytes(encode_frame(HelloFrame(hello=hello, layout=(), wire=9))),
                    f"the learner speaks wire version 9, this syncer {WIRE_VERSION}; upgrade Gruppetto at the syncer",
                ),
            ):
                code, said = await first(peer, send)
                assert code == CloseCode.PROTOCOL and text in said
            with suppress(ConnectionError):  # it may be closed while we still write
                code, _ = await first(peer, lambda s: s.send_bytes(bytes(MAX_HELLO_BYTES + 1)))
                assert code == aiohttp.WSCloseCode.MESSAGE_TOO_BIG
            assert (await status(peer))["learners"] == {}
            await peer.join()
            await peer.socket.send_bytes(b"nonsense")
            message = await peer.next()
            assert message.data == CloseCode.PROTOCOL
            while (await status(peer))["learners"]["a"]["state"] != "away":
                pass

    run(test())


def test_only_who_was_asked_may_seed_and_only_finite_weights(tmp_path):
    async def test():
        async with syncer(tmp_path) as peer:
            await peer.dial()
            for code, text, change in (
                (409, "nobody asked b", {"Gruppetto_Learner": "b"}),
                (409, "nobody asked", {"Gruppetto_Incarnation": "2"}),
                (400, "not a number", {"Gruppetto_Incarnation": "one"}),
            ):
                found, said = await peer.seed(**change)
                assert found == code and text in said
            found, said = await peer.seed(np.full(7, np.inf, np.float32))
            assert found == 400 and "hold NaN or infinity" in said
            assert (await peer.seed())[0] == 200
            found, said = await peer.seed()
            assert found == 409 and "nobody asked" in said

    run(test())


def test_a_wrong_run_a_wrong_model_and_the_reason(tmp_path):
    async def test():
        async with syncer(tmp_path) as peer:
            await peer.join()
            stray = await Peer(peer.http, peer.url, "b").dial(run_id="another")
            assert isinstance(stray.first, Refusal) and stray.first.reason == "wrong-run"
            message = await stray.next()
            assert (message.data, message.extra) == (CloseCode.REFUSED, "wrong-run")

    run(test())


def test_a_rejection_reaches_the_learner(tmp_path):
    async def test():
        async with syncer(tmp_path) as peer:
            await peer.join()
            await peer.contribute()
            assert (await peer.until(Rejection)).reason in ("late", "not-asked")

    run(test())


def test_the_token_is_needed_and_never_shown(tmp_path, caplog):
    async def test():
        async with syncer(tmp_path, token="secret-1234") as peer:
            async with aiohttp.ClientSession() as stranger:
                for method, path in (
                    ("get", "/v1/status"),
                    ("get", "/v1/model"),
                    ("get", "/v1/control"),
                    ("post", "/v1/heartbeat"),
                    ("put", "/v1/seed/0"),
                ):
                    async with stranger.request(method, f"{peer.url}{path}") as reply:
                        assert reply.status == 401 and "token is needed" in await reply.text()
                wrong = {"Authorization": "Bearer secret-1235"}
                async with stranger.get(f"{peer.url}/v1/status", headers=wrong) as reply:
                    assert reply.status == 401
                async with stranger.get(f"{peer.url}/healthz") as reply:
                    assert await reply.text() == "ok\n"
            await peer.join()
            assert (await status(peer))["live"] == 1

    run(test())
    assert "secret" not in caplog.text
    assert "secret" not in repr(SyncerSetting(state=tmp_path, token="secret-1234"))


def test_a_restart_takes_the_run_up_again(tmp_path):
    async def test():
        async with syncer(tmp_path) as peer:
            await peer.join()
            await peer.progress(1)
            await peer.until(Ask)
            assert (await peer.contribute())[1].endswith("taken")
            while (await status(peer))["round"] != 1:
                pass
            endpoint = json.loads((tmp_path / "syncer" / "endpoint.json").read_text())
            assert endpoint["url"] == peer.url
            last = peer
        assert (await last.until_closed()).data == CloseCode.GOING_AWAY
        assert not (tmp_path / "syncer" / "endpoint.json").exists()
        async with syncer(tmp_path) as peer:
            now = await status(peer)
            assert (now["round"], now["epoch"]) == (1, 2)
            await peer.dial(incarnation=1, run_id=now["run_id"], versions=(1,))
            welcome = peer.first.welcome
            assert (welcome.epoch, welcome.round, welcome.incarnation, welcome.seed) == (2, 1, 1, False)
            assert welcome.versions == (1,) and welcome.cursor == 1

    run(test())


def test_a_finished_run_ends_the_process_by_itself(tmp_path):
    async def test():
        rounds = {"num_fragments": 1, "sync_period": 1, "overlap_steps": 0, "rounds": 1}
        setting = SyncerSetting(
            state=tmp_path / "syncer", listen="127.0.0.1:0", uplink="fp32", outer="finetune", exit_when_finished=True
        )
        ready = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(serve(ProtocolSetting(**rounds), setting, on_ready=ready.set_result))
        async with aiohttp.ClientSession() as http:
            peer = await Peer(http, (await ready).url, "a").join()
            await peer.progress(1)
            await peer.until(Ask)
            await peer.contribute()
            assert (await peer.until(Announcement)).finished
            await peer.socket.send_bytes(encode_frame(Goodbye(learner="a", incarnation=1)))
            assert (await peer.until_closed()).data == CloseCode.GOING_AWAY
        await task
        # Restarted by mistake it has nothing left to do.
        await serve(ProtocolSetting(**rounds), setting)
        round, model = load_model(tmp_path / "syncer")
        assert round == 1 and np.array_equal(model["a"], (SEED[:6] - 1).reshape(2, 3)) and model["b"] == SEED[6] - 1

    run(test())


def test_a_port_in_use_is_said_with_the_fix(tmp_path):
    async def test():
        async with syncer(tmp_path / "one") as peer:
            taken = peer.url.removeprefix("http://")
            with pytest.raises(AddressError, match="use a free port"):
                async with syncer(tmp_path / "two", listen=taken):
                    pass

    run(test())


def test_off_loopback_nobody_listens_by_accident(tmp_path):
    tls, identity = {"tls_cert": tmp_path / "c", "tls_key": tmp_path / "k"}, "an identity for each learner"
    far = {"state": tmp_path, "listen": "0.0.0.0:0"}
    for extra, missing in (
        ({}, f"TLS and {identity}"),
        ({"token": "t"}, f"TLS and {identity}"),
        ({"token": "t", **tls}, identity),
        (tls, identity),
        ({"token": "t", "allow_shared_token": True}, "TLS"),
    ):
        with pytest.raises(AddressError, match=f"and {missing} is missing"):
            SyncerSetting(**far, **extra).check_exposure()
    for fine in (
        {"allow_plaintext": True},
        {"token": "t", "allow_shared_token": True, **tls},
        {"identities": tmp_path},
    ):
        SyncerSetting(**far, **fine).check_exposure()
    SyncerSetting(state=tmp_path, listen="localhost:0").check_exposure()


def test_too_many_uploads_are_told_to_come_again(tmp_path, monkeypatch):
    monkeypatch.setattr("gruppetto.runtime.desk.MAX_WAITING_UPLOADS", 0)

    async def test():
        async with syncer(tmp_path) as peer:
            await peer.dial()
            assert (await peer.seed())[0] == 503

    run(test())


def test_every_endpoint_of_the_wire_is_served():
    from gruppetto.runtime import wire

    class Nothing:
        pass

    async def routes():
        server = HttpServer(Nothing(), token=None, stall_s=1.0)
        return {(r.method, r.resource.canonical) for r in server.app.router.routes() if r.method != "HEAD"}

    found = asyncio.run(routes())
    for line in (wire.__doc__ or "").splitlines():
        if line.startswith("``"):
            method, path = line.strip("`").split("``")[0].split()
            assert (method, path.split("?")[0]) in found
    assert len(found) == 14


def test_a_control_connection_that_swallows_everything_is_found_out_whatever_heartbeats_say(tmp_path):
    async def test():
        async with syncer(tmp_path, protocol={"liveness_s": 0.4}) as peer:
            peer.socket = await peer.http.ws_connect(f"{peer.url}/v1/control", autoping=False)
            hello = Hello(learner="a", session="a-1", layout_hash=LAYOUT.layout_hash)
            await peer.socket.send_bytes(encode_frame(HelloFrame.of(hello, LAYOUT)))

            async def beat():
                while True:
                    beat = encode_frame(Heartbeat(learner="a", incarnation=1))
                    async with peer.http.post(f"{peer.url}/v1/heartbeat", data=beat) as reply:
                        assert reply.status == 204
                    await asyncio.sleep(0.05)

            beating = asyncio.create_task(beat())
            async with asyncio.timeout(20):
                while (await peer.socket.receive()).type not in (aiohttp.WSMsgType.CLOSED, aiohttp.WSMsgType.ERROR):
                    pass
            assert (await status(peer))["learners"]["a"]["state"] == "away"
            beating.cancel()

    run(test())


def test_a_peer_that_has_gone_with_pings_unanswered_is_no_fault(tmp_path, caplog):
    """As after SIGCONT: its last words, and its reset, are all there when this process goes on."""

    async def test():
        async with syncer(tmp_path) as peer:
            host, port = peer.url.removeprefix("http://").split(":")
            hello = encode_frame(
                HelloFrame.of(Hello(learner="a", session="a-1", layout_hash=LAYOUT.layout_hash), LAYOUT)
            )
            assert 126 <= len(hello) < 1 << 16
            head = struct.pack(">BBHI", 0x82, 0x80 | 126, len(hello), 0)  # masked, with zeros
            gone = socket.create_connection((host, int(port)))
            gone.sendall(
                f"GET /v1/control HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n\r\n".encode()
            )
            gone.setblocking(False)
            loop = asyncio.get_running_loop()
            assert b" 101 " in await loop.sock_recv(gone, 4096)
            # In one go, and not a turn of the loop between them: bytes wait at the syncer, and nobody behind them.
            gone.sendall(head + hello + b"\x89\x80\0\0\0\0" * 50)
            gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            gone.close()
            while (await status(peer))["learners"].get("a", {}).get("state") != "away":
                pass

    run(test())
    assert "Traceback" not in caplog.text and "closing transport" not in caplog.text
