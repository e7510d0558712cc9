"""A place in an object store: the few things that are asked of it, and what its troubles mean.

Whatever store the library knows will do, if it creates and replaces objects conditionally. Its answers are told apart
as those of a syncer are: :class:`ConnectionLost` passes by itself, :class:`AddressError` is for a person to mend.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import re
from collections import Counter
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from gruppetto.errors import AddressError, ConnectionLost, ProtocolError, SettingError
from gruppetto.runtime.complaints import Complaints
from gruppetto.runtime.mailbox.address import MailboxAddress
from gruppetto.runtime.mailbox.strays import BETWEEN, MAX_STRAYS, beside, stray_in

if TYPE_CHECKING:
    from obstore.store import ObjectStore

__all__ = ["Bucket", "Conflict", "Found", "open_bucket"]

_log = logging.getLogger("gruppetto.syncer")

CONNECT_S = 5.0
LEAST_BYTES_PER_S = 1 << 16
"""A body that goes up more slowly has failed."""
CHUNK_BYTES = 1 << 18
"""Bodies come down in chunks of this size: a stall is noticed between two of them."""
PAGE = 1000
"""Names in one answer to a listing, and deleted by one request."""
MAX_LISTED = 50_000
SAID_CHARS = 300
NO_TAG = '"00000000000000000000000000000000"'
_NOISE = re.compile(r"Generic S3 error: | in [0-9.]+[^ ]?s\b")
_NO_CREDENTIALS = re.compile(r"http://169\.254\.169\.254/latest/")
"""Where a machine of the cloud would be told its role, and the last place in which they are looked for."""
_DENIED = re.compile(r"status code: 40[13]\b")


class Conflict(Exception):
    """Somebody else has made or changed that object."""


class _Stray(Exception):
    """A name lies there that the store's client cannot say."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


@dataclass(frozen=True, slots=True)
class Found:
    """An object in a listing."""

    name: str
    num_bytes: int


