"""The held-out loss of a run as it went, for comparing runs with each other."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gruppetto.errors import DataError
from gruppetto.files import content_of
from gruppetto.trace.measures import Measures

__all__ = ["Curve", "curve_of_rival", "curve_of_run", "read_train_log"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Held-out loss (nats per token) by round, and by the tokens that all learners together had trained on."""

    label: str
    rounds: tuple[int, ...]
    tokens: tuple[int, ...]
    losses: tuple[float, ...]


def curve_of_run(found: Measures, label: str) -> Curve:
    """The curve of a decoupled run. An evaluation belongs to the newest round that was closed when it was taken."""
    points = sorted((e.round, e.loss) for e in found.evaluations)
    consumed = {0: 0, **{r.round: r.consumed_tokens for r in found.rounds.values()}}
    known = sorted(consumed)

    def tokens_at(round: int) -> int:
        return consumed[max((r for r in known if r <= round), default=0)]

    return Curve(
        label=label,
        rounds=tuple(r for r, _ in points),
        tokens=tuple(tokens_at(r) for r, _ in points),
        losses=tuple(loss for _, loss in points),
    )


def curve_of_rival(records: Sequence[Mapping[str, Any]], label: str, num_learners: int) -> Curve:
    """The curve of a rival from its training log; one learner speaks for all, who have trained as much."""
    points = [r for r in records if r["kind"] in ("eval", "end") and r["loss"] is not None]
    return Curve(
        label=label,
        rounds=tuple(r["round"] for r in points),
        tokens=tuple(r["tokens"] * num_learners for r in points),
        losses=tuple(r["loss"] for r in points),
    )


def read_train_log(path: Path) -> list[dict[str, Any]]:
    """The records of a training log; :class:`DataError` with the line for what is none. A torn last line is skipped."""
    records = []
    for number, line in enumerate(content_of(path).splitlines(keepends=True), start=1):
        if not line.endswith(b"\n"):
            break
        try:
            record = json.loads(line)
            for key in ("kind", "who", "round", "tokens", "loss", "t"):
                record[key]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise DataError(f"is no record of a training log ({error!r})", where=f"{path}:{number}") from error
        records.append(record)
    return records
