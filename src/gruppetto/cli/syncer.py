"""``gruppetto syncer``"""

from __future__ import annotations

import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import msgspec
import tyro

from gruppetto.cli.flags import at_most_one, log_to_stderr, overrides_of, positional, read_flags
from gruppetto.cli.naming import as_typed, said_in
from gruppetto.cli.parent import end_with_parent
from gruppetto.config import RunConfig, load_run, to_toml
from gruppetto.config.load import read_whole_toml
from gruppetto.config.run import OuterChoice, SyncerPlace
from gruppetto.config.write import END
from gruppetto.dashboard.annex import annex
from gruppetto.errors import SettingError, Stopped
from gruppetto.home import at_home
from gruppetto.launch.ask import read_token
from gruppetto.launch.syncers import suffix_of
from gruppetto.numerics.deal import ONE, Shard
from gruppetto.runtime.clock import MonotonicClock, wall_time_s
from gruppetto.runtime.durable import force_directory, write_durably
from gruppetto.runtime.run_checkpoint import goes_on_from, install
from gruppetto.runtime.serving import Endpoint, run_syncer
from gruppetto.runtime.setting import DEFAULT_LISTEN, SyncerSetting
from gruppetto.runtime.standby import Takeover
from gruppetto.trace.log import TraceWriter

__all__ = ["main"]

KEPT = "run.toml"
"""The settings of a run, in its state directory."""
OPTIONS = {
    f"syncer.{name}": f"--{name.replace('_', '-')}"
    for name in ("listen", "mailbox", "state", "token_file", "tls_cert", "tls_key", "certs")
}
"""Settings that have a flag of their own."""


@dataclass(frozen=True, kw_only=True)
class Flags:
    """Serve a run. Without a file the defaults hold, and the model's layout and first weights come from the first
    learner."""

    run: Annotated[tuple[str, ...], tyro.conf.Positional, positional("[RUN.toml]")] = ()
    """The run's settings."""
    listen: Annotated[str | None, tyro.conf.arg(metavar="HOST:PORT")] = None
    """Where to listen; 127.0.0.1:7171 by default. Port 0 takes any free one."""
    mailbox: Annotated[str | None, tyro.conf.arg(metavar="s3://BUCKET/PREFIX")] = None
    """A place in an object store through which learners reach it too, where nothing can listen for them."""
    state: Annotated[str | None, tyro.conf.arg(metavar="DIR")] = None
    """Where the durable state is kept; a run that lies there already is continued."""
    trace: Annotated[str | None, tyro.conf.arg(metavar="FILE")] = None
    """Record everything that is decided; an existing trace is continued."""
    token_file: Annotated[str | None, tyro.conf.arg(metavar="FILE")] = None
    """A file whose first line every learner has to show."""
    tls_cert: Annotated[str | None, tyro.conf.arg(metavar="FILE")] = None
    """The certificate (PEM) to serve with."""
    tls_key: Annotated[str | None, tyro.conf.arg(metavar="FILE")] = None
    """Its key (PEM, not encrypted)."""
    certs: Annotated[str | None, tyro.conf.arg(metavar="DIR")] = None
    """A directory of gruppetto certs: serve with its certificate, and let in who has an identity of his own there."""
    allow_shared_token: bool = False
    """With TLS, let one token for all do off this machine, knowingly."""
    allow_plaintext: bool = False
    """Listen without TLS or identities off this machine, knowingly."""
    shard: Annotated[str | None, tyro.conf.arg(metavar="NUMBER/OF")] = None
    """Which of several syncers this is that serve the run together; 1/S is the first, where the others are known."""
    directory: Annotated[str | None, tyro.conf.arg(metavar="URL[,URL]")] = None
    """The address of the first of them, with those of its standbys; for all others."""
    standby: bool = False
    """Wait until the syncer that uses the same state directory is gone, then take over, and go on with its trace."""
    exit_when_finished: bool = False
    """Stop after the last round instead of keeping the last weights on offer."""
    set: Annotated[tuple[str, ...], tyro.conf.arg(metavar="TABLE.KEY=VALUE")] = ()
    """Change one setting; may be given several times."""
    from_: Annotated[str | None, tyro.conf.arg(name="from", metavar="CHECKPOINT")] = None
    """Go on from the syncer's part of a checkpoint of the whole run; once, so that it may stay in a service file."""
    follow_parent: bool = False
    """Stop when standard input closes."""


def main(arguments: Sequence[str]) -> int:
    flags = read_flags(Flags, arguments, "syncer")
    log_to_stderr()
    shard = ONE if flags.shard is None else Shard.parse(flags.shard)
    said = said_in(arguments)
    with as_typed({setting: option for setting, option in OPTIONS.items() if option in said}):
        config = _config(flags, shard)
        setting = _setting(config, shard, flags)
    if flags.from_ is not None and not goes_on_from(Path(flags.from_), setting.state):
        manifest = install(Path(flags.from_), setting.state)
        print(f"going on from checkpoint {manifest.mark}, round {manifest.round}", file=sys.stderr, flush=True)
    if flags.follow_parent:
        end_with_parent()
    number = (_stand_by if flags.standby else _serve)(config, setting, Path(flags.trace) if flags.trace else None)
    if number is not None:
        raise Stopped(number)
    return 0


