"""All that a run can be told, one table of RUN.toml per owner.

::

    [run]        the protocol (gruppetto.protocol.settings), and the mode
    [outer]      the syncer's optimizer            [merge]   rules by tensor name
    [fragments]  how the model is cut              [codec]   what travels in how many bits
    [syncer]     where the service listens and keeps its state
    [launch]     what a local run does with processes that die
    [train]      batches, evaluations, threads     [model] [data] [inner]   what each learner trains, on what, how
    [[learner]]  one learner: name, pace
    [[group]]    learners of one kind, for an engine: how many, how large, where
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from gruppetto.config.groups import GroupEntry
from gruppetto.config.merging import CodecChoice, FragmentsChoice, MergeChoice, OuterChoice
from gruppetto.config.processes import LaunchChoice, LearnerEntry, SyncerPlace
from gruppetto.errors import SettingError
from gruppetto.numerics.outer import OuterSetting
from gruppetto.protocol.settings import ProtocolSetting
from gruppetto.train.setting import TrainSetting

__all__ = [
    "CodecChoice",
    "FragmentsChoice",
    "LaunchChoice",
    "LearnerEntry",
    "MergeChoice",
    "Mode",
    "OuterChoice",
    "RunConfig",
    "SyncerPlace",
]

ALONE = GroupEntry(name="alone")
"""Of learners that are named in no group."""

Mode = Literal["decoupled", "single", "data-parallel", "diloco"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OuterChoice:
    """``[outer]``: a preset, of which single values may be changed.

    >>> OuterChoice(lr=0.3).resolve(rounds=None, sync_period=24)[0]
    OuterSetting(optimizer='nesterov', lr=0.3, momentum=0.9)
    """

    preset: str = "auto"
    """``auto`` goes by the number of outer steps that a fragment will see."""
    optimizer: str | None = None
    """``nesterov`` or ``sgd``."""
    lr: float | None = None
    """η."""
    momentum: float | None = None
    """μ."""

    def __post_init__(self) -> None:
        names = ("auto", *sorted(OUTER_PRESETS))
        if self.preset not in names:
            raise SettingError(f"is {self.preset!r}", where="outer.preset", fix=f"use one of {', '.join(names)}")
        # Impossible values are refused here, not when the syncer starts.
        self.resolve(rounds=None, sync_period=1)

    def resolve(self, *, rounds: int | None, sync_period: int) -> tuple[OuterSetting, str]:
        """The outer optimizer of a run and, in one sentence, why."""
        setting, why = choose_outer(self.preset, rounds, sync_period)
        changed = {
            name: value
            for name, value in (("optimizer", self.optimizer), ("lr", self.lr), ("momentum", self.momentum))
            if value is not None
        }
        if not changed:
            return setting, why
        if changed.get("optimizer") == "sgd" and "momentum" not in changed:
            changed["momentum"] = 0.0
        if changed.get("optimizer", setting.optimizer) == "nesterov" and setting.optimizer == "sgd":
            changed.setdefault("momentum", OUTER_PRESETS["paper"].momentum)
        return choose_outer(replace(setting, **changed), rounds, sync_period)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeChoice:
    """``[merge]``: ``rules = [["regex", "rule"], ...]``; the first that fits a tensor's name decides."""

    rules: tuple[tuple[str, str], ...] = ()
    """Pairs of regex and rule. Embeddings take ``mean`` and everything else ``rda`` unless a pair says otherwise."""

    def __post_init__(self) -> None:
        try:
            rule_for("", (), self.rules)
        except SettingError as error:
            raise SettingError(f"{error.where}: {error.what}", where="merge.rules", fix=error.fix) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class FragmentsChoice:
    """``[fragments]``: how the model is cut."""

    how: str = "balanced"
    """``balanced`` (largest tensor first into the smallest fragment), ``layer`` or ``tensor``."""

    def __post_init__(self) -> None:
        if self.how not in FRAGMENTERS:
            raise SettingError(
                f"is {self.how!r}", where="fragments.how", fix=f"use one of {', '.join(sorted(FRAGMENTERS))}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class CodecChoice:
    """``[codec]``: contributions travel as ``uplink``, global fragments as ``downlink``."""

    uplink: str = "bf16"
    """``fp32``, ``bf16``, or with a scale for each block of 128 elements ``int8`` (8.125 bits an element), ``int4`` or
    ``fp4-e3m0`` (4.125 bits). With a scale, what a contribution leaves unsaid is kept by its learner, four bytes an
    element, and said with the next one."""
    downlink: str = "fp32"
    """``fp32``, ``bf16``, ``delta`` or ``delta-int4``. In bf16 learners train from rounded weights. With ``delta`` the
    syncer takes its outer steps in 8.125 bits an element and sends the step to whoever has the value before, bit for
    bit the same on both sides, and the whole value in float32 to everybody else; what a step leaves unsaid is kept at
    the syncer, four bytes a parameter, and said with the next one. ``delta-int4``: the same in 4.125 bits. A learner of
    several ranks always gets the whole value."""

    def __post_init__(self) -> None:
        for name, known in (("uplink", CODECS), ("downlink", DOWNLINKS)):
            if getattr(self, name) not in known:
                found, why = getattr(self, name), ", which is for differences" if getattr(self, name) in CODECS else ""
                raise SettingError(
                    f"is {found!r}{why}", where=f"codec.{name}", fix=f"use one of {', '.join(sorted(known))}"
                )


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


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """A whole run, resolved: every learner has its entry, and all parts agree with each other."""

    protocol: ProtocolSetting
    mode: Mode = "decoupled"
    outer: OuterChoice = field(default_factory=OuterChoice)
    merge: MergeChoice = field(default_factory=MergeChoice)
    fragments: FragmentsChoice = field(default_factory=FragmentsChoice)
    codec: CodecChoice = field(default_factory=CodecChoice)
    syncer: SyncerPlace = field(default_factory=SyncerPlace)
    launch: LaunchChoice = field(default_factory=LaunchChoice)
    train: TrainSetting = field(default_factory=TrainSetting)
    learners: tuple[LearnerEntry, ...] = ()
    groups: tuple[GroupEntry, ...] = ()
    """Those who are named in no group are alone, one process with one processor each."""

    def __post_init__(self) -> None:
        groups = [group.name for group in self.groups]
        for name in groups:
            if groups.count(name) > 1:
                raise SettingError(f"two groups are called {name!r}", where="group.name", fix="name each one once")
        listed = {entry.name for entry in self.learners}
        grouped = (name for group in self.groups for name in group.base if name not in listed)
        object.__setattr__(self, "learners", (*self.learners, *(LearnerEntry(name=name) for name in grouped)))
        names = [entry.name for entry in self.learners]
        for name in names:
            if names.count(name) > 1:
                raise SettingError(f"two learners are called {name!r}", where="learner.name", fix="name each one once")
        if len(names) > self.protocol.num_learners:
            what = "learners in [[learner]] and [[group]]" if self.groups else "[[learner]] entries"
            raise SettingError(
                f"{len(names)} {what}, but num_learners is {self.protocol.num_learners}",
                where="run.num_learners",
                fix=f"use {len(names)}, or leave it out",
            )
        if self.syncer.shards > self.protocol.num_fragments:
            raise SettingError(
                f"is {self.syncer.shards}, but the run has {self.protocol.num_fragments} fragments",
                where="syncer.shards",
                fix=f"use {self.protocol.num_fragments} or fewer, or raise run.num_fragments",
            )
        spare = (f"learner-{i}" for i in range(2 * self.protocol.num_learners))
        unnamed = (name for name in spare if name not in names)
        missing = self.protocol.num_learners - len(names)
        entries = (*self.learners, *(LearnerEntry(name=next(unnamed)) for _ in range(missing)))
        object.__setattr__(self, "learners", entries)
        self._check_groups()
        if self.train.data.slots != self.protocol.slots:
            raise SettingError(
                f"data.slots is {self.train.data.slots}, but the syncer leases {self.protocol.slots} slots",
                where="data.slots",
                fix="leave it out: run.num_slots decides",
            )

    def _check_groups(self) -> None:
        everybody = [entry.name for entry in self.learners]
        for name in self.extras:
            if name in everybody:
                raise SettingError(
                    f"{name!r} is a [[learner]] too", where="group.max_learners", fix="rename one of them"
                )
        most = len(everybody) + len(self.extras)
        if most > self.protocol.slots:
            raise SettingError(
                f"num_slots is {self.protocol.slots}, but {most} learners may ride at the same time",
                where="run.num_slots",
                fix=f"use {most} or more",
            )

    @property
    def extras(self) -> tuple[str, ...]:
        """The names of the learners that come and go with the room that an engine has."""
        return tuple(name for group in self.groups for name in group.extras)

    def group_of(self, learner: str) -> GroupEntry:
        """The group that a learner is of, by its name; of none: one with the default needs."""
        return next((group for group in self.groups if learner in (*group.base, *group.extras)), ALONE)

    @property
    def rounds(self) -> int:
        """T. A run with learners has an end."""
        assert self.protocol.rounds is not None
        return self.protocol.rounds

    def resolved_outer(self) -> tuple[OuterSetting, str]:
        """The outer optimizer and why it is that one."""
        return self.outer.resolve(rounds=self.protocol.rounds, sync_period=self.protocol.sync_period)
