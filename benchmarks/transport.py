"""How fast bodies go up and down through the real client and the real server, beside raw sockets.

    python benchmarks/transport.py [--mebibytes 64] [--bodies 4] [--rounds 7] [--json]

Two processes over loopback. ``raw`` is what one blocking connection moves with ``sendall`` and ``recv_into``, nothing
looked at; ``checked`` the same with a CRC-32 at both ends, which is what a body that may be believed costs at the
least. Ours takes the checksum and looks at every element too. ``shared`` is ours where both ends read each other's
memory, beside the same sockets. All ways take turns, and only shares of one run count.
``cpu`` is the processor time of both ends for a gigabyte.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from aiohttp import web

from gruppetto.numerics.codec import CODECS
from gruppetto.numerics.downlink import DOWNLINKS
from gruppetto.numerics.fragments import Fragmentation
from gruppetto.numerics.layout import Layout, TensorSpec
from gruppetto.protocol.messages import Answer
from gruppetto.protocol.units import Epoch, Fragment, Incarnation, LearnerId, Round, Version
from gruppetto.runtime.address import SyncerAddress
from gruppetto.runtime.cut import cut
from gruppetto.runtime.http_client import HttpSyncer
from gruppetto.runtime.http_server import HttpServer
from gruppetto.runtime.intake import Intake, Upload
from gruppetto.runtime.leases import LeasePool
from gruppetto.runtime.parameters import Value
from gruppetto.runtime.service import Room
from gruppetto.runtime.shared_memory import SharedMemory
from gruppetto.runtime.wire import checksum, octets

BLOCK_BYTES = 1 << 18
LAYOUT_HASH = "bench"


class Shelf:
    """All that the server asks of a service about bodies: one fragment on offer, and room for as many as come."""

    def __init__(self, numel: int) -> None:
        layout = Layout(tensors=(TensorSpec(name="w", shape=(numel,), dtype="float32"),))
        self.parts: Fragmentation = cut(layout, 1, "balanced", ())
        self.memory = SharedMemory()
        theta = self.memory.allocate(numel)
        theta[:] = np.random.default_rng(0).standard_normal(numel)
        body = theta.view(np.uint8)
        self.value = Value(version=Version(1), theta=theta, outer_state=(), body=body, checksum=checksum(body))
        self.intake = Intake(CODECS["fp32"], numel, 8)
        self.seen = SimpleNamespace(malformed=0, traffic=SimpleNamespace(up=0, down=0))
        downlink = DOWNLINKS["fp32"]
        self._engine = SimpleNamespace(
            layout=SimpleNamespace(layout_hash=LAYOUT_HASH), parameters=SimpleNamespace(downlink=downlink)
        )

    def engine_for(self, fragment: Fragment) -> Any:
        return self._engine

    def borrow(self, fragment: Fragment) -> Value:
        return self.value

    def give_back(self, *values: Value) -> None:
        pass

    def drop_halves(self) -> None:
        pass

    def room_for(self, answer: Answer, codec: str, length: int, runs: Any = None) -> Room:
        return Room(self.intake, self.intake.has_room)

    def wants(self, answer: Answer) -> bool:
        return True

    def open_contribution(self, answer: Answer, codec: str, length: int, crc: int | None, runs: Any = None) -> Upload:
        return self.intake.open(self.parts.fragments[0], length, crc)

    def contribute(self, answer: Answer, upload: Upload) -> str:
        upload.finish().release()
        return "taken"


# ── the far end ──────────────────────────────────────────────────────────────────────────────────────────────────


def raw_serve(listener: socket.socket, tls: ssl.SSLContext | None, data: memoryview) -> None:
    """One connection after another: a letter says which way ``data`` goes, and whether it is checked."""
    buffer = bytearray(len(data))
    while True:
        with suppress(OSError):
            plain, _ = listener.accept()
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with plain if tls is None else tls.wrap_socket(plain, server_side=True) as peer:
                while letter := peer.recv(1):
                    move(peer, letter.decode(), data, memoryview(buffer))
                    peer.sendall(time.process_time_ns().to_bytes(8, "big"))


def move(peer: socket.socket, letter: str, data: memoryview, buffer: memoryview) -> None:
    sends, checks, crc = letter in "dD", letter in "UD", 0
    if sends:
        for block in blocks(data):
            if checks:
                crc = zlib.crc32(block, crc)
            peer.sendall(block)
        return
    at = 0
    while at < len(buffer):
        got = peer.recv_into(buffer[at : at + BLOCK_BYTES])
        if not got:
            raise OSError("cut short")
        if checks:
            crc = zlib.crc32(buffer[at : at + got], crc)
        at += got


def blocks(data: memoryview) -> Iterator[memoryview]:
    return (data[at : at + BLOCK_BYTES] for at in range(0, len(data), BLOCK_BYTES))


async def far_end(numel: int, cert: str, key: str) -> None:
    shelf = Shelf(numel)
    data = octets(shelf.value.body)
    ports = []
    for tls, memory in ((None, None), (server_tls(cert, key), None), (None, shelf.memory)):
        listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=raw_serve, args=(listener, tls, data), daemon=True).start()
        server = HttpServer(shelf, token=None, stall_s=30.0, memory=memory)  # type: ignore[arg-type]
        server.app.router.add_get("/cpu", spent)
        runner = web.AppRunner(server.app, access_log=None, read_bufsize=1 << 18)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
        ports += [listener.getsockname()[1], runner.addresses[0][1]]
    print(json.dumps(ports), flush=True)
    await asyncio.to_thread(sys.stdin.read)


async def spent(request: web.Request) -> web.Response:
    return web.Response(text=str(time.process_time_ns()))


# ── the near end ─────────────────────────────────────────────────────────────────────────────────────────────────


class Raw:
    """One blocking connection."""

    def __init__(self, port: int, tls: ssl.SSLContext | None, num_bytes: int) -> None:
        plain = socket.create_connection(("127.0.0.1", port))
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._peer = plain if tls is None else tls.wrap_socket(plain, server_hostname="127.0.0.1")
        self._data, self._buffer = memoryview(bytes(num_bytes)), memoryview(bytearray(num_bytes))
        self._cpu_s = 0.0

    async def go(self, letter: str) -> None:
        self._peer.sendall(letter.encode())
        sends = {"u": "d", "d": "u", "U": "D", "D": "U"}[letter]
        move(self._peer, sends, self._data, self._buffer)
        self._cpu_s = int.from_bytes(self._peer.recv(8), "big") / 1e9

    async def cpu_s(self) -> float:
        """Of the other end, so far."""
        return self._cpu_s


class Ours:
    """The client of a learner."""

    def __init__(self, port: int, tls: ssl.SSLContext | None, numel: int, host: str = "127.0.0.1") -> None:
        scheme = "http" if tls is None else "https"
        self.address = SyncerAddress.parse(f"{scheme}://{host}:{port}")
        self.client = HttpSyncer(self.address, token=None, tls=tls, stall_s=30.0)
        self._room = LeasePool().lend(numel)
        self._numel, self._body = numel, np.empty(0, np.uint8)
        self._answer = Answer(
            learner=LearnerId("bench"), incarnation=Incarnation(1), epoch=Epoch(1), round=Round(1),
            fragment=Fragment(0), base_version=Version(0), steps=1, tokens=1, total_tokens=1, cursor=1,
            layout_hash=LAYOUT_HASH,
        )  # fmt: skip

    async def go(self, letter: str) -> None:
        if letter == "d":
            await self.client.fetch(Fragment(0), Version(1), LAYOUT_HASH, self._room)
        else:
            await self.upload()

    async def cpu_s(self) -> float:
        async with self.client._http.get(self.address.url("/cpu")) as reply:
            return int(await reply.text()) / 1e9

    async def upload(self) -> None:
        if not self._body.size:  # where the client wants it, who knows that after a first download
            await self.go("d")
            values = self.client.room(self._numel)
            values[:] = np.random.default_rng(1).standard_normal(self._numel)
            self._body = values.view(np.uint8)
        taken, _ = await self.client.contribute(self._answer, "fp32", self._body.data)
        assert taken


async def timed(end: Raw | Ours, letter: str, bodies: int, num_bytes: int) -> tuple[float, float]:
    """GB/s, and seconds of processor time a gigabyte at both ends."""
    await end.go(letter)
    there, here = await end.cpu_s(), time.process_time()
    began = time.perf_counter()
    for _ in range(bodies):
        await end.go(letter)
    took_s, moved = time.perf_counter() - began, bodies * num_bytes / 1e9
    here = time.process_time() - here
    return moved / took_s, (here + await end.cpu_s() - there) / moved


async def measure(ports: list[int], ca: str, args: argparse.Namespace) -> dict[str, Any]:
    numel = args.mebibytes << 18
    found: dict[str, list[tuple[float, float]]] = {}
    ends = []
    trust = ssl.create_default_context(cafile=ca)
    for name, tls, (raw_port, our_port) in (
        ("plain", None, ports[:2]), ("tls", trust, ports[2:4]), ("shared", None, ports[4:]),
    ):  # fmt: skip
        ends.append((name, Raw(raw_port, tls, 4 * numel), Ours(our_port, tls, numel)))
        await ends[-1][2].client.__aenter__()
    for _ in range(args.rounds):
        for name, raw, ours in ends:
            for way, letter in (("up", "u"), ("down", "d")):
                for kind, end, spelled in (
                    ("raw", raw, letter), ("ours", ours, letter), ("checked", raw, letter.upper()),
                ):  # fmt: skip
                    found.setdefault(f"{name} {way} {kind}", []).append(
                        await timed(end, spelled, args.bodies, 4 * numel)
                    )
    for _, _, ours in ends:
        await ours.client.__aexit__(None, None, None)
    rows = {}
    for name in ("plain", "tls", "shared"):
        for way in ("up", "down"):
            row = {}
            for kind in ("raw", "checked", "ours"):
                values = found[f"{name} {way} {kind}"]
                row[kind] = statistics.median(value for value, _ in values)
                row[f"{kind}_cpu"] = statistics.median(cpu for _, cpu in values)
            speeds = np.array(found[f"{name} {way} ours"])[:, 0]
            shares = speeds / np.array(found[f"{name} {way} raw"])[:, 0]
            row["share_of_raw"], row["worst"], row["best"] = map(float, (np.median(shares), shares.min(), shares.max()))
            row["of_plain"] = float(np.median(speeds / np.array(found[f"plain {way} ours"])[:, 0]))
            row["share_of_checked"] = float(np.median(speeds / np.array(found[f"{name} {way} checked"])[:, 0]))
            rows[f"{name} {way}"] = row
    return rows


def certificate(folder: Path) -> tuple[str, str]:
    cert, key = folder / "cert.pem", folder / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "1",
         "-subj", "/CN=bench", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", cert],
        check=True, capture_output=True,
    )  # fmt: skip
    return str(cert), str(key)


def server_tls(cert: str, key: str) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_cert_chain(cert, key)
    return context


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mebibytes", type=int, default=64, help="of one body")
    parser.add_argument("--bodies", type=int, default=4, help="in a row, timed together")
    parser.add_argument("--rounds", type=int, default=7, help="of all ways in turn; medians are shown")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--serve", nargs=2, metavar=("CERT", "KEY"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        asyncio.run(far_end(args.mebibytes << 18, *args.serve))
        return
    with tempfile.TemporaryDirectory() as folder:
        cert, key = certificate(Path(folder))
        command = [sys.executable, __file__, "--mebibytes", str(args.mebibytes), "--serve", cert, key]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
            assert server.stdout is not None and server.stdin is not None
            rows = asyncio.run(measure(json.loads(server.stdout.readline()), cert, args))
            server.stdin.close()
    if args.json:
        print(json.dumps(rows))
        return
    print(
        "GB/s           raw  checked   ours   of raw (worst to best)  of checked  of plain  cpu s/GB raw  checked  ours"
    )
    for name, row in rows.items():
        print(
            f"{name:11} {row['raw']:6.2f} {row['checked']:8.2f} {row['ours']:6.2f} {row['share_of_raw']:7.0%}"
            f"  ({row['worst']:.0%} to {row['best']:.0%}) {row['share_of_checked']:12.0%}"
            f" {row['of_plain']:8.0%} {row['raw_cpu']:13.2f} {row['checked_cpu']:8.2f} {row['ours_cpu']:5.2f}"
        )


if __name__ == "__main__":
    main()