class Bucket:
    """``store``, already at its prefix. ``where``: for people. ``limit_s``: for one request without a body.

    :attr:`requests` counts what is paid for: get, put, list; and delete, which is not.
    """

    def __init__(self, store: ObjectStore, where: str, *, limit_s: float) -> None:
        self._library: Any = importlib.import_module("obstore")
        self._errors: Any = importlib.import_module("obstore.exceptions")
        self._store, self.where, self._limit_s = store, where, limit_s
        self._complaints = Complaints(_log)
        self.requests: Counter[str] = Counter()

    def account(self) -> str:
        """What has been asked of the store so far, in words."""
        return ", ".join(f"{self.requests[kind]} {kind}" for kind in ("put", "list", "get", "delete"))

    async def get(self, name: str, limit: int) -> tuple[bytes, str] | None:
        """A small object and its tag; None if there is none. One of more than ``limit`` bytes is not read, and raises
        :class:`ProtocolError`."""
        return await self._read(name, limit, self._limit_s)

    async def stream(self, name: str, length: int | None, limit: int) -> AsyncGenerator[memoryview, None]:
        """A large object, piece by piece. Raises :class:`ProtocolError` unless it has ``length`` bytes, or with None at
        most ``limit``, before one is read; :class:`ConnectionLost` if there is none."""
        self.requests["get"] += 1
        with self._troubles(name):
            async with asyncio.timeout(self._limit_s) as waiting:
                reply = await self._library.get_async(self._store, name)
                size = reply.meta["size"]
                if size > limit or (length is not None and size != length):
                    raise ProtocolError(f"{name} has {size} bytes, where {limit if length is None else length} may be")
                async for chunk in reply.stream(min_chunk_size=CHUNK_BYTES):
                    waiting.reschedule(asyncio.get_running_loop().time() + self._limit_s)
                    yield memoryview(chunk)

    async def put_new(self, name: str, body: bytes) -> str:
        """Make an object; its tag. Raises :class:`Conflict` if another one is there. One that holds just this is ours:
        the answer to an earlier try was lost."""
        try:
            return await self._put(name, body, "create")
        except Conflict:
            with suppress(ProtocolError):
                there = await self._read(name, len(body), self._limit_s + len(body) / LEAST_BYTES_PER_S)
                if there is not None and there[0] == body:
                    return there[1]
            raise

    async def put_over(self, name: str, body: bytes) -> str:
        """Make or replace an object, all at once; its tag."""
        return await self._put(name, body, "overwrite")

    async def put_if(self, name: str, body: bytes, tag: str) -> str:
        """Replace the object of that tag; the new one. Raises :class:`Conflict` if it is not there any more."""
        return await self._put(name, body, {"e_tag": tag})

    async def heeds_conditions(self, name: str, body: bytes) -> bool:
        """Whether the store refuses what it should, tried on an object that is there and holds ``body``."""
        for mode in ("create", {"e_tag": NO_TAG}):
            try:
                await self._put(name, body, mode)
            except Conflict:
                continue
            return False
        return True

    async def listing(self, folder: str) -> list[Found]:
        """All that lies below a folder, at this moment, but for names that the store's client cannot say.

        One of these spoils its whole page. Then the folders beside it are listed one by one, and what comes after it.
        """
        found: list[Found] = []
        todo: list[tuple[str, str | None]] = [(folder, None)]
        strays = 0
        while todo and len(found) < MAX_LISTED:
            inside, after = todo.pop()
            try:
                found += await self._listed(inside, after, MAX_LISTED - len(found))
            except _Stray as stray:
                strays += 1
                self._complaints.note(("stray",), f"{self.where}/{stray.name[:200]} is nothing of a mailbox; delete it")
                if strays > MAX_STRAYS:
                    raise ConnectionLost(f"{self.where}: too much lies there that is nothing of a mailbox") from stray
                behind, deeper = beside(stray.name, inside)
                try:
                    objects, folders = await self._level(inside) if deeper else ([], [behind])
                except _Stray:  # another one at this level: what shares a page with both cannot be seen
                    objects, folders = [], [behind[: -len(BETWEEN)], behind]
                found += [one for one in objects if after is None or one.name > after]
                for one in folders:
                    if one == behind:
                        todo.append((inside, behind))
                    elif after is None or one > after:
                        todo.append((one, None))
        return found

    async def folders(self) -> list[str]:
        """Those at the top; none as long as a name lies there that the store's client cannot say."""
        try:
            return (await self._level(""))[1]
        except _Stray as stray:
            self._complaints.note(("stray",), f"{self.where}/{stray.name[:200]} is nothing of a mailbox; delete it")
            return []

    async def _listed(self, folder: str, after: str | None, limit: int) -> list[Found]:
        """Those that come after a name. Raises :class:`_Stray`."""
        found: list[Found] = []
        self.requests["list"] += 1
        with self._troubles(folder):
            async with asyncio.timeout(self._limit_s) as waiting:
                async for page in self._library.list(self._store, folder, offset=after, chunk_size=PAGE):
                    self.requests["list"] += bool(found)  # the first page was counted when it was asked for
                    found += [Found(meta["path"], meta["size"]) for meta in page]
                    if len(found) >= limit:
                        break
                    waiting.reschedule(asyncio.get_running_loop().time() + self._limit_s)
        return found

    async def _level(self, folder: str) -> tuple[list[Found], list[str]]:
        """What lies in a folder itself, and the folders in it, by their whole names. Raises :class:`_Stray`."""
        self.requests["list"] += 1
        with self._troubles(folder):
            async with asyncio.timeout(self._limit_s):
                listed = await self._library.list_with_delimiter_async(self._store, folder or None)
        objects = [Found(meta["path"], meta["size"]) for meta in listed["objects"]]
        return objects, [str(name).strip("/") for name in listed["common_prefixes"]]

    async def delete(self, names: Sequence[str]) -> None:
        """Delete these; those that are not there are none the less gone."""
        for at in range(0, len(names), PAGE):
            self.requests["delete"] += 1
            with self._troubles(names[at]):
                async with asyncio.timeout(self._limit_s):
                    try:
                        await self._library.delete_async(self._store, list(names[at : at + PAGE]))
                    except FileNotFoundError as wrong:
                        self._is_no_bucket(wrong)

    async def _read(self, name: str, limit: int, limit_s: float) -> tuple[bytes, str] | None:
        self.requests["get"] += 1
        with self._troubles(name):
            async with asyncio.timeout(limit_s):
                try:
                    reply = await self._library.get_async(self._store, name)
                except FileNotFoundError as wrong:
                    self._is_no_bucket(wrong)
                    return None
                if reply.meta["size"] > limit:
                    raise ProtocolError(f"{name} has {reply.meta['size']} bytes; at most {limit} are allowed")
                return bytes(await reply.bytes_async()), str(reply.meta["e_tag"])

    async def _put(self, name: str, body: bytes, mode: Any) -> str:
        self.requests["put"] += 1
        with self._troubles(name):
            async with asyncio.timeout(self._limit_s + len(body) / LEAST_BYTES_PER_S):
                put = self._library.put_async(self._store, name, body, mode=mode, use_multipart=False)
                return str((await put)["e_tag"])

    @contextmanager
    def _troubles(self, name: str) -> Iterator[None]:
        errors, where = self._errors, f"{self.where}/{name}"
        try:
            yield
        except (errors.AlreadyExistsError, errors.PreconditionError) as wrong:
            raise Conflict(where) from wrong
        except TimeoutError as wrong:
            raise ConnectionLost(f"{where}: the store did not answer for too long") from wrong
        except FileNotFoundError as wrong:
            self._is_no_bucket(wrong)
            raise ConnectionLost(f"{where} is not there, or not any more") from wrong
        except (errors.BaseError, OSError) as wrong:
            self._is_no_bucket(wrong)
            if (stray := stray_in(str(wrong), getattr(self._store, "prefix", None) or "")) is not None:
                raise _Stray(stray) from wrong
            denied = isinstance(wrong, errors.PermissionDeniedError | errors.UnauthenticatedError)
            denied = denied or _DENIED.search(str(wrong)) is not None  # of a listing only the text tells
            if _NO_CREDENTIALS.search(str(wrong)):
                fix = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, say profile=NAME, or give this machine a role"
                if denied:
                    raise AddressError("no credentials were found", where=self.where, fix=fix) from wrong
                raise ConnectionLost(f"{self.where}: no credentials were found; {fix}") from wrong
            if denied:
                raise AddressError(
                    f"the store refuses these credentials ({_said(wrong)})",
                    where=self.where,
                    fix="let them get, put, list and delete below the prefix",
                ) from wrong
            raise ConnectionLost(f"{where}: the store cannot be used at this moment ({_said(wrong)})") from wrong

    def _is_no_bucket(self, wrong: Exception) -> None:
        if "NoSuchBucket" in str(wrong):
            raise AddressError(
                "there is no such bucket", where=self.where, fix="make it, or check name, region and endpoint"
            ) from wrong


