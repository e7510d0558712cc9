"""What the syncer does with a merged outer gradient: the outer optimizers (paper, outer optimization).

Each is an ``(init, update)`` pair of pure functions, the definition, and a ``step`` that does the same in
place, in one pass over the running merge. All arithmetic is float32, so both give the same bits.

>>> import numpy as np
>>> theta, delta = np.float32([1.0, 2.0]), np.float32([0.5, -0.5])
>>> nesterov = OUTER_OPTIMIZERS["nesterov"]
>>> theta, state = nesterov.update(delta, nesterov.init(theta), theta, 0.4, 0.9)
>>> theta
array([0.62, 2.38], dtype=float32)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from gruppetto.errors import SettingError
from gruppetto.numerics import kernels
from gruppetto.numerics.kernels import Float32

__all__ = ["OUTER_OPTIMIZERS", "OUTER_PRESETS", "OuterOptimizer", "OuterSetting", "OuterState", "choose_outer"]

OuterState = tuple[Float32, ...]
"""The optimizer's memory of one fragment: arrays of its shape, as many as the optimizer needs."""

Int64 = NDArray[np.int64]

FEW_OUTER_STEPS = 2000
"""Below this many outer steps a fragment (T/H) less momentum is better.

Measured at T/H = 87, 175 and 500, where η = 0.7, μ = 0.5 beats η = 0.4, μ = 0.9 by 0.11, 0.06 and 0.04 nats
(``gruppetto experiment demo``), and at 1250 by 0.018 (``gruppetto experiment quality``); beyond that nobody has looked.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class OuterOptimizer:
    """One outer optimizer.

    ``init(theta)`` → state; ``update(delta, state, theta, lr, momentum)`` → (theta′, state′), both pure;
    ``step(total, starts, stops, scales, theta, state, lr, momentum)`` → (‖what was taken off Θ‖², ‖Θ′‖²) in place, with
    Δ = scales[piece] · total.
    """

    name: str
    init: Callable[[Float32], OuterState]
    update: Callable[[Float32, OuterState, Float32, float, float], tuple[Float32, OuterState]]
    step: Callable[[Float32, Int64, Int64, Float32, Float32, OuterState, float, float], tuple[float, float]]


def _nesterov_init(theta: Float32) -> OuterState:
    return (np.zeros_like(theta),)


def _nesterov_update(
    delta: Float32, state: OuterState, theta: Float32, lr: float, momentum: float
) -> tuple[Float32, OuterState]:
    """b ← μ·b + Δ; Θ ← Θ − η·(Δ + μ·b)."""
    (b,) = state
    b = momentum * b + delta
    ahead: Float32 = momentum * b
    return theta - lr * (delta + ahead), (b,)


def _nesterov_step(
    total: Float32,
    starts: Int64,
    stops: Int64,
    scales: Float32,
    theta: Float32,
    state: OuterState,
    lr: float,
    momentum: float,
) -> tuple[float, float]:
    (b,) = state
    return kernels.nesterov_step(total, starts, stops, scales, theta, b, np.float32(lr), np.float32(momentum))


def _sgd_init(theta: Float32) -> OuterState:
    return ()


def _sgd_update(
    delta: Float32, state: OuterState, theta: Float32, lr: float, momentum: float
) -> tuple[Float32, OuterState]:
    """Θ ← Θ − η·Δ."""
    return theta - lr * delta, ()


def _sgd_step(
    total: Float32,
    starts: Int64,
    stops: Int64,
    scales: Float32,
    theta: Float32,
    state: OuterState,
    lr: float,
    momentum: float,
) -> tuple[float, float]:
    return kernels.sgd_step(total, starts, stops, scales, theta, np.float32(lr))


OUTER_OPTIMIZERS: dict[str, OuterOptimizer] = {
    optimizer.name: optimizer
    for optimizer in (
        OuterOptimizer(name="nesterov", init=_nesterov_init, update=_nesterov_update, step=_nesterov_step),
        OuterOptimizer(name="sgd", init=_sgd_init, update=_sgd_update, step=_sgd_step),
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class OuterSetting:
    """An outer optimizer with its learning rate η and momentum μ.

    Raises :class:`SettingError` for values that cannot be.
    """

    optimizer: str = "nesterov"
    lr: float = 0.4
    momentum: float = 0.9
    first_share: float = 1.0
    """Of ``lr``, at the beginning of the run ..."""
    final_share: float = 1.0
    """... and at its end; in between on a straight line."""
    average_share: float = 0.0
    """Of the run, at its end: the last value of a fragment is the mean of all that it had in this time."""
    rounds: int | None = None
    """Where the end is; None: none is in sight, so that ``lr`` holds throughout, and nothing is averaged."""
    sync_period: int = 1
    """H: in the last so many rounds every fragment has its last step."""

    def __post_init__(self) -> None:
        if self.optimizer not in OUTER_OPTIMIZERS:
            raise SettingError(
                f"unknown optimizer {self.optimizer!r}",
                where="outer.optimizer",
                fix=f"use one of {sorted(OUTER_OPTIMIZERS)}",
            )
        if not (math.isfinite(self.lr) and 0 < self.lr <= 10):
            raise SettingError(f"lr is {self.lr}", where="outer.lr", fix="use more than 0 and at most 10")
        for name in ("first_share", "final_share"):
            if not (math.isfinite(getattr(self, name)) and 0 < getattr(self, name) <= 10):
                raise SettingError(
                    f"is {getattr(self, name)}", where=f"outer.{name}", fix="use more than 0 and at most 10"
                )
        if not 0 <= self.average_share <= 0.5:
            raise SettingError(f"is {self.average_share}", where="outer.average_share", fix="use a share from 0 to 0.5")
        if not 0 <= self.momentum < 1:
            raise SettingError(f"momentum is {self.momentum}", where="outer.momentum", fix="use 0 or more, below 1")
        if self.optimizer == "sgd" and self.momentum:
            raise SettingError(
                f"sgd has no momentum, but momentum is {self.momentum}",
                where="outer.momentum",
                fix="use 0, or the optimizer 'nesterov'",
            )

    def lr_at(self, round: int) -> float:
        """η of a round. Rounds beyond the last keep the last one's.

        >>> rising = OuterSetting(lr=0.7, momentum=0.5, first_share=0.5, final_share=1.5, rounds=100)
        >>> [f"{rising.lr_at(t):.3f}" for t in (1, 50, 100, 101)]
        ['0.357', '0.700', '1.050', '1.050']
        """
        if not self.rounds:
            return self.lr
        passed = min(1.0, round / self.rounds)
        return self.lr * (self.first_share + (self.final_share - self.first_share) * passed)

    @property
    def averages(self) -> bool:
        """Values are averaged, so that a mean is kept beside the optimizer's memory."""
        return self.average_share > 0 and self.rounds is not None

    @property
    def keeps(self) -> str:
        """Whose memory lies beside a value, which is another one's to read only if it keeps the same."""
        return f"{self.optimizer} and a mean" if self.averages else self.optimizer

    def average(self, mean: Float32, theta: Float32, round: int) -> None:
        """Take the value ``theta`` of ``round`` into the running ``mean``; in the last round of a fragment the mean
        becomes its value. Both in place (1803.05407).

        >>> setting, mean = OuterSetting(average_share=0.5, rounds=4), np.zeros(1, np.float32)
        >>> for round in (1, 2, 3, 4):
        ...     theta = np.float32([round])
        ...     setting.average(mean, theta, round)
        >>> theta
        array([3.5], dtype=float32)
        """
        assert self.rounds is not None
        begins = self.rounds - int(self.average_share * self.rounds)
        # How many values of the fragment are in the mean, this one included; the one before the first is not.
        count = (round - begins - 1) // self.sync_period + 1
        if count <= 1:
            mean[:] = theta
        else:
            mean += (theta - mean) / np.float32(count)
        if round > self.rounds - self.sync_period:
            theta[:] = mean


