"""A learner's numbers for whatever keeps numbers: a tracker is a callable that takes ``(metrics, step)``::

    tracker = to_tensorboard(SummaryWriter("logs"))         # or to_wandb(run), to_trackio(trackio)
    for batch in learner.until_finished(loader):
        ...
        track(learner, tracker, every=10)

>>> seen = []
>>> tracker = lambda metrics, step: seen.append((step, metrics["gruppetto/round"]))
>>> class Stub:
...     steps = 0
...     def metrics(self):
...         return {"gruppetto/round": 3.0, "gruppetto/steps": float(self.steps)}
>>> learner = Stub()
>>> for learner.steps in range(1, 6):
...     track(learner, tracker, every=2)
>>> seen
[(2, 3.0), (4, 3.0)]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from gruppetto.attach.counting import whole_number

__all__ = ["Tracker", "to_tensorboard", "to_trackio", "to_wandb", "track"]

Tracker = Callable[[Mapping[str, float], int], None]
"""Takes numbers by name, and the learner's own step; it may be slow or fail only as its owner allows."""


class _HasMetrics(Protocol):
    def metrics(self) -> dict[str, float]: ...


def track(learner: _HasMetrics, *trackers: Tracker, every: int = 1, **more: float) -> None:
    """Give each tracker what ``learner.metrics()`` says now, and ``more`` (a loss) under its own name.

    To be called after each step; only every ``every``-th step counts. The step is the learner's own count of this
    process, which does not wait for anybody; plot over ``gruppetto/round`` to compare learners with each other.
    What a tracker raises comes out as it is. Raises :class:`SettingError` for an ``every`` that is no whole number, 1
    or more.
    """
    every = whole_number(every, "track(every=)", least=1)
    metrics = learner.metrics()
    step = int(metrics["gruppetto/steps"])
    if step % every == 0:
        for tracker in trackers:
            tracker({**metrics, **more}, step)


def to_tensorboard(writer: Any) -> Tracker:
    """``writer``: a ``torch.utils.tensorboard.SummaryWriter``, or anything with its ``add_scalar``."""

    def write(metrics: Mapping[str, float], step: int) -> None:
        for name, value in metrics.items():
            writer.add_scalar(name, value, step)

    return write


def to_wandb(run: Any) -> Tracker:
    """``run``: what ``wandb.init()`` returns, or anything with its ``log(dict, step=)``."""

    def log(metrics: Mapping[str, float], step: int) -> None:
        run.log(dict(metrics), step=step)

    return log


def to_trackio(run: Any) -> Tracker:
    """``run``: the module ``trackio`` after its ``init()``, or what that returns; it speaks as W&B does."""
    return to_wandb(run)
