"""How the conductor speaks with the riders, the processes it may have to make worse: small files in ``RUNDIR/chaos``.

::

    chaos/  levers/NAME.json     conductor → rider: what to do to yourself
            lives.jsonl          rider → conductor: a process began
            steps/NAME.jsonl     rider → verdict: one line a step that was really made
            log.jsonl            conductor → verdict: what went wrong when
            plan.toml            the resolved plan

Times in them are wall times: all of it happens on one machine.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

__all__ = ["Lever", "Life", "Places", "read_lines"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """The files of one run under chaos."""

    root: Path

    @property
    def lives(self) -> Path:
        return self.root / "lives.jsonl"

    @property
    def log(self) -> Path:
        return self.root / "log.jsonl"

    @property
    def plan(self) -> Path:
        return self.root / "plan.toml"

    def lever(self, name: str) -> Path:
        return self.root / "levers" / f"{name}.json"

    def steps(self, name: str) -> Path:
        return self.root / "steps" / f"{name}.jsonl"

    def make(self) -> None:
        """The directories."""
        for path in (self.lever("_"), self.steps("_")):
            path.parent.mkdir(parents=True, exist_ok=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lever:
    """What a rider does to itself while it stands so."""

    nan: bool = False
    factor: float = 1.0
    """Contributions are so many times as large."""
    clock_by_s: float = 0.0
    """The wall clock is off by so much,"""
    clock_at: float = 0.0
    """... in processes that lived at this wall time already."""

    def write(self, path: Path) -> None:
        """Whole or not at all: a rider may be reading."""
        new = path.with_suffix(".new")
        new.write_text(json.dumps(asdict(self)), encoding="utf-8")
        new.replace(path)

    @classmethod
    def read(cls, path: Path) -> Lever:
        """As the file says; straight if there is none."""
        try:
            return cls(**json.loads(path.read_bytes()))
        except (OSError, ValueError, TypeError):
            return cls()


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """A process: whose, and when it was started (exec), in wall time."""

    who: str
    pid: int
    at: float


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of a file that processes append to until they are killed: what is torn is passed over."""
    if not path.exists():
        return
    with path.open("rb") as file:
        for line in file:
            with suppress(ValueError):
                said = json.loads(line)
                if isinstance(said, dict):
                    yield said
