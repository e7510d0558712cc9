"""The file in a state directory that says where its syncer listens."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from gruppetto.files import content_of
from gruppetto.runtime.address_book import ENDPOINT_FILE
from gruppetto.runtime.durable import write_durably
from gruppetto.runtime.store import cannot_write

__all__ = ["Endpoint", "forget_endpoint", "write_endpoint"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where a syncer listens. Written to endpoint.json in its state directory while it does."""

    url: str
    run_id: str
    epoch: int
    pid: int
    control: str = field(repr=False)
    """Who can read it on this machine may ask for checkpoints; new in every life of the syncer."""


def write_endpoint(state: Path, endpoint: Endpoint) -> None:
    path = state / ENDPOINT_FILE
    try:
        write_durably(path, [_spelled(endpoint)])
    except OSError as wrong:
        raise cannot_write(path, wrong) from wrong


def forget_endpoint(state: Path, endpoint: Endpoint) -> None:
    """Unless it is another syncer's by now."""
    path = state / ENDPOINT_FILE
    with suppress(OSError):
        if content_of(path) == _spelled(endpoint):
            path.unlink()


def _spelled(endpoint: Endpoint) -> bytes:
    return json.dumps(asdict(endpoint)).encode()
