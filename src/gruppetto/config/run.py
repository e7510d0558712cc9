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

from collections import Counter
from collections.abc import Iterable
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
        if name := _twice(group.name for group in self.groups):
            raise SettingError(f"two groups are called {name!r}", where="group.name", fix="name each one once")
        listed = {entry.name for entry in self.learners}
        grouped = (name for group in self.groups for name in group.base if name not in listed)
        object.__setattr__(self, "learners", (*self.learners, *(LearnerEntry(name=name) for name in grouped)))
        if name := _twice(entry.name for entry in self.learners):
            raise SettingError(f"two learners are called {name!r}", where="learner.name", fix="name each one once")
        names = {entry.name for entry in self.learners}
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
        everybody = {entry.name for entry in self.learners}
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
        return next((group for group in self.groups if group.holds(learner)), ALONE)

    @property
    def rounds(self) -> int:
        """T. A run with learners has an end."""
        assert self.protocol.rounds is not None
        return self.protocol.rounds

    def resolved_outer(self) -> tuple[OuterSetting, str]:
        """The outer optimizer and why it is that one."""
        return self.outer.resolve(rounds=self.protocol.rounds, sync_period=self.protocol.sync_period)


def _twice(names: Iterable[str]) -> str:
    """The first one that is there more than once; "" if there is none."""
    return next((name for name, times in Counter(names).items() if times > 1), "")
