"""Asking a running syncer: where it is, how it stands, what the weights are."""

from __future__ import annotations

import http.client
import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from gruppetto.errors import AddressError, ConnectionLost, SettingError
from gruppetto.files import json_in
from gruppetto.home import at_home
from gruppetto.launch.unanswered import PapersWanted, unanswered
from gruppetto.runtime.address import SyncerAddress
from gruppetto.runtime.antechamber import STANDBY_WORDS
from gruppetto.runtime.authority import EPOCHS, has_ended
from gruppetto.runtime.clock import MonotonicClock
from gruppetto.runtime.security.exposed import tell_exposure

__all__ = [
    "AlarmSeen",
    "Endpoint",
    "GlobalModel",
    "directly",
    "fetch_model",
    "fetch_status",
    "find_endpoint",
    "find_endpoints_beside",
    "is_standby",
    "read_token",
]

TIMEOUT_S, ANSWER_S = 10.0, 20.0
"""Of a connection and of each piece of an answer; of a whole one that is small."""
HEALTH_TIMEOUT_S = 1.0
ENDPOINT_FILE = "endpoint.json"
MAX_STATUS_BYTES = 16 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where a syncer of this machine listens."""

    url: str
    pid: int
    control: str = field(default="", repr=False)
    """What it wants to be shown before it takes a checkpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GlobalModel:
    """Θ as of ``round``: a safetensors file in memory."""

    round: int
    content: bytes


def find_endpoint(directory: Path, *, living: bool = False) -> Endpoint | None:
    """What a syncer wrote into its state directory, or into ``syncer/`` of a run directory; None if it has not yet.

    One that was killed has left its address, at which somebody else may listen by now: another run's syncer.
    ``living``: None of one that is known to be gone.
    """
    for state in (directory, directory / "syncer"):
        try:
            said = json_in(state / ENDPOINT_FILE)
            found = Endpoint(url=str(said["url"]), pid=int(said["pid"]), control=str(said.get("control", "")))
        except (OSError, ValueError, KeyError, TypeError):
            continue
        return None if living and (state / EPOCHS).is_dir() and has_ended(state) else found
    return None


def find_endpoints_beside(directory: Path) -> list[Endpoint]:
    """Of the other shards of a local run that may be there: in a run directory, or beside the first one's state."""
    state = directory if (directory / ENDPOINT_FILE).exists() else directory / "syncer"
    found = (find_endpoint(place, living=True) for place in sorted(state.parent.glob(f"{state.name}-*[0-9]")))
    return [endpoint for endpoint in found if endpoint is not None]


def fetch_status(
    url: str, *, token: str | None = None, tls: ssl.SSLContext | None = None, timeout_s: float = TIMEOUT_S
) -> dict[str, Any]:
    """The syncer's own account of itself. ``timeout_s``: of a connection, and of each piece of its answer.

    Raises :class:`AddressError` when something else answers there, or a syncer that asks for other papers
    (:class:`~gruppetto.launch.unanswered.PapersWanted`); :class:`ConnectionLost` when nobody does.
    """
    content, _ = _get(url, "/v1/status", token, MAX_STATUS_BYTES, tls, timeout_s)
    try:
        status: dict[str, Any] = json.loads(content)
        msgspec.convert(status, _Status)
    except (ValueError, RecursionError) as error:
        raise AddressError(
            f"does not answer like a syncer ({error})", where=url, fix="give the address of a gruppetto syncer"
        ) from error
    return status


def fetch_model(url: str, *, token: str | None = None, tls: ssl.SSLContext | None = None) -> GlobalModel | None:
    """The global weights of one moment; None while there are none. Raises like :func:`fetch_status`."""
    try:
        content, headers = _get(url, "/v1/model", token, None, tls)
    except _NotThereError:
        return None
    round = headers.get("Gruppetto-Round", "")
    if not round.isdecimal():
        raise AddressError("does not answer like a syncer", where=url, fix="give the address of a gruppetto syncer")
    return GlobalModel(round=int(round), content=content)


def is_standby(url: str, *, tls: ssl.SSLContext | None = None) -> bool:
    """Whether somebody waits there to take over. Whoever does not answer at once is not there yet."""
    try:
        with directly(tls).open(SyncerAddress.parse(url).url("/healthz"), timeout=HEALTH_TIMEOUT_S) as reply:
            said: bytes = reply.read(100)
    except (OSError, http.client.HTTPException):
        return False
    return said.strip() == b"standby"