SHORT = OuterSetting(optimizer="nesterov", lr=0.7, momentum=0.5)
OUTER_PRESETS: dict[str, OuterSetting] = {
    "paper": OuterSetting(optimizer="nesterov", lr=0.4, momentum=0.9),
    "short": SHORT,
    "rising": replace(SHORT, first_share=0.6, final_share=1.4, average_share=0.1),
    "finetune": OuterSetting(optimizer="sgd", lr=1.0, momentum=0.0),
}
"""``paper`` for long runs, ``short`` for few outer steps, ``finetune`` takes the merge as it is.

``rising`` is ``short`` with an η that grows, and the mean of the last values: better with H = 8 and ``carry``
(``gruppetto experiment levers``), worse than ``short`` where no mean is taken.
"""


def choose_outer(outer: str | OuterSetting, rounds: int | None, sync_period: int) -> tuple[OuterSetting, str]:
    """The outer optimizer of a run and, in one sentence, why.

    ``outer`` is "auto", the name of a preset, or a setting. "auto" goes by T/H, the number of outer steps
    that each fragment will see (``rounds`` None: no end in sight). Raises :class:`SettingError` for an
    unknown name.

    >>> print(choose_outer("auto", rounds=600, sync_period=24)[1])
    short (nesterov, lr 0.7, momentum 0.5): 600 rounds at H = 24 are 25 outer steps a fragment, below 2000
    >>> print(choose_outer("rising", rounds=None, sync_period=8)[1])
    rising (nesterov, lr 0.7, momentum 0.5, the same throughout as no end is in sight): chosen by name
    """
    assert sync_period > 0
    if isinstance(outer, OuterSetting):
        chosen = _until(outer, rounds, sync_period)
        return chosen, f"{_describe(chosen)}: set explicitly"
    if outer in OUTER_PRESETS:
        chosen = _until(OUTER_PRESETS[outer], rounds, sync_period)
        return chosen, f"{outer} ({_describe(chosen)}): chosen by name"
    if outer != "auto":
        raise SettingError(f"unknown name {outer!r}", where="outer", fix=f"use auto or one of {sorted(OUTER_PRESETS)}")
    name, why = "paper", "a run without an end has many outer steps"
    if rounds is not None:
        outer_steps = rounds // sync_period
        name, side = ("short", "below") if outer_steps < FEW_OUTER_STEPS else ("paper", "not below")
        why = f"{rounds} rounds at H = {sync_period} are {outer_steps} outer steps a fragment"
        why += f", {side} {FEW_OUTER_STEPS}"
    return OUTER_PRESETS[name], f"{name} ({_describe(OUTER_PRESETS[name])}): {why}"


def _describe(setting: OuterSetting) -> str:
    lr, more = f"{setting.lr:g}", ""
    if _changes(setting) and setting.rounds is None:
        more = ", the same throughout as no end is in sight"
    elif (setting.first_share, setting.final_share) != (1.0, 1.0):
        lr = f"from {setting.lr * setting.first_share:g} to {setting.lr * setting.final_share:g}"
    if setting.averages:
        more = f", mean of the last {setting.average_share:.0%}"
    return f"{setting.optimizer}, lr {lr}, momentum {setting.momentum:g}{more}"


def _changes(setting: OuterSetting) -> bool:
    """Whether it is to change on the way to the end of a run."""
    return (setting.first_share, setting.final_share, setting.average_share) != (1.0, 1.0, 0.0)


def _until(setting: OuterSetting, rounds: int | None, sync_period: int) -> OuterSetting:
    """The same, knowing where the run ends, if it is to change on the way."""
    return replace(setting, rounds=rounds, sync_period=sync_period) if _changes(setting) else setting
