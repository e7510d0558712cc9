"""What a learner may be told; see :class:`gruppetto.Learner` for what each of it means."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Sequence
from typing import SupportsIndex

from torch import nn

from gruppetto.attach.counting import whole_number
from gruppetto.errors import AddressError, SettingError
from gruppetto.runtime.address import SyncerAddress
from gruppetto.runtime.address_book import AddressBook, Fixed
from gruppetto.runtime.mailbox.address import MailboxAddress
from gruppetto.runtime.pacing import LEAST_BYTES_PER_S
from gruppetto.runtime.plausible import is_name
from gruppetto.runtime.setting import host_and_port, is_loopback

__all__ = [
    "check_exposure",
    "check_papers",
    "check_settings",
    "check_switches",
    "default_name",
    "donation_place",
]

MAX_SECONDS = 1e6
"""Eleven days. Waiting for much longer overflows in the system's own calls."""

_TOKEN = re.compile(r"[!-~]([ -~]*[!-~])?")


def default_name() -> str:
    """New for every process, and tells where it runs."""
    host = re.sub(r"[^A-Za-z0-9._-]", "-", socket.gethostname())[:64] or "learner"
    return f"{host}-{os.getpid()}"


def check_settings(
    *,
    model: object,
    name: object,
    token: object,
    cursor: object,
    on_disconnect: object,
    tokens_per_step: SupportsIndex | None,
    max_run_ahead: SupportsIndex | None,
    connect_timeout_s: object,
    run_ahead_timeout_s: object,
    stall_s: object,
    max_bytes_per_s: object,
) -> None:
    """Raises :class:`SettingError` for anything that is not what it has to be, of the wrong type too."""
    if not isinstance(model, nn.Module):
        raise SettingError(
            f"model is a {type(model).__name__}", where="Learner.model", fix="pass the torch.nn.Module that you call"
        )
    if not (isinstance(name, str) and is_name(name)):
        raise SettingError(f"name is {name!r}", where="Learner.name", fix="use 1 to 128 letters, digits or . _ -")
    if on_disconnect not in ("keep-training", "raise"):
        raise SettingError(
            f"on_disconnect is {on_disconnect!r}", where="Learner.on_disconnect", fix='use "keep-training" or "raise"'
        )
    if token is not None and not (isinstance(token, str) and _TOKEN.fullmatch(token)):
        # Not repeated in the message: it is a secret.
        raise SettingError(
            "the token is no text that an HTTP header can carry",
            where="Learner.token",
            fix="use printable ASCII without spaces or line ends around it (strip what was read from a file)",
        )
    if cursor is not None and not callable(cursor):
        raise SettingError(
            f"cursor is {cursor!r:.80}", where="Learner.cursor", fix="pass a function that gives the next batch's index"
        )
    for key, least, value in (("tokens_per_step", 1, tokens_per_step), ("max_run_ahead", 0, max_run_ahead)):
        if value is not None:
            whole_number(value, f"Learner.{key}", least=least)
    if connect_timeout_s is not None:
        _check_seconds("connect_timeout_s", connect_timeout_s)
    _check_seconds("run_ahead_timeout_s", run_ahead_timeout_s)
    _check_seconds("stall_s", stall_s)
    if max_bytes_per_s is not None and (
        isinstance(max_bytes_per_s, bool)
        or not isinstance(max_bytes_per_s, (int, float))
        or not LEAST_BYTES_PER_S <= max_bytes_per_s < float("inf")
    ):
        raise SettingError(
            f"max_bytes_per_s is {max_bytes_per_s!r:.80}",
            where="Learner.max_bytes_per_s",
            fix=f"use a number of bytes a second, {LEAST_BYTES_PER_S} or more, or None",
        )


def check_switches(**switches: object) -> None:
    """Raises :class:`SettingError` for one that is neither True nor False: a text would count as True, "no" too."""
    for key, value in switches.items():
        if not isinstance(value, bool):
            raise SettingError(f"{key} is {value!r:.80}", where=f"Learner.{key}", fix="use True or False")


