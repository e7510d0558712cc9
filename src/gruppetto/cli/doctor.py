"""``gruppetto doctor``"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import tyro

from gruppetto.cli.flags import print_json, read_flags
from gruppetto.errors import StateError, UserError
from gruppetto.home import at_home
from gruppetto.launch.checkup import examine, measure_line
from gruppetto.launch.measuring import measure_machine
from gruppetto.launch.papers import looker_papers
from gruppetto.runtime.address import SyncerAddress
from gruppetto.runtime.clock import MonotonicClock
from gruppetto.runtime.security.places import Papers
from gruppetto.runtime.setting import DEFAULT_LISTEN

__all__ = ["main"]


@dataclass(frozen=True, kw_only=True)
class Flags:
    """Look whether Gruppetto will work on this machine, and say what to do where it will not. Exit 1 if so."""

    syncer: Annotated[str | None, tyro.conf.arg(metavar="URL")] = None
    """A syncer that this machine is to reach: its clock, latency and bandwidth are looked at too."""
    token_file: Annotated[str | None, tyro.conf.arg(metavar="FILE")] = None
    """A file whose first line is the syncer's token."""
    certs: Annotated[str | None, tyro.conf.arg(metavar="DIR")] = None
    """A directory of gruppetto certs: what expires there is said, and a syncer is asked with its operator's papers."""
    directory: Path = Path()
    """Where a run or a syncer would keep its files."""
    listen: Annotated[str, tyro.conf.arg(metavar="HOST:PORT")] = DEFAULT_LISTEN
    """Where a syncer would listen."""
    measure: bool = False
    """Measure rates of merging, disk, link and a learner's start, for gruppetto plan and simulate --machine."""
    out: Annotated[Path | None, tyro.conf.arg(metavar="machine.json")] = None
    """Write what was measured here."""
    json: bool = False
    """One JSON object."""


def main(arguments: Sequence[str]) -> int:
    flags = read_flags(Flags, arguments, "doctor")
    if flags.out is not None and not flags.measure:
        raise UserError("nothing is measured", where="--out", fix="say --measure too")
    if flags.out is not None and flags.out.exists():
        raise StateError("is there already", where=str(flags.out), fix="name another file")
    papers, clock = _papers(flags), MonotonicClock()
    findings = []
    for finding in examine(
        clock,
        directory=flags.directory,
        listen=flags.listen,
        syncer=flags.syncer,
        token=papers.token,
        tls=papers.tls,
        certs=at_home(flags.certs) if flags.certs else None,
    ):
        findings.append(finding)
        if not flags.json:
            print(finding, flush=True)
    found: dict[str, object] = {"findings": [asdict(finding) for finding in findings]}
    wrong = any(finding.level == "wrong" for finding in findings)
    if flags.measure and not wrong:
        line = None
        if flags.syncer is not None:
            line = measure_line(SyncerAddress.parse_all(flags.syncer)[0], clock, token=papers.token, tls=papers.tls)
            line = line if line.bytes_per_s else None
        machine = measure_machine(flags.directory, clock, line=line, progress=_progress)
        found["machine"] = asdict(machine)
        if flags.out is not None:
            flags.out.parent.mkdir(parents=True, exist_ok=True)
            flags.out.write_text(machine.to_json(), encoding="utf-8")
        if not flags.json:
            print(str(flags.out) if flags.out is not None else machine.to_json(), end="\n" if flags.out else "")
    if flags.json:
        print_json({"ok": not wrong, **found})
    return 1 if wrong else 0


def _papers(flags: Flags) -> Papers:
    """Nobody's, where no syncer is to be asked: a host may have no papers but its own."""
    return looker_papers(flags.certs, flags.token_file) if flags.syncer is not None else Papers()


def _progress(text: str) -> None:
    print(f"measuring: {text} …", file=sys.stderr, flush=True)
