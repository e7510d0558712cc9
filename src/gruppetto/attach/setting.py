"""What a learner may be told; see :class:`gruppetto.Learner` for what each of it means."""

from __future__ import annotations

import os
import re
import socket
from typing import SupportsIndex

from torch import nn

from gruppetto.attach.counting import whole_number
from gruppetto.errors import SettingError
from gruppetto.runtime.wire import is_name

__all__ = ["check_settings", "default_name"]

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


def _check_seconds(key: str, limit_s: object) -> None:
    if isinstance(limit_s, bool) or not isinstance(limit_s, (int, float)) or not 0 < limit_s <= MAX_SECONDS:
        raise SettingError(
            f"{key} is {limit_s!r:.80}",
            where=f"Learner.{key}",
            fix=f"use a number of seconds above 0, {MAX_SECONDS:g} at most",
        )