def _config(flags: Flags, shard: Shard) -> RunConfig:
    """The run of a file, of the settings that an earlier start has kept, or of the defaults; and what the flags say."""
    file = at_most_one(flags.run, "RUN.toml", "syncer")
    kept = Path(flags.state or f"{SyncerPlace().state}{suffix_of(shard)}") / KEPT
    content: Mapping[str, object] | None = None
    if file is None and (kept.exists() or kept.is_symlink()):
        file, content = str(kept), _kept_settings(kept)
        print(f"the settings are those of {kept}, where nothing else is said", file=sys.stderr, flush=True)
    overrides = overrides_of(
        flags.set,
        {
            "syncer.listen": flags.listen or (None if file else DEFAULT_LISTEN),
            "syncer.mailbox": flags.mailbox,
            "syncer.state": flags.state,
            "syncer.token_file": flags.token_file,
            "syncer.tls_cert": flags.tls_cert,
            "syncer.tls_key": flags.tls_key,
            "syncer.certs": flags.certs,
            "syncer.allow_shared_token": "true" if flags.allow_shared_token else None,
            "syncer.allow_plaintext": "true" if flags.allow_plaintext else None,
        },
    )
    config = load_run(Path(file) if file else None, overrides=overrides, endless=True, content=content)
    return _sharded(config, shard, placed=flags.state is not None or content is not None)


def _serve(config: RunConfig, setting: SyncerSetting, trace: Path | None) -> signal.Signals | None:
    """Until the run or the process is to end; the number of the signal, if it was one."""
    with TraceWriter(trace, {"started_at": wall_time_s()}) as writer:
        return run_syncer(
            config.protocol,
            setting,
            trace=writer,
            on_ready=lambda endpoint: _ready(endpoint, config),
            annex=annex,
        )


def _stand_by(config: RunConfig, setting: SyncerSetting, trace: Path | None) -> signal.Signals | None:
    """The same, once the syncer in charge is gone; its trace is gone on with from then."""
    started_at, clock = wall_time_s(), MonotonicClock()
    with ExitStack() as opened:

        def open_trace(takeover: Takeover) -> TraceWriter:
            header = {"started_at": started_at, "took_over_at": started_at + clock.now()}
            return opened.enter_context(TraceWriter(trace, header, over=takeover.over))

        return run_syncer(
            config.protocol,
            setting,
            on_ready=lambda endpoint: _ready(endpoint, config),
            standby=open_trace,
            annex=annex,
        )


def _sharded(config: RunConfig, shard: Shard, *, placed: bool) -> RunConfig:
    """The run as this shard serves it, with its own state. Raises :class:`SettingError` for a run of other shards."""
    place = config.syncer
    if place.shards not in (1, shard.of):
        what = "it is not said which this is" if shard.is_whole else f"this is {shard}"
        raise SettingError(
            f"the run has {place.shards} shards, and {what}",
            where="--shard",
            fix=f"give --shard NUMBER/{place.shards}, or change syncer.shards",
        )
    own = place.state if placed else f"{place.state}{suffix_of(shard)}"
    return replace(config, syncer=replace(place, shards=shard.of, state=own))


def _setting(config: RunConfig, shard: Shard, flags: Flags) -> SyncerSetting:
    place = config.syncer
    resolved, _ = config.resolved_outer()
    # By its name, the syncer can say why it is this one.
    outer = config.outer.preset if config.outer == OuterChoice(preset=config.outer.preset) else resolved
    return SyncerSetting(
        state=Path(place.state),
        listen=place.listen,
        mailbox=place.mailbox,
        token=read_token(place.token_file),
        tls_cert=at_home(place.tls_cert) if place.tls_cert else None,
        tls_key=at_home(place.tls_key) if place.tls_key else None,
        identities=at_home(place.certs) if place.certs else None,
        allow_shared_token=place.allow_shared_token,
        allow_plaintext=place.allow_plaintext,
        fragmenter=config.fragments.how,
        merge=config.merge.rules,
        outer=outer,
        uplink=config.codec.uplink,
        downlink=config.codec.downlink,
        exit_when_finished=flags.exit_when_finished,
        shard=shard,
        directory=flags.directory or "",
        lease_s=place.lease_s,
        snapshots_kept=place.snapshots_kept,
        checkpoint_every_s=place.checkpoint_every_s,
        checkpoints_kept=place.checkpoints_kept,
        max_bytes_per_s=place.max_bytes_per_s,
        shared_memory=place.shared_memory,
        run={"train": msgspec.to_builtins(config.train)},
    )


def _kept_settings(kept: Path) -> Mapping[str, object]:
    """What an earlier start has kept; never silently the defaults. Raises :class:`SettingError`."""
    try:
        return read_whole_toml(kept)
    except SettingError as error:
        fix = "name the run's own RUN.toml, or remove this file to take the defaults"
        raise SettingError(
            f"does not hold the settings of this run ({error.what})", where=str(kept), fix=fix
        ) from error


def _ready(endpoint: Endpoint, config: RunConfig) -> None:
    """Say where it is, and keep the settings: a syncer started again without them must not change the run."""
    print(
        f"{endpoint.url} serves run {endpoint.run_id}; see it at {endpoint.url}/dashboard/", file=sys.stderr, flush=True
    )
    try:
        kept = Path(config.syncer.state) / KEPT
        write_durably(kept, [f"{to_toml(config)}\n{END}\n".encode()])
        force_directory(kept.parent)
    except OSError as error:
        print(f"the settings could not be kept ({error.strerror})", file=sys.stderr, flush=True)
