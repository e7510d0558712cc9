"""``gruppetto learner RUN.toml --syncer URL --name NAME``"""

from __future__ import annotations

import signal
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from gruppetto.cli.flags import exactly_one, log_to_stderr, overrides_of, positional, read_flags
from gruppetto.cli.parent import end_with_parent
from gruppetto.errors import AddressError, Stopped, UserError
from gruppetto.home import at_home

if TYPE_CHECKING:
    from gruppetto.config import RunConfig
    from gruppetto.runtime.security.places import Papers

__all__ = ["main"]

ENDPOINT_PATIENCE_S = 120.0
POLL_S = 0.1
LOCK = ".lock"
"""Every run directory has one (:mod:`gruppetto.launch.place`)."""


@dataclass(frozen=True, kw_only=True)
class Flags:
    """Train as one learner of a run until its last round."""

    run: Annotated[tuple[str, ...], tyro.conf.Positional, positional("RUN.toml")] = ()
    """The run's settings: model, data, inner optimizer."""
    syncer: Annotated[str, tyro.conf.arg(metavar="URL[,URL]|DIR|s3://...")] = ""
    """The syncer's address, with those of its standbys; or its state directory on this machine; or the mailbox through
    which it serves. Without it those of the file hold (syncer.urls)."""
    name: Annotated[str, tyro.conf.arg(metavar="NAME")] = ""
    """This learner's name in the run; a [[learner]] entry of that name sets its pace."""
    token_file: Annotated[str | None, tyro.conf.arg(metavar="FILE")] = None
    """A file whose first line is the syncer's token."""
    certs: Annotated[str | None, tyro.conf.arg(metavar="DIR")] = None
    """A directory of gruppetto certs: the authority by which the syncer is known, and this learner's own papers."""
    allow_plaintext: bool = False
    """Speak without TLS to a syncer off this machine, knowingly."""
    cache: Annotated[str, tyro.conf.arg(metavar="DIR")] = "~/.cache/gruppetto"
    """Where tokenized text is kept between runs."""
    checkpoints: Annotated[str | None, tyro.conf.arg(metavar="DIR")] = None
    """Where it saves its state now and then; in a run directory beside its log unless said otherwise."""
    set: Annotated[tuple[str, ...], tyro.conf.arg(metavar="TABLE.KEY=VALUE")] = ()
    """Change one setting; may be given several times."""
    parts: Annotated[str | None, tyro.conf.arg(metavar="DIR")] = None
    """Where its parts of checkpoints of the whole run are written; in a run directory beside its log, else
    parts/NAME."""
    from_: Annotated[str | None, tyro.conf.arg(name="from", metavar="CHECKPOINT")] = None
    """Go on from a checkpoint of the whole run, or from this learner's part of it."""
    follow_parent: bool = False
    """Stop when standard input closes."""


def main(arguments: Sequence[str]) -> int:
    flags = read_flags(Flags, arguments, "learner")
    file = Path(exactly_one(flags.run, "RUN.toml", "learner"))
    if not flags.name:
        raise UserError("--name is missing", where="gruppetto learner", fix="give it")
    log_to_stderr()
    if flags.follow_parent:
        end_with_parent()
    part = _part(flags)
    config = _config(flags, file)
    syncer = flags.syncer or ",".join(config.syncer.urls)
    if not syncer:
        raise UserError("--syncer is missing", where="gruppetto learner", fix="give it, or set syncer.urls in the file")

    # Seconds of imports; the syncer starts meanwhile.
    from gruppetto.config import LearnerEntry
    from gruppetto.launch.reference import ride
    from gruppetto.runtime.clock import MonotonicClock

    entry = next((e for e in config.learners if e.name == flags.name), None) or LearnerEntry(name=flags.name)
    papers = _papers(config, syncer, flags.name)
    arrived = ride(
        config,
        entry,
        syncer=_address(syncer),
        papers=papers,
        cache=at_home(flags.cache),
        clock=MonotonicClock(),
        checkpoints=at_home(flags.checkpoints) if flags.checkpoints else _place_for(file, flags.name),
        parts=at_home(flags.parts) if flags.parts else _parts_of(file, flags.name),
        part=part,
        run=file.parent if _is_run_directory(file.parent) else None,
    )
    if not arrived:
        raise Stopped(signal.SIGTERM, more=f"; {flags.name} has left the run")
    return 0


def _part(flags: Flags) -> Path | None:
    """The part of a checkpoint from which it goes on, if it is to."""
    if flags.from_ is None:
        return None
    from gruppetto.launch.resuming import part_of

    return part_of(Path(flags.from_), flags.name)


def _config(flags: Flags, file: Path) -> RunConfig:
    from gruppetto.config import load_run

    overrides = overrides_of(
        flags.set,
        {
            "syncer.token_file": flags.token_file,
            "syncer.certs": flags.certs,
            "syncer.allow_plaintext": "true" if flags.allow_plaintext else None,
        },
    )
    return load_run(file, overrides=overrides)


def _papers(config: RunConfig, syncer: str, name: str) -> Papers:
    from gruppetto.launch.papers import learner_papers
    from gruppetto.runtime.mailbox.address import SCHEME
    from gruppetto.runtime.security.places import Papers

    if syncer.startswith(SCHEME):
        return Papers()  # the store's own credentials say who may write there
    return learner_papers(config.syncer.certs, config.syncer.token_file, name)


def _parts_of(file: Path, name: str) -> Path:
    """Beside its own checkpoints, which are another thing."""
    own = _place_for(file, name)
    return Path("parts") / name if own is None else own.with_name("parts")


def _place_for(file: Path, name: str) -> Path | None:
    """Among what else a run directory keeps of this learner; None if ``file`` does not lie in one."""
    return file.parent / "learners" / name / "checkpoints" if _is_run_directory(file.parent) else None


def _is_run_directory(directory: Path) -> bool:
    return (directory / LOCK).exists()


def _address(syncer: str) -> str:
    """As it is; of a directory once a syncer has written there where it listens, which it may do anew at any time."""
    from gruppetto.launch.ask import find_endpoint
    from gruppetto.runtime.address_book import is_directory
    from gruppetto.runtime.clock import MonotonicClock

    if not is_directory(syncer):
        return syncer

    clock, pause = MonotonicClock(), threading.Event()
    while find_endpoint(Path(syncer)) is None:
        if clock.now() > ENDPOINT_PATIENCE_S:
            raise AddressError(
                f"no syncer has said in {ENDPOINT_PATIENCE_S:g} s where it listens", where=syncer, fix="start one"
            )
        pause.wait(POLL_S)
    return syncer