def read_token(file: str | Path | None) -> str | None:
    """The first line of a token file. Raises :class:`SettingError`."""
    if file is None:
        return None
    try:
        lines = at_home(file).read_text(encoding="utf-8").split()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingError("cannot be read", where=f"syncer.token_file ({file})", fix="name a text file") from error
    if not lines:
        raise SettingError("is empty", where=f"syncer.token_file ({file})", fix="write the token into its first line")
    tell_exposure(at_home(file))
    return lines[0]


class _Rejection(msgspec.Struct):
    round: int
    reason: str


class _Learner(msgspec.Struct):
    state: str | None
    clock: int
    why: str = ""
    last_rejection: _Rejection | None = None
    step_s: float | None = None
    last_merged_round: int | None = None
    norm: float | None = None
    cosine: float | None = None


class _Recovery(msgspec.Struct):
    learner: str
    source: str
    donor: str
    seconds: float


class AlarmSeen(msgspec.Struct):
    """An alarm as a status or a report tells of it. Times are seconds of the run."""

    t: float
    kind: str
    text: str
    over_t: float | None = None


class _Status(msgspec.Struct):
    """What whoever asks relies upon; a syncer says more (:func:`gruppetto.runtime.health.status_of`)."""

    round: int
    phase: str
    waiting_for: str
    learners: dict[str, _Learner]
    recoveries: list[_Recovery]
    rounds: int | None = None
    uptime_s: float = 0.0
    rejected: dict[str, int] = {}
    clipped: dict[str, int] = {}
    alarms: list[AlarmSeen] = []
    shard: str = "1/1"
    shards: dict[str, str] = {}


class _NotThereError(AddressError):
    """404: the right kind of server, which has not got it."""


def _get(
    urls: str,
    path: str,
    token: str | None,
    limit: int | None,
    tls: ssl.SSLContext | None,
    timeout_s: float = TIMEOUT_S,
) -> tuple[bytes, Mapping[str, str]]:
    """Of several addresses the first that serves the run; what is wrong with the last one if none does."""
    *others, last = SyncerAddress.parse_all(urls)
    for address in others:
        with suppress(ConnectionLost, AddressError):
            return _get_from(address, path, token, limit, tls, timeout_s)
    return _get_from(last, path, token, limit, tls, timeout_s)


def directly(tls: ssl.SSLContext | None) -> urllib.request.OpenerDirector:
    """Through no proxy, whatever the environment says: learners dial directly too."""
    return urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=tls))


def _read(reply: http.client.HTTPResponse, limit: int | None) -> bytes:
    """All of it; what is small has to be here in time, however often something comes."""
    if limit is None:
        return reply.read()
    clock, pieces, size = MonotonicClock(), list[bytes](), 0
    until = clock.now() + ANSWER_S
    while size < limit and (piece := reply.read1(min(1 << 20, limit - size))):
        pieces.append(piece)
        size += len(piece)
        if clock.now() > until:
            raise TimeoutError("its answer does not end")
    return b"".join(pieces)


def _get_from(
    address: SyncerAddress,
    path: str,
    token: str | None,
    limit: int | None,
    tls: ssl.SSLContext | None,
    timeout_s: float,
) -> tuple[bytes, Mapping[str, str]]:
    url = str(address)
    request = urllib.request.Request(address.url(path))
    if token is not None:
        request.add_header("Authorization", f"Bearer {token}")
    try:
        with directly(tls).open(request, timeout=timeout_s) as reply:
            return _read(reply, limit), reply.headers
    except urllib.error.HTTPError as error:
        raise _refusal(url, error) from error
    except (OSError, http.client.HTTPException) as error:
        raise unanswered(url, error, tls) from error


def _refusal(url: str, error: urllib.error.HTTPError) -> AddressError:
    """Somebody has answered, and gives nothing."""
    with error:
        said = (error.read(200).decode("utf-8", "replace").strip().splitlines() or [""])[0]
    if error.code == 404:
        return _NotThereError(said or "not found", where=url, fix="check the address")
    if error.code == 401:
        return PapersWanted(
            "wants a token", where=url, fix="give --token-file FILE, or --certs DIR of an operator or viewer"
        )
    if said.startswith(STANDBY_WORDS):
        return AddressError(said.removeprefix("this "), where=url, fix="ask that one")
    if error.code == 403:
        return PapersWanted(said or "refuses", where=url, fix="ask with the papers of an operator: --certs DIR")
    return AddressError(f"answered {error.code} {said}", where=url, fix="check it")
