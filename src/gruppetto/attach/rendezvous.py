"""How the ranks of a restarted learner find each other, and nobody who is gone.

``torchrun`` starts all ranks again in one and the same key-value store, and ``init_process_group`` reads the addresses
of the others from it under the same names as before: a rank that is early finds those of processes that have died, and
the attempt fails ("connectFullMesh"). The more ranks, the surer; each such failure uses up a restart. Here every
attempt has a name of its own, which nobody can have left behind.
"""

from __future__ import annotations

import logging
import os
import secrets
import time
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from gruppetto.errors import RunFailed

__all__ = ["init_process_group", "may_not_come_back", "name_of_attempt", "say_if_it_may_not_come_back"]

log = logging.getLogger("gruppetto.learner")

PATIENCE_S = 600.0
"""For all ranks to be there. As long as torch's own groups."""
LOOK_S = 0.02
"""Between two looks of rank 0 at who has come."""
_met_here = False
"""Whether this process has called :func:`init_process_group`."""


def init_process_group(backend: str | None = None, *, timeout_s: float = PATIENCE_S, **options: Any) -> None:
    """``torch.distributed.init_process_group`` for what ``torchrun`` starts, that also holds when it starts it again.

    ``options`` are torch's own, but for those that say where the ranks meet. Raises :class:`RunFailed` if they are not
    all there within ``timeout_s``.
    """
    global _met_here
    store, rank, size = next(rendezvous("env://", timeout=timedelta(seconds=timeout_s)))
    store.set_timeout(timedelta(seconds=timeout_s))
    name = name_of_attempt(store, rank, size, patience_s=timeout_s)
    own = dist.PrefixStore(name, store)  # type: ignore[attr-defined]
    dist.init_process_group(
        backend, store=own, rank=rank, world_size=size, timeout=timedelta(seconds=timeout_s), **options
    )
    _met_here = True


def may_not_come_back(environment: Mapping[str, str], *, met_here: bool) -> bool:
    """``torchrun`` will start these ranks again, and they have met in a way in which that may hang or fail.

    >>> may_not_come_back({"TORCHELASTIC_MAX_RESTARTS": "3"}, met_here=False)
    True
    >>> may_not_come_back({"TORCHELASTIC_MAX_RESTARTS": "0"}, met_here=False)
    False
    """
    return not met_here and environment.get("TORCHELASTIC_MAX_RESTARTS", "0") not in ("", "0")


def say_if_it_may_not_come_back() -> None:
    """In one line, before it is too late."""
    if may_not_come_back(os.environ, met_here=_met_here):
        log.warning(
            "torchrun is to start these ranks again when one dies, and with torch's own init_process_group that may "
            "hang or fail: call gruppetto.attach.rendezvous.init_process_group() in its place"
        )


def name_of_attempt(store: Any, rank: int, size: int, *, patience_s: float = PATIENCE_S) -> str:
    """A name that all ranks of this attempt, and none before it, have in ``store``. Collective.

    Every rank knocks with a number of its own, and rank 0 answers under that number: whatever an earlier attempt has
    left says nothing to it. A number that was left is answered too, which nobody hears, and asked for again until the
    living rank has written over it.
    """
    here = f"gruppetto/attempt/{size}"
    if rank > 0:
        knock = secrets.token_hex(8)
        store.set(f"{here}/knock/{rank}", knock)
        name = _wait(store, f"{here}/answer/{rank}/{knock}", patience_s)
        store.set(f"{here}/heard/{rank}/{name}", "")
        return name
    name = f"gruppetto/attempt/{secrets.token_hex(8)}"
    answered: dict[int, str] = {}
    waiting = set(range(1, size))
    looks = max(1, int(patience_s / LOOK_S))
    for _ in range(looks):
        for other in sorted(waiting):
            if store.check([f"{here}/heard/{other}/{name}"]):
                waiting.discard(other)
            elif store.check([f"{here}/knock/{other}"]):
                knock = store.get(f"{here}/knock/{other}").decode()
                if answered.get(other) != knock:
                    store.set(f"{here}/answer/{other}/{knock}", name)
                    answered[other] = knock
        if not waiting:
            return name
        time.sleep(LOOK_S)
    raise RunFailed(f"rank {min(waiting)} has not come in {patience_s:g} s; start all ranks of this learner together")


def _wait(store: Any, key: str, patience_s: float) -> str:
    try:
        store.wait([key], timedelta(seconds=patience_s))
    except Exception as wrong:  # of a kind that depends on the store
        raise RunFailed(f"rank 0 has not come in {patience_s:g} s; start all ranks of this learner together") from wrong
    found: bytes = store.get(key)
    return found.decode()
