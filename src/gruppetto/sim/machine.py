"""What a machine and its links can do, from which the simulator prices the syncer's work.

``gruppetto doctor --measure --out machine.json`` measures one; the defaults are those of one shared core, a plain disk
and a link of 10 Gbit/s.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from gruppetto.errors import SettingError
from gruppetto.sim.network import Link
from gruppetto.sim.world import SyncerCosts

__all__ = ["MachineProfile", "read_machine"]

FP32_BYTES = 4
MAY_BE_ZERO = ("publish_s", "latency_s", "persist_s", "load_per_core")
MAY_BE_NONE = ("link_bytes_per_s", "start_s", "step_s", "load_per_core")
LOADED = 0.5
"""Of every core, taken by others while a machine was measured: what was measured is what they left."""
MAX_FILE_BYTES = 2**16


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineProfile:
    """Rates of the syncer's host and of a learner's link to it.

    >>> profile = MachineProfile(fold_elements_per_s=1e9, merge_elements_per_s=1e9, persist_bytes_per_s=8e8)
    >>> profile.costs(fragment_elements=100_000_000)
    SyncerCosts(fold_s=0.1, merge_s=0.1, persist_s=1.0, publish_s=0.0)
    """

    fold_elements_per_s: float = 7e8
    """Float32 elements a second that one contribution is folded at."""
    merge_elements_per_s: float = 1e9
    """... and that the final pass with the outer step takes."""
    step_down_elements_per_s: float = 8e8
    """... and that one pass more takes, where the step is published instead of the value."""
    persist_bytes_per_s: float = 5e8
    persist_s: float = 0.0
    """What a commit costs besides its bytes: two forced writes."""
    publish_s: float = 0.0
    latency_s: float = 0.02
    """One way, between a learner and the syncer."""
    link_bytes_per_s: float | None = 1.25e9
    """None: no limit."""
    start_s: float | None = None
    """From the start of a learner's process to its first step; None: not measured."""
    step_s: float | None = None
    """Of the reference trainer's tiny model; None: not measured."""
    load_per_core: float | None = None
    """Processes that wanted a core, for each core there is, in the minute before it was measured; None: not known."""
    hosts: int = 1
    """Hosts that share the syncer's work."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            positive = field.name not in MAY_BE_ZERO
            if value is None and field.name in MAY_BE_NONE:
                continue
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if not number or not math.isfinite(value) or value < 0 or (positive and value == 0):
                fix = f"use more than 0{'' if positive else ', or 0'}"
                raise SettingError(f"{field.name} is {value}", where=f"machine.{field.name}", fix=fix)

    def costs(self, *, fragment_elements: int, steps_down: bool = False) -> SyncerCosts:
        """What a round costs with one fragment of so many float32 elements due: value and momentum are persisted.

        ``steps_down``: its step is taken in the words in which it is published (:mod:`gruppetto.numerics.downlink`).
        """
        share = fragment_elements / self.hosts
        return SyncerCosts(
            fold_s=share / self.fold_elements_per_s,
            merge_s=share / self.merge_elements_per_s + (share / self.step_down_elements_per_s if steps_down else 0.0),
            persist_s=self.persist_s + 2 * FP32_BYTES * share / self.persist_bytes_per_s,
            publish_s=self.publish_s,
        )

    @property
    def is_assumed(self) -> bool:
        """Nothing but the latency was ever said of it."""
        return self == MachineProfile(latency_s=self.latency_s)

    @property
    def was_loaded(self) -> bool:
        """Others used the machine while it was measured."""
        return self.load_per_core is not None and self.load_per_core > LOADED

    @property
    def link(self) -> Link:
        return Link(latency_s=self.latency_s, bytes_per_s=self.link_bytes_per_s)

    def to_json(self) -> str:
        """The file that :func:`read_machine` reads."""
        return json.dumps(asdict(self), indent=2, allow_nan=False) + "\n"


def read_machine(path: Path) -> MachineProfile:
    """A machine as it was measured. Raises :class:`SettingError`."""
    fix = "write one with gruppetto doctor --measure --out machine.json"
    try:
        if path.exists() and not path.is_file():  # reading a pipe would wait for ever
            raise SettingError("cannot be read (it is not a regular file)", where=str(path), fix=fix)
        with path.open("rb") as file:
            content = json.loads(file.read(MAX_FILE_BYTES))
    except SettingError:
        raise
    except OSError as error:
        raise SettingError(f"cannot be read ({error.strerror})", where=str(path), fix=fix) from error
    except (ValueError, RecursionError) as error:
        raise SettingError("is not JSON", where=str(path), fix=fix) from error
    known = {field.name for field in fields(MachineProfile)}
    if not isinstance(content, Mapping) or not content or not set(content) <= known:
        raise SettingError("is no machine profile", where=str(path), fix=fix)
    try:
        return MachineProfile(**content)
    except SettingError as error:
        raise SettingError(error.what, where=f"{path}: {error.where}", fix=error.fix) from error
