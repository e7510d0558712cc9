"""What a learner may be told; see :class:`gruppetto.Learner` for what each of it means."""

from __future__ import annotations

import math
import os
import re
import socket

from gruppetto.errors import SettingError
from gruppetto.runtime.wire import is_name

__all__ = ["check_settings", "default_name"]


def default_name() -> str:
    """New for every process, and tells where it runs."""
    host = re.sub(r"[^A-Za-z0-9._-]", "-", socket.gethostname())[:64] or "learner"
    return f"{host}-{os.getpid()}"


def check_settings(
    *,
    name: str,
    on_disconnect: str,
    tokens_per_step: int | None,
    max_run_ahead: int | None,
    connect_timeout_s: float | None,
    run_ahead_timeout_s: float,
    stall_s: float,
) -> None:
    if not is_name(name):
        raise SettingError(f"name is {name!r}", where="Learner.name", fix="use 1 to 128 letters, digits or . _ -")
    if on_disconnect not in ("keep-training", "raise"):
        raise SettingError(
            f"on_disconnect is {on_disconnect!r}", where="Learner.on_disconnect", fix='use "keep-training" or "raise"'
        )
    for key, least, value in (("tokens_per_step", 1, tokens_per_step), ("max_run_ahead", 0, max_run_ahead)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
            raise SettingError(
                f"{key} is {value!r}", where=f"Learner.{key}", fix=f"use a whole number, {least} or more"
            )
    seconds = {"connect_timeout_s": connect_timeout_s, "run_ahead_timeout_s": run_ahead_timeout_s, "stall_s": stall_s}
    for key, limit_s in seconds.items():
        if limit_s is not None and not (limit_s > 0 and math.isfinite(limit_s)):
            raise SettingError(f"{key} is {limit_s!r}", where=f"Learner.{key}", fix="use a number of seconds above 0")
