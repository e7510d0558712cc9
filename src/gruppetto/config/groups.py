"""``[[group]]``: learners of one kind, for ``gruppetto launch``: how many, how large, and where they may run."""

from __future__ import annotations

from dataclasses import dataclass

from gruppetto.errors import SettingError

__all__ = ["GroupEntry"]

MOST = 4096
MOST_OF_A_MACHINE = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupEntry:
    """``[[group]]``: learners of one kind, called ``NAME-0``, ``NAME-1`` and so on.

    >>> eu = GroupEntry(name="eu", learners=2, max_learners=3)
    >>> eu.base, eu.extras
    (('eu-0', 'eu-1'), ('eu-2',))
    """

    name: str
    learners: int = 1
    """So many belong to the run: it starts with them."""
    max_learners: int | None = None
    """More of them, up to so many in all, ride along whenever the engine has room, and leave when it has not."""
    ranks: int = 1
    """Processes of one learner, which FSDP2 shards among them."""
    ranks_per_node: int | None = None
    """So many of them on one machine; None: all."""
    cpus: float = 1.0
    """Of a rank."""
    gpus: float = 0.0
    """Of a rank."""
    memory_gib: float = 0.0
    """Of a rank; 0 asks for none in particular."""
    resources: tuple[tuple[str, float], ...] = ()
    """What else a machine must have for each of its parts of a learner, as labels of the engine:
    ``[["eu", 1], ["h100", 1]]``; for Slurm ``[["partition=gpu", 1]]``, options of sbatch."""
    set: tuple[str, ...] = ()
    """Settings that are other ones here: ``["train.batch_size=4"]``."""

    def __post_init__(self) -> None:
        allowed = all(c.isascii() and (c.isalnum() or c in "._-") for c in self.name)
        if not (allowed and 1 <= len(self.name) <= 100 and self.name[0].isalnum()):
            fix = "use 1 to 100 letters, digits or . _ -, a letter or digit first"
            raise SettingError(f"is {self.name!r:.80}", where="group.name", fix=fix)
        for name in ("learners", "ranks", "ranks_per_node"):
            value, least = getattr(self, name), 0 if name == "learners" else 1
            if value is not None and not least <= value <= MOST:
                raise SettingError(f"is {value}", where=f"group.{name}", fix=f"use {least} to {MOST}")
        if not self.learners <= self.most <= MOST or not self.most:
            fix = f"use {max(1, self.learners)} to {MOST}, or leave it out"
            raise SettingError(f"is {self.max_learners}", where="group.max_learners", fix=fix)
        if self.ranks % self.on_a_node:
            fix = f"use a divisor of the {self.ranks} ranks"
            raise SettingError(f"is {self.ranks_per_node}", where="group.ranks_per_node", fix=fix)
        for name in ("cpus", "gpus", "memory_gib"):
            if not 0 <= getattr(self, name) <= MOST_OF_A_MACHINE:
                raise SettingError(f"is {getattr(self, name)}", where=f"group.{name}", fix="use 0 or more")
        if self.gpus > 1 and self.gpus != int(self.gpus):
            raise SettingError(f"is {self.gpus}", where="group.gpus", fix="use a whole number, or a part of one")
        for i, (label, amount) in enumerate(self.resources):
            if not label or not 0 < amount <= MOST_OF_A_MACHINE:
                fix = 'use a label and more than 0, as in ["eu", 1]'
                raise SettingError(f"is {[label, amount]}", where=f"group.resources[{i}]", fix=fix)
        for i, text in enumerate(self.set):
            path, equals, _ = text.partition("=")
            if not equals or "." not in path:
                raise SettingError(f"is {text!r:.80}", where=f"group.set[{i}]", fix="use TABLE.KEY=VALUE")

    @property
    def most(self) -> int:
        """So many learners at the same time."""
        return self.learners if self.max_learners is None else self.max_learners

    @property
    def on_a_node(self) -> int:
        """Ranks of a learner on one machine."""
        return self.ranks if self.ranks_per_node is None else self.ranks_per_node

    @property
    def nodes(self) -> int:
        """Machines that a learner needs; they may be the same one."""
        return self.ranks // self.on_a_node

    @property
    def base(self) -> tuple[str, ...]:
        """The names of those that belong to the run."""
        return tuple(f"{self.name}-{i}" for i in range(self.learners))

    @property
    def extras(self) -> tuple[str, ...]:
        """The names of those that come and go."""
        return tuple(f"{self.name}-{i}" for i in range(self.learners, self.most))

    def holds(self, learner: str) -> bool:
        """Whether it is one of these, by its name.

        >>> group = GroupEntry(name="a-b", learners=2, max_learners=3)
        >>> [group.holds(name) for name in (*group.base, *group.extras)]
        [True, True, True]
        >>> [group.holds(name) for name in ("a-b-3", "a-b-01", "a-b-", "a-b", "b-0")]
        [False, False, False, False, False]
        """
        name, _, number = learner.rpartition("-")
        if name != self.name or not (number.isascii() and number.isdecimal()):
            return False
        return number == str(int(number)) and int(number) < self.most
