"""``gruppetto dashboard RUNDIR|URL``"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from gruppetto.cli.flags import exactly_one, positional, read_flags, refuse_missing
from gruppetto.dashboard.serving import directory_app, serve_pages, syncer_app, trace_of
from gruppetto.launch.papers import looker_papers
from gruppetto.runtime.address import SyncerAddress

__all__ = ["main"]


@dataclass(frozen=True, kw_only=True)
class Flags:
    """Show a run as a page: one that goes on, one that has ended, or a simulated one."""

    target: Annotated[tuple[str, ...], tyro.conf.Positional, positional("RUNDIR|URL")] = ()
    """A run directory or a trace; or the address of a syncer, which has the page at /dashboard/ by itself too."""
    listen: Annotated[str, tyro.conf.arg(metavar="HOST:PORT")] = "127.0.0.1:7180"
    """Where to show it. Port 0 takes any free one."""
    token_file: Annotated[str | None, tyro.conf.arg(metavar="FILE")] = None
    """A file whose first line is the token: the syncer's, and what lookers have to show when the page is reachable from
    other machines."""
    certs: Annotated[str | None, tyro.conf.arg(metavar="DIR")] = None
    """A directory of gruppetto certs: the authority that made the syncer's, and an operator's or viewer's own."""
    allow_plaintext: bool = False
    """Listen off this machine without TLS, knowingly."""


def main(arguments: Sequence[str]) -> int:
    flags = read_flags(Flags, arguments, "dashboard")
    target = exactly_one(flags.target, "RUNDIR or URL", "dashboard")
    papers = looker_papers(flags.certs, flags.token_file)
    token = papers.token
    if Path(target).exists():
        app = directory_app(trace_of(Path(target)), token)
    else:
        refuse_missing(target)
        asked = None if SyncerAddress.parse(f"http://{flags.listen}").is_loopback else token
        app = syncer_app(SyncerAddress.parse(target), token, asked, tls=papers.tls)

    def ready(url: str) -> None:
        print(f"{url} shows {target}", file=sys.stderr, flush=True)

    serve_pages(app, flags.listen, on_ready=ready, token=token, allow_plaintext=flags.allow_plaintext)
    return 0
