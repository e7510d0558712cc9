"""``gruppetto checkpoint URL|RUNDIR``"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from gruppetto.cli.flags import exactly_one, positional, print_json, read_flags, refuse_missing
from gruppetto.errors import StateError
from gruppetto.launch.ask import find_endpoint
from gruppetto.launch.ask_checkpoint import take_checkpoint
from gruppetto.launch.papers import looker_papers, looker_papers_in

__all__ = ["main"]


@dataclass(frozen=True, kw_only=True)
class Flags:
    """Take a checkpoint of a whole run while it goes on: syncer and every learner, at one consistent cut.

    Nobody waits for it. Who does not answer is left out, which is said.
    """

    target: Annotated[tuple[str, ...], tyro.conf.Positional, positional("URL|RUNDIR")] = ()
    """The address of a syncer, or a run directory on this machine."""
    name: Annotated[str, tyro.conf.arg(metavar="NAME")] = ""
    """What to call it; checkpoint-N by default."""
    token_file: Annotated[str | None, tyro.conf.arg(metavar="FILE")] = None
    """A file whose first line is the syncer's token. For a run directory of yours none is needed."""
    certs: Annotated[str | None, tyro.conf.arg(metavar="DIR")] = None
    """A directory of gruppetto certs: the authority that made the syncer's, and an operator's own (no viewer's)."""
    json: bool = False
    """One JSON object."""


def main(arguments: Sequence[str]) -> int:
    flags = read_flags(Flags, arguments, "checkpoint")
    target = exactly_one(flags.target, "URL or RUNDIR", "checkpoint")
    url = target
    if Path(target).is_dir():
        papers = looker_papers_in(Path(target), flags.certs, flags.token_file)
        secret = papers.token
        endpoint = find_endpoint(Path(target), living=True)  # a secret is for nobody who has taken its port
        if endpoint is None:
            raise StateError("no run goes on in it", where=target, fix="name the directory or the address of one")
        url, secret = endpoint.url, secret or endpoint.control or None
    else:
        refuse_missing(target)
        papers = looker_papers(flags.certs, flags.token_file)
        secret = papers.token
    report = take_checkpoint(url, secret=secret, name=flags.name, show=_show, tls=papers.tls)
    if flags.json:
        print_json(report)
    else:
        print(_text(report))
    return 0


def _show(waiting_for: str) -> None:
    print(f"waiting for {waiting_for}", file=sys.stderr, flush=True)


def _text(report: dict[str, Any]) -> str:
    lines = [f"{report['mark']}, round {report['round']}: {report['path']}"]
    lines += [f"  {name:<16} {part['part']}" for name, part in report["learners"].items()]
    lines += [f"  {name:<16} left out: {why}" for name, why in report["left_out"].items()]
    return "\n".join(lines)
