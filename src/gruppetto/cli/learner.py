"""``gruppetto learner RUN.toml --syncer URL --name NAME``"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from gruppetto.cli.flags import exactly_one, log_to_stderr, overrides_of, read_flags
from gruppetto.cli.parent import end_with_parent, leave_on_sigterm
from gruppetto.errors import AddressError, UserError

__all__ = ["main"]

ENDPOINT_PATIENCE_S = 120.0
POLL_S = 0.1


@dataclass(frozen=True, kw_only=True)
class Flags:
    """Train as one learner of a run until its last round."""

    run: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN.toml")] = ()
    """The run's settings: model, data, inner optimizer."""
    syncer: Annotated[str, tyro.conf.arg(metavar="URL|DIR")] = ""
    """The syncer's address, or its state directory on this machine."""
    name: Annotated[str, tyro.conf.arg(metavar="NAME")] = ""
    """This learner's name in the run; a [[learner]] entry of that name sets its pace."""
    token_file: Annotated[str | None, tyro.conf.arg(metavar="FILE")] = None
    """A file whose first line is the syncer's token."""
    cache: Annotated[str, tyro.conf.arg(metavar="DIR")] = "~/.cache/gruppetto"
    """Where tokenized text is kept between runs."""
    set: Annotated[tuple[str, ...], tyro.conf.arg(metavar="TABLE.KEY=VALUE")] = ()
    """Change one setting; may be given several times."""
    follow_parent: bool = False
    """Stop when standard input closes."""


def main(arguments: Sequence[str]) -> int:
    flags = read_flags(Flags, arguments, "learner")
    file = Path(exactly_one(flags.run, "RUN.toml", "learner"))
    for name in ("syncer", "name"):
        if not getattr(flags, name):
            raise UserError(f"--{name} is missing", where="gruppetto learner", fix="give it")
    log_to_stderr()
    leave_on_sigterm()
    if flags.follow_parent:
        end_with_parent()
    from gruppetto.config import LearnerEntry, load_run
    from gruppetto.launch.ask import read_token

    overrides = overrides_of(flags.set, {"syncer.token_file": flags.token_file})
    config = load_run(file, overrides=overrides)
    entry = next((e for e in config.learners if e.name == flags.name), None) or LearnerEntry(name=flags.name)

    # Seconds of imports; the syncer starts meanwhile.
    from gruppetto.launch.reference import ride
    from gruppetto.runtime.clock import MonotonicClock

    ride(
        config,
        entry,
        syncer=_address(flags.syncer),
        token=read_token(config.syncer.token_file),
        cache=Path(flags.cache).expanduser(),
        clock=MonotonicClock(),
    )
    return 0


def _address(syncer: str) -> str:
    """A URL as it is; for a directory, the address that the syncer writes there when it listens."""
    if "://" in syncer or not ("/" in syncer or Path(syncer).is_dir()):
        return syncer
    from gruppetto.launch.ask import find_endpoint
    from gruppetto.runtime.clock import MonotonicClock

    clock, pause = MonotonicClock(), threading.Event()
    while (endpoint := find_endpoint(Path(syncer))) is None:
        if clock.now() > ENDPOINT_PATIENCE_S:
            raise AddressError(
                f"no syncer has said in {ENDPOINT_PATIENCE_S:g} s where it listens", where=syncer, fix="start one"
            )
        pause.wait(POLL_S)
    return endpoint.url
