"""Asking a running syncer for a checkpoint of the whole run, and waiting until it is complete."""

from __future__ import annotations

import http.client
import json
import ssl
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from typing import Any

from gruppetto.errors import AddressError, RunFailed, StateError
from gruppetto.launch.ask import directly
from gruppetto.launch.unanswered import unanswered
from gruppetto.runtime.address import SyncerAddress

__all__ = ["take_checkpoint"]

TIMEOUT_S = 10.0
POLL_S = 0.1
MAX_REPORT_BYTES = 16 * 2**20


def take_checkpoint(
    url: str,
    *,
    secret: str | None,
    name: str = "",
    show: Callable[[str], None] = lambda waiting_for: None,
    tls: ssl.SSLContext | None = None,
) -> dict[str, Any]:
    """Have the run at ``url`` checkpointed under ``name`` (default: the next number); the syncer's report.

    ``secret`` is the run's token, or what a syncer of this machine keeps in its state directory. ``show`` is told what
    is waited for, in words, whenever that changes. Raises :class:`StateError` if no checkpoint may be taken now,
    :class:`RunFailed` if it could not be written, :class:`AddressError` and :class:`ConnectionLost` like any asking.
    """
    report, said, pause = _ask(url, "POST", secret, name, tls=tls), "", threading.Event()
    mark = report["mark"]
    while report["stage"] == "waiting":
        waiting_for = str(report.get("waiting_for", "the syncer"))
        if waiting_for != said:
            said = waiting_for
            show(waiting_for)
        pause.wait(POLL_S)
        report = _ask(url, "GET", secret, tls=tls)
        if report["mark"] != mark:
            raise RunFailed(f"{url}: checkpoint {mark} is not known there any more; was the syncer started anew?")
    if report["stage"] == "refused":
        raise StateError(f"no checkpoint now: {report['why']}", where=url)
    if report["stage"] == "failed":
        raise RunFailed(f"{url}: checkpoint {mark} could not be taken: {report['why']}")
    return report


def _ask(
    url: str, method: str, secret: str | None, name: str = "", *, tls: ssl.SSLContext | None = None
) -> dict[str, Any]:
    path = f"/v1/checkpoint?{urllib.parse.urlencode({'name': name})}" if name else "/v1/checkpoint"
    request = urllib.request.Request(SyncerAddress.parse(url).url(path), method=method)
    if secret is not None:
        request.add_header("Authorization", f"Bearer {secret}")
    try:
        with directly(tls).open(request, timeout=TIMEOUT_S) as reply:
            report = json.loads(reply.read(MAX_REPORT_BYTES))
    except urllib.error.HTTPError as error:
        with error:
            said = error.read(10_000).decode("utf-8", "replace").strip()
        if error.code in (401, 403):
            raise AddressError(
                "wants an identity before it takes a checkpoint",
                where=url,
                fix="give --token-file or an operator's --certs, or name the run directory on the syncer's own machine",
            ) from error
        if error.code == 409:
            raise StateError(f"no checkpoint now: {_why(said)}", where=url) from error
        if error.code == 404 and method == "GET":
            raise RunFailed(
                f"{url}: the checkpoint is not known there any more; was the syncer started anew?"
            ) from error
        raise AddressError(f"answered {error.code} {said[:200]}", where=url, fix="check the address") from error
    except (OSError, http.client.HTTPException) as error:
        raise unanswered(url, error, tls) from error
    except (ValueError, RecursionError) as error:
        raise AddressError("does not answer like a syncer", where=url, fix="give the address of one") from error
    if not isinstance(report, dict) or not {"mark", "stage"} <= report.keys():
        raise AddressError("does not answer like a syncer", where=url, fix="give the address of one")
    return report


def _why(said: str) -> str:
    try:
        return str(json.loads(said)["why"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return said.removeprefix("checkpoint: ")
