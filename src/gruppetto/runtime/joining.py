"""A learner that begins takes the state of another one: by chunks, checked, from where it broke off.

Of many ranks rank 0 asks for the manifest, and each fetches what it needs; the donor sees one guest.
Nothing here has a total time limit. A donor that stands still or drips for ``stall_s``, which answers with a no, whose
state is not such as ours would be, or whose bytes are damaged again and again raises; whoever called goes to the next.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Protocol

import aiohttp
import numpy as np
from numpy.typing import NDArray

from gruppetto.errors import ConnectionLost, ProtocolError
from gruppetto.protocol.donors import covers
from gruppetto.protocol.units import Version
from gruppetto.runtime.donation import Manifest, NamedTensor, decode_manifest, digest_of, donation_secret
from gruppetto.runtime.donor import BUSY_HEADER, DIGEST_HEADER, GUEST_S
from gruppetto.runtime.headers import LEARNER_HEADER
from gruppetto.runtime.spans import Needs, Request, everything, places_of, requests_for
from gruppetto.runtime.wire import MIN_BYTES_PER_S

__all__ = ["DonorBusy", "Fetched", "Others", "Visit"]

CHUNKS_AT_ONCE = 2
"""One travels while the other is checked and put away."""
MOST_AT_ONCE = 8
"""... of chunks that are smaller because they lie at several ranks: as much is on its way."""
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


class _StandsStill(ConnectionLost):
    """It has been waited for as long as a donor is; another try would take as long again."""


class Fetched:
    """A state, or what one rank needs of it, in memory of its own."""

    def __init__(self, manifest: Manifest, body: Octets, needs: Needs) -> None:
        self.manifest, self._body = manifest, body
        places = zip(manifest.tensors, places_of(needs), needs, strict=False)
        self._places = {(t.part, t.name, t.key): (place, runs.numel) for t, place, runs in places}

    def octets(self, tensor: NamedTensor) -> Octets:
        """The bytes of one tensor that were needed, end to end; aligned to 64 bytes."""
        place, size = self._places[tensor.part, tensor.name, tensor.key]
        return self._body[place : place + size]


class Others(Protocol):
    """The other ranks of the learner that begins."""

    def fetch_too(self, manifest: Manifest) -> None:
        """Tell them what there is, and that they are to fetch their parts of it."""
        ...

    async def all_have(self) -> None:
        """Until each has its part, checked. Raises :class:`ConnectionLost` when one says that it has not got it."""
        ...


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
        needs: Callable[[Manifest], Needs] = everything,
        others: Others | None = None,
    ) -> None:
        """``fits`` raises if such a state is of no use: before there is memory for it. In a thread of its own. ``tls``:
        what is shown to the donor, and how it is known. ``needs``: what of it is wanted here."""
        self.came_bytes = self.total_bytes = 0
        self._fits, self._needs, self._others = fits, needs, others
        self._scheme = "http" if tls is None else "https"
        self._base, self._stall_s = self._url(address), stall_s
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
        async with self._session() as http:
            manifest = await self._manifest(http, wanted)
            try:
                known = (manifest.run_id, manifest.layout_hash, manifest.fragmentation_hash)
                if known != (run_id, layout_hash, fragmentation_hash):
                    raise ProtocolError("it trains another model, or in another run")
                if not covers(manifest.versions, wanted):
                    raise ProtocolError("it is behind")
                return await self._together(http, manifest)
            finally:
                await self._thank(http, manifest.cut)

    async def fetch_part(self, manifest: Manifest) -> Fetched:
        """What this rank needs of a cut that rank 0 has the manifest of. Raises as :meth:`fetch` does."""
        async with self._session() as http:
            return await self._body(http, manifest)

    def _session(self) -> aiohttp.ClientSession:
        connector = aiohttp.TCPConnector(limit=MOST_AT_ONCE + 2, ssl=True if self._tls is None else self._tls)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=self._stall_s)
        return aiohttp.ClientSession(
            headers=self._headers, connector=connector, timeout=timeout, read_bufsize=READ_BYTES
        )

    def _url(self, address: str) -> str:
        return f"{self._scheme}://{address}/v1/donation"

    async def _together(self, http: aiohttp.ClientSession, manifest: Manifest) -> Fetched:
        """This rank's part, when all ranks have theirs. The first failure, wherever, ends it for all."""
        if self._others is None and not manifest.portions:
            return await self._body(http, manifest)
        staying = asyncio.create_task(self._stay(http, manifest.cut))
        try:
            async with asyncio.TaskGroup() as group:
                own = group.create_task(self._body(http, manifest, tells=True))
                if self._others is not None:
                    group.create_task(self._others.all_have())
            return own.result()
        except BaseExceptionGroup as several:
            raise several.exceptions[0] from several
        finally:
            staying.cancel()

    async def _stay(self, http: aiohttp.ClientSession, cut: str) -> None:
        """The donor that was asked keeps the cut, also while all that comes is from its other ranks or goes to ours."""
        while True:
            await asyncio.sleep(GUEST_S / 3)
            with suppress(aiohttp.ClientError, OSError, TimeoutError):
                async with (
                    asyncio.timeout(self._stall_s),
                    http.get(f"{self._base}/{cut}", headers={"Range": "bytes=0-0"}) as reply,
                ):
                    await reply.read()

    async def _body(self, http: aiohttp.ClientSession, manifest: Manifest, *, tells: bool = False) -> Fetched:
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, self._fits, manifest)
        needs = await loop.run_in_executor(None, self._needs, manifest)
        if tells and self._others is not None:
            self._others.fetch_too(manifest)
        self.total_bytes = sum(runs.numel for runs in needs)
        body = _aligned(places_of(needs)[-1])
        requests = await loop.run_in_executor(None, requests_for, manifest, needs)
        await self._all_chunks(http, manifest, body, requests)
        return Fetched(manifest, body, needs)

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

    async def _all_chunks(
        self, http: aiohttp.ClientSession, manifest: Manifest, body: Octets, requests: Sequence[Request]
    ) -> None:
        left = iter(requests)

        async def take_some() -> None:
            for request in left:
                await self._chunk(http, manifest, body, request)

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(_at_once(manifest, requests)):
                    group.create_task(take_some())
        except BaseExceptionGroup as several:
            raise several.exceptions[0] from several

    async def _chunk(self, http: aiohttp.ClientSession, manifest: Manifest, body: Octets, request: Request) -> None:
        """One chunk, however often it breaks off or is damaged, up to a bound."""
        url = f"{self._url(request.address) if request.address else self._base}/{manifest.cut}"
        size, place = request.stop - request.start, request.goes_to
        into = np.empty(size, np.uint8) if place is None else body[place : place + size]
        for attempt in range(TRIES):
            try:
                await self._range(http, url, into, request.start)
                break
            except _StandsStill:
                raise
            except ConnectionLost:
                if attempt + 1 == TRIES:
                    raise
            await asyncio.sleep(RETRY_S * 2**attempt)
        for start, stop, at in request.spans:
            if place is None:
                body[at : at + stop - start] = into[start - request.start : stop - request.start]
            self.came_bytes += stop - start

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
            raise _StandsStill(f"{what} came from it for {self._stall_s:g} s") from wrong
        except (aiohttp.ClientError, OSError) as wrong:
            raise ConnectionLost(str(wrong) or type(wrong).__name__) from wrong


def _at_once(manifest: Manifest, requests: Sequence[Request]) -> int:
    """How many of them are on their way at a time."""
    total = sum(request.stop - request.start for request in requests)
    small = CHUNKS_AT_ONCE * manifest.chunk_bytes * len(requests) // max(1, total)
    return max(CHUNKS_AT_ONCE, min(MOST_AT_ONCE, small))


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