def open_bucket(address: MailboxAddress, *, limit_s: float) -> Bucket:
    """The place that an address names; nothing is asked of it yet. Raises :class:`SettingError` where what it takes is
    not installed, and :class:`AddressError`."""
    try:
        stores: Any = importlib.import_module("obstore.store")
    except ImportError as wrong:
        raise SettingError(
            "a mailbox needs a library that is not installed", where=str(address), fix="pip install 'gruppetto[s3]'"
        ) from wrong
    said: dict[str, Any] = {name: value for name in ("endpoint", "region") if (value := getattr(address, name))}
    if address.profile:
        said["credential_provider"] = _of_profile(address)
    try:
        store = stores.S3Store(
            address.bucket,
            prefix=address.prefix,
            client_options={
                "allow_http": not address.secure,
                "connect_timeout": timedelta(seconds=min(CONNECT_S, limit_s)),
                "timeout": timedelta(days=1),  # of a whole body; what stands still is noticed here
            },
            retry_config={"max_retries": 0, "retry_timeout": timedelta(seconds=limit_s)},
            **said,
        )
    except Exception as wrong:  # its own kinds of error
        raise AddressError(f"the store cannot be used ({_said(wrong)})", where=str(address)) from wrong
    return Bucket(store, str(address), limit_s=limit_s)


def _of_profile(address: MailboxAddress) -> object:
    try:
        boto3: Any = importlib.import_module("boto3")
        providers: Any = importlib.import_module("obstore.auth.boto3")
    except ImportError as wrong:
        raise SettingError(
            "profile= needs a library that is not installed", where=str(address), fix="pip install boto3"
        ) from wrong
    try:
        return providers.Boto3CredentialProvider(boto3.Session(profile_name=address.profile))
    except Exception as wrong:  # its own kinds of error
        raise AddressError(
            f"profile {address.profile!r} cannot be used ({_said(wrong)})", where=str(address), fix="look into ~/.aws"
        ) from wrong


def _said(wrong: Exception) -> str:
    """What it is about, the same whenever it is the same."""
    lines = _NOISE.sub("", str(wrong)).strip().splitlines()
    return lines[0][:SAID_CHARS] if lines else type(wrong).__name__
