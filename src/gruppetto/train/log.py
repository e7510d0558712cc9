"""What a training process writes down: one JSON object a line, the same from every mode."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

__all__ = ["Kind", "TrainLog"]

VERSION = 1
Kind = Literal["train", "eval", "end"]


class TrainLog:
    """Appends records to ``path``; several processes may share the file, since a line is a single write.

    A record has ``v`` (1), ``t`` (seconds of ``clock`` since ``started``), ``kind``, ``who``, ``round``,
    ``step``, ``tokens`` (consumed so far by ``who``) and ``loss`` (nats; null where it is no number), then
    whatever the writer adds. ``started`` is a reading of the same clock, by default the one taken now.
    """

    def __init__(self, path: Path, clock: Callable[[], float], *, started: float | None = None) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._clock = clock
        self._started = clock() if started is None else started
        # Unbuffered and appending: each write goes whole to the end of the file.
        self._file = path.open("ab", buffering=0)

    def write(
        self,
        kind: Kind,
        *,
        who: str,
        round: int,
        step: int,
        tokens: int,
        loss: float,
        **more: float | int | str,
    ) -> None:
        record = {
            "v": VERSION,
            "t": _to_ms(self._clock() - self._started),
            "kind": kind,
            "who": who,
            "round": round,
            "step": step,
            "tokens": tokens,
            "loss": loss,
            **more,
        }
        numbers = {key: _finite(value) for key, value in record.items()}
        self._file.write(json.dumps(numbers, allow_nan=False).encode() + b"\n")

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _to_ms(seconds: float) -> float:
    """Finer than this is noise that only makes lines long."""
    return round(seconds, 3)


def _finite(value: object) -> object:
    """JSON has no infinity and no not-a-number."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
