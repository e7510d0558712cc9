"""What a run has recorded: one trace, or, beside that of the first shard, one of each other (``trace-2.jsonl``)."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from gruppetto.files import content_of
from gruppetto.numerics.deal import MAX_SHARDS
from gruppetto.trace.measures import Measures
from gruppetto.trace.metrics import measure
from gruppetto.trace.together import together

__all__ = ["about_missing_traces", "read_traces", "shard_of"]


def read_traces(trace: Path, settings: Path, notes: Sequence[Path]) -> Measures:
    """What ``trace`` says, and those of other shards beside it together with it. ``settings``: those of the run, if
    they are there. ``notes``: see :func:`~gruppetto.trace.metrics.measure`. Raises :class:`DataError` likewise."""
    first, of = measure(trace, notes), _num_shards(trace, settings)
    if of == 1:
        return first
    others = [replace(measure(path), shard=f"{number}/{of}") for number, path in _others(trace).items()]
    return together([replace(first, shard=f"1/{of}"), *others])


def about_missing_traces(trace: Path, settings: Path) -> tuple[str, ...]:
    """What a report of the same has to say for what it lacks; mostly nothing."""
    of, others = _num_shards(trace, settings), _others(trace)
    missing = ", ".join(f"{number}/{of}" for number in range(2, of + 1) if number not in others)
    return (f"There is no trace of shard {missing}: rounds, tokens and bytes are without it.",) if missing else ()


def shard_of(trace: Path) -> str:
    """Which shard it is the trace of, by its name and those beside it: ``2/2``; "" for the only one of a run."""
    number = trace.stem.rpartition("-")[2] if "-" in trace.stem else "1"
    first = trace.with_name(f"{trace.stem.rpartition('-')[0] or trace.stem}{trace.suffix}")
    of = max(_others(first), default=1) if first.is_file() else 1
    return f"{number}/{of}" if number.isascii() and number.isdigit() and 1 <= int(number) <= of > 1 else ""


def _others(trace: Path) -> dict[int, Path]:
    """By the number of the shard, those in which something is."""
    paths = {path.stem.rpartition("-")[2]: path for path in trace.parent.glob(f"{trace.stem}-*{trace.suffix}")}
    found = {int(number): path for number, path in paths.items() if number.isascii() and number.isdigit()}
    return {k: found[k] for k in sorted(found) if 2 <= k <= MAX_SHARDS and found[k].stat().st_size}


def _num_shards(trace: Path, settings: Path) -> int:
    """Of the run, by its settings or by its traces."""
    try:
        said = tomllib.loads(content_of(settings).decode())["syncer"]["shards"]
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        said = 1
    return max(min(said, MAX_SHARDS) if isinstance(said, int) else 1, 1, *_others(trace))
