"""The processes of a run: the syncer's place, each learner's pace, what becomes of those that die."""

from __future__ import annotations

from dataclasses import dataclass

from gruppetto.errors import AddressError, SettingError
from gruppetto.home import at_home
from gruppetto.numerics.deal import MAX_SHARDS
from gruppetto.runtime.checkpoint_timer import check_checkpoints
from gruppetto.runtime.mailbox.address import MailboxAddress, address_of
from gruppetto.runtime.pacing import LEAST_BYTES_PER_S

__all__ = ["LaunchChoice", "LearnerEntry", "SyncerPlace"]

MAX_STEP_S = 86_400.0
MAX_SLOWDOWN = 1e6
"""A step of milliseconds takes an hour then; a sleep knows no longer times than years."""
MAX_RESTARTS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncerPlace:
    """``[syncer]``: where it listens (HOST:PORT, port 0 for any free one), keeps its state, and finds its secrets."""

    listen: str = "127.0.0.1:0"
    state: str = "syncer"
    """A directory; a relative one lies in the run directory."""
    token_file: str | None = None
    """A file whose first line every learner has to show."""
    tls_cert: str | None = None
    tls_key: str | None = None
    certs: str | None = None
    """A directory of ``gruppetto certs``. The syncer serves with its certificate, and lets in whoever has one of his
    own, or a token of his own; learners and whoever looks find theirs there. See [security](security.md)."""
    allow_shared_token: bool = False
    """With TLS, let the one token of ``token_file`` do off this machine. Each learner can then speak for all others."""
    allow_plaintext: bool = False
    """Listen without TLS off this machine, and let learners dial so. Whoever is on the network can read and change the
    weights."""
    lease_s: float = 10.0
    """A standby takes over when the syncer has not renewed its lease for so long, though it is not known to be dead."""
    urls: tuple[str, ...] = ()
    """Where learners of other machines find it: its address, and those of its standbys, in the order to be tried.
    ``gruppetto learner --syncer`` says otherwise; a local run needs none."""
    mailbox: str = ""
    """``s3://BUCKET/PREFIX``: a place in an object store through which learners that cannot reach it exchange with it,
    besides those that can; see [mailbox](mailbox.md). With ``?endpoint=URL``, ``region=``, ``profile=`` or
    ``poll=SECONDS`` where needed."""
    shards: int = 1
    """Processes that serve the run together, each with fragments, state and rounds of its own; see
    [sharded syncer](sharded-syncer.md)."""
    snapshots_kept: int = 2
    """Older commits that are kept whole, at least ``run.sync_period`` rounds apart, in case newer ones are damaged."""
    checkpoint_every_s: float | None = None
    """Take a checkpoint of the whole run so often, if a round has passed; None: only when somebody asks for one."""
    checkpoints_kept: int = 2
    """Of those that were taken by themselves, so many of the newest stay. Those that somebody named stay anyway."""
    max_bytes_per_s: float | None = None
    """What all that learners download may leave at together, in bytes a second: some 90 % of the link leaves room for
    heartbeats where its queue is deep. Without it, as fast as the link takes it."""
    shared_memory: bool = True
    """Learners of the same user on the syncer's own machine copy tensors from its memory, and it from theirs: no socket
    is needed (Linux). Only where it listens on loopback, and what leaves is not held to a rate; who cannot see its
    memory does without."""

    def __post_init__(self) -> None:
        host, colon, port = self.listen.rpartition(":")
        if not colon or not host or not (port.isascii() and port.isdigit() and int(port) < 65536):
            raise SettingError(
                f"is {self.listen!r}", where="syncer.listen", fix="use HOST:PORT, for example 127.0.0.1:7171"
            )
        if not 0 < self.lease_s <= 86_400:
            raise SettingError(f"is {self.lease_s}", where="syncer.lease_s", fix="use more than 0 seconds, up to a day")
        if not 0 <= self.snapshots_kept <= 1000:
            raise SettingError(f"is {self.snapshots_kept}", where="syncer.snapshots_kept", fix="use 0 to 1000")
        check_checkpoints(self.checkpoint_every_s, self.checkpoints_kept, self.shards)
        if self.max_bytes_per_s is not None and not LEAST_BYTES_PER_S <= self.max_bytes_per_s < float("inf"):
            raise SettingError(
                f"is {self.max_bytes_per_s}",
                where="syncer.max_bytes_per_s",
                fix=f"use {LEAST_BYTES_PER_S} or more, or leave it out",
            )
        if not 1 <= self.shards <= MAX_SHARDS:
            raise SettingError(f"is {self.shards}", where="syncer.shards", fix=f"use 1 to {MAX_SHARDS}")
        for i, url in enumerate(self.urls):
            try:
                address_of(url)
            except AddressError as error:
                raise SettingError(error.what, where=f"syncer.urls[{i}]", fix=error.fix) from error
        if self.mailbox:
            try:
                MailboxAddress.parse(self.mailbox)
            except AddressError as error:
                raise SettingError(error.what, where="syncer.mailbox", fix=error.fix) from error
        if not self.state:
            raise SettingError("is empty", where="syncer.state", fix="name a directory")
        if self.state.startswith("~"):  # elsewhere it is put behind the run directory, as what is absolute cannot be
            object.__setattr__(self, "state", str(at_home(self.state)))
        if (self.tls_cert is None) != (self.tls_key is None):
            raise SettingError("one of tls_cert and tls_key is missing", where="syncer.tls_cert", fix="give both")
        if self.certs == "":
            raise SettingError("is empty", where="syncer.certs", fix="name a directory of gruppetto certs")


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchChoice:
    """``[launch]``: what a run does with a learner or a syncer that dies, and where an engine puts the syncer."""

    restart: bool = True
    """Start it again, after 0.5 s, then after twice as long each time, up to 30 s; 15 s of life are a new start."""
    max_restarts: int = 5
    """A process that has died so often without ever having taken part is given up."""
    standby: bool = False
    """Keep a second syncer in waiting, which takes over at once when the first one dies; then another one waits."""
    syncer_resources: tuple[tuple[str, float], ...] = ()
    """What a machine must have to run the syncer, as labels of the engine: ``[["big-disk", 1]]``. It takes one
    processor."""
    standby_resources: tuple[tuple[str, float], ...] = ()
    """The same for the one in waiting; on another machine it survives that one's loss."""

    def __post_init__(self) -> None:
        if not 1 <= self.max_restarts <= MAX_RESTARTS:
            raise SettingError(
                f"is {self.max_restarts}",
                where="launch.max_restarts",
                fix=f"use 1 to {MAX_RESTARTS}, or launch.restart = false",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerEntry:
    """``[[learner]]``: a learner of a local run. ``slowdown`` 2 makes every step take twice as long."""

    name: str
    slowdown: float = 1.0
    min_step_s: float = 0.0
    """A step lasts at least so long; the rest is slept. For fault experiments on a machine that many learners share: a
    step that is late is then one that was held up, not one that got no processor."""

    def __post_init__(self) -> None:
        allowed = all(c.isascii() and (c.isalnum() or c in "._-") for c in self.name)
        # Not . or .. or their like: a learner's name is a directory of the run.
        if not (allowed and len(self.name) <= 128 and any(c.isalnum() for c in self.name)):
            raise SettingError(
                f"is {self.name!r}",
                where="learner.name",
                fix="use 1 to 128 letters, digits or . _ -, at least one letter or digit",
            )
        if not 1 <= self.slowdown <= MAX_SLOWDOWN:
            raise SettingError(
                f"is {self.slowdown}", where="learner.slowdown", fix=f"use 1 or more, up to {MAX_SLOWDOWN:g}"
            )
        if not 0 <= self.min_step_s <= MAX_STEP_S:
            raise SettingError(
                f"is {self.min_step_s}", where="learner.min_step_s", fix=f"use seconds, 0 to {MAX_STEP_S:g}"
            )