def check_papers(book: AddressBook, **files: object) -> None:
    """Raises :class:`SettingError` for papers that nobody would look at: those of https, where all is plain http.

    A syncer that is found by its directory may come back with https.
    """
    given = [key for key, file in files.items() if file is not None]
    if given and isinstance(book, Fixed) and not any(address.secure for address in book.addresses()):
        where = ", ".join(map(str, book.addresses()))
        raise SettingError(
            f"{given[0]} is given, but {where} is plain http, where nothing is checked",
            where=f"Learner.{given[0]}",
            fix=f"write {where.replace('http://', 'https://')}, or leave {' and '.join(given)} out",
        )


def check_for_mailbox(*, donate: str | None, token: str | None, papers: Sequence[object]) -> None:
    """What a learner that writes to a mailbox may not be told. Raises :class:`SettingError`."""
    if donate not in (None, "auto"):
        raise SettingError(
            "a learner that writes to a mailbox gives no state to others",
            where="Learner.donate",
            fix='use "auto" or None, and checkpoints=DIR for a state of its own',
        )
    if token is not None or any(paper is not None for paper in papers):
        raise SettingError(
            "a mailbox is shown neither token nor certificate",
            where="Learner.syncer",
            fix="leave them out: the store's own credentials say who may write there",
        )


def refuse_ranks_by_mail() -> None:
    """Raises :class:`SettingError`."""
    raise SettingError(
        "this learner has several ranks, and a mailbox takes whole fragments from one",
        where="Learner.syncer",
        fix="use a syncer's http address, or a learner of one rank",
    )


def check_exposure(syncers: Sequence[SyncerAddress], *, allow_plaintext: bool) -> None:
    """Weights and secrets leave this machine encrypted, unless somebody has said otherwise by name. Raises
    :class:`SettingError`."""
    if not isinstance(allow_plaintext, bool):
        raise SettingError(
            f"allow_plaintext is {allow_plaintext!r:.80}", where="Learner.allow_plaintext", fix="use True or False"
        )
    for syncer in syncers:
        if not (syncer.secure or syncer.is_loopback or allow_plaintext):
            bucket = isinstance(syncer, MailboxAddress)
            raise SettingError(
                "weights would travel to the store in plain text"
                if bucket
                else "weights and token would travel in plain text",
                where=str(syncer),
                fix="use endpoint=https://HOST, or say allow_plaintext"
                if bucket
                else "use https with ca_file (gruppetto certs makes one), or say allow_plaintext",
            )


def _check_seconds(key: str, limit_s: object) -> None:
    if isinstance(limit_s, bool) or not isinstance(limit_s, (int, float)) or not 0 < limit_s <= MAX_SECONDS:
        raise SettingError(
            f"{key} is {limit_s!r:.80}",
            where=f"Learner.{key}",
            fix=f"use a number of seconds above 0, {MAX_SECONDS:g} at most",
        )


def donation_place(
    donate: str | None,
    syncers: Sequence[SyncerAddress],
    *,
    token: str | None,
    has_optimizer: bool,
    has_certificate: bool = False,
) -> tuple[str, int] | None:
    """Host and port at which a learner gives its state to others; None if it gives none.

    ``"auto"``: this machine alone, and only if the syncer, at whichever of its addresses, is on it too. Raises
    :class:`SettingError`.

    >>> here, far = SyncerAddress.parse("http://127.0.0.1:7171"), SyncerAddress.parse("https://syncer.example")
    >>> [donation_place("auto", [where], token=None, has_optimizer=True) for where in (here, far)]
    [('127.0.0.1', 0), None]
    """
    if donate is None or (donate == "auto" and not (all(syncer.is_loopback for syncer in syncers) and has_optimizer)):
        return None
    if donate == "auto":
        return "127.0.0.1", 0
    where, use = "Learner.donate", 'use "auto", None, or the HOST:PORT under which other learners reach this one'
    try:
        if not isinstance(donate, str):
            raise AddressError("")
        host, port = host_and_port(donate)
    except AddressError:
        raise SettingError(f"donate is {donate!r:.80}", where=where, fix=use) from None
    if host in ("0.0.0.0", "::"):
        raise SettingError(f"nobody can reach {host}", where=where, fix=use)
    if not has_optimizer:
        raise SettingError("there is no optimizer whose state could be given", where=where, fix="pass the optimizer")
    if not is_loopback(host) and token is None and not has_certificate:
        raise SettingError(
            f"whoever reaches {donate} could read the weights",
            where=where,
            fix="give the syncer and its learners certificates, or a token",
        )
    return host, port
