"""A learner that begins takes the state of another one: by chunks, checked, from where it broke off.

Nothing here has a total time limit. A donor that stands still or drips for ``stall_s``, which answers with a no, whose
state is not such as ours would be, or whose bytes are damaged again and again raises; whoever called goes to the next.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress

import aiohttp
import numpy as np
from numpy.typing import NDArray

from gruppetto.errors import ConnectionLost, ProtocolError
from gruppetto.protocol.donors import covers
from gruppetto.protocol.units import Version
from gruppetto.runtime.donation import Manifest, NamedTensor, decode_manifest, digest_of, donation_secret
from gruppetto.runtime.donor import BUSY_HEADER, DIGEST_HEADER
from gruppetto.runtime.headers import LEARNER_HEADER
from gruppetto.runtime.wire import MIN_BYTES_PER_S

__all__ = ["DonorBusy", "Fetched", "Visit"]

CHUNKS_AT_ONCE = 2
"""One travels while the other is checked and put away."""
TRIES = 3
"""Of one chunk at one donor."""
RETRY_S = 0.1
"""Between two of them; doubled each time."""
READ_BYTES = 1 << 19
"""Taken from the socket at a time."""
MAX_MANIFEST_BYTES = 256 << 20

Octets = NDArray[np.uint8]


class DonorBusy(ConnectionLost):
    """The donor serves others at this moment."""


class Fetched:
    """A whole state, in memory of its own."""

    def __init__(self, manifest: Manifest, body: Octets) -> None:
        self.manifest, self._body = manifest, body

    def octets(self, tensor: NamedTensor) -> Octets:
        """The bytes of one tensor, where they lie; aligned to 64 bytes."""
        return self._body[tensor.offset : tensor.offset + tensor.payload_bytes]


class Visit:
    """One newcomer at one donor. :attr:`came_bytes` of :attr:`total_bytes` are here and checked."""

    def __init__(
        self,
        address: str,
        *,
        learner: str,
        session: str,
        token: str | None,
        stall_s: float,
        fits: Callable[[Manifest], None] = lambda manifest: None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """``fits`` raises if such a state is of no use: before there is memory for it. In a thread of its own. ``tls``:
        what is shown to the donor, and how it is known."""
        self.came_bytes = self.total_bytes = 0
        self._fits = fits
        self._base, self._stall_s = f"{'http' if tls is None else 'https'}://{address}/v1/donation", stall_s
        self._tls = tls
        secret = donation_secret(token)
        self._headers = {LEARNER_HEADER: f"{learner}:{session}"}
        if secret is not None:
            self._headers["Authorization"] = f"Bearer {secret}"

    async def fetch(
        self, wanted: Sequence[Version], *, run_id: str, layout_hash: str, fragmentation_hash: str
    ) -> Fetched:
        """The donor's state at one step boundary, with bases of ``wanted`` or newer versions.

        Raises :class:`DonorBusy`, :class:`ConnectionLost` or :class:`ProtocolError`.
        """
        connector = aiohttp.TCPConnector(limit=CHUNKS_AT_ONCE + 1, ssl=True if self._tls is None else self._tls)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=self._stall_s)
        async with aiohttp.ClientSession(
            headers=self._headers, connector=connector, timeout=timeout, read_bufsize=READ_BYTES
        ) as http:
            manifest = await self._manifest(http, wanted)
            try:
                known = (manifest.run_id, manifest.layout_hash, manifest.fragmentation_hash)
                if known != (run_id, layout_hash, fragmentation_hash):
                    raise ProtocolError("it trains another model, or in another run")
                if not covers(manifest.versions, wanted):
                    raise ProtocolError("it is behind")
                await asyncio.get_running_loop().run_in_executor(None, self._fits, manifest)
                self.total_bytes = manifest.total_bytes
                body = _aligned(manifest.total_bytes)
                await self._all_chunks(http, manifest, body)
            finally:
                await self._thank(http, manifest.cut)
            return Fetched(manifest, body)

    async def _manifest(self, http: aiohttp.ClientSession, wanted: Sequence[Version]) -> Manifest:
        params = {"versions": ",".join(map(str, wanted))}
        async with self._request(http, self._base, params=params) as (reply, moved):
            if reply.status != 200:
                raise await _no(reply)
            data = bytearray()
            async for part in reply.content.iter_any():
                moved(len(part))
                data += part
                if len(data) > MAX_MANIFEST_BYTES:
                    raise ProtocolError("its manifest has no end")
        try:
            return decode_manifest(bytes(data))
        except ProtocolError:
            await self._thank(http, "0")  # whatever the cut is called: there is room for the next guest
            raise

    async def _thank(self, http: aiohttp.ClientSession, cut: str) -> None:
        """The donor need not keep it, nor a place, for us."""
        with suppress(aiohttp.ClientError, OSError, TimeoutError):
            async with asyncio.timeout(1.0), http.delete(f"{self._base}/{cut}"):
                pass

    async def _all_chunks(self, http: aiohttp.ClientSession, manifest: Manifest, body: Octets) -> None:
        starts = iter(range(0, manifest.total_bytes, manifest.chunk_bytes))

        async def take_some() -> None:
            for start in starts:
                await self._chunk(http, manifest, body, start)

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(CHUNKS_AT_ONCE):
                    group.create_task(take_some())
        except BaseExceptionGroup as several:
            raise several.exceptions[0] from several

    async def _chunk(self, http: aiohttp.ClientSession, manifest: Manifest, body: Octets, start: int) -> None:
        """One chunk, however often it breaks off or is damaged, up to a bound."""
        stop = min(start + manifest.chunk_bytes, manifest.total_bytes)
        for attempt in range(TRIES):
            try:
                await self._range(http, f"{self._base}/{manifest.cut}", body[start:stop], start)
                self.came_bytes += stop - start
                return
            except ConnectionLost:
                if attempt + 1 == TRIES:
                    raise
            await asyncio.sleep(RETRY_S * 2**attempt)

    async def _range(self, http: aiohttp.ClientSession, url: str, into: Octets, start: int) -> None:
        headers = {"Range": f"bytes={start}-{start + into.size - 1}"}
        async with self._request(http, url, headers=headers) as (reply, moved):
            if reply.status != 206:
                raise await _no(reply)
            at = 0
            async for part in reply.content.iter_any():
                moved(len(part))
                if at + len(part) > into.size:
                    raise ProtocolError("it sends more than it was asked for")
                into[at : at + len(part)] = np.frombuffer(part, np.uint8)
                at += len(part)
            digest = await asyncio.get_running_loop().run_in_executor(None, digest_of, into.data)
            if at != into.size or reply.headers.get(DIGEST_HEADER) != digest:
                raise ConnectionLost(f"bytes {start} to {start + into.size} were damaged on their way")

    @asynccontextmanager
    async def _request(
        self,
        http: aiohttp.ClientSession,
        url: str,
        *,
        headers: dict[str, str] | None = None,
        params: dict[str, str] | None = None,
    ) -> AsyncIterator[tuple[aiohttp.ClientResponse, Callable[[int], None]]]:
        loop, enough_bytes, came = asyncio.get_running_loop(), MIN_BYTES_PER_S * self._stall_s, 0
        try:
            async with asyncio.timeout(self._stall_s) as deadline:

                def moved(size: int) -> None:
                    nonlocal came
                    came += size
                    if came >= enough_bytes:
                        came = 0
                        deadline.reschedule(loop.time() + self._stall_s)

                async with http.get(url, headers=headers, params=params) as reply:
                    deadline.reschedule(loop.time() + self._stall_s)
                    yield reply, moved
        except TimeoutError as wrong:
            what = f"only {came} bytes" if came else "nothing"
            raise ConnectionLost(f"{what} came from it for {self._stall_s:g} s") from wrong
        except (aiohttp.ClientError, OSError) as wrong:
            raise ConnectionLost(str(wrong) or type(wrong).__name__) from wrong


def _aligned(size: int) -> Octets:
    """Fresh memory that begins at a multiple of 64."""
    room = np.empty(size + 64, np.uint8)
    skip = -room.ctypes.data % 64
    return room[skip : skip + size]


async def _no(reply: aiohttp.ClientResponse) -> ConnectionLost | ProtocolError:
    text = (await reply.content.read(1024)).decode("utf-8", "replace").strip()
    words = f"HTTP {reply.status}, {text.splitlines()[0] if text else reply.reason}"
    if reply.status == 503 and BUSY_HEADER in reply.headers:
        return DonorBusy(words)
    return ProtocolError(words)
