"""What crosses the links between sites, and how long chips wait for it.

A training step is a graph, as in Streaming DiLoCo (arXiv 2501.18512): a forward pass of a third of the time, a backward
pass of two thirds, layer by layer; what a layer has to send can leave when its backward pass is done, one after the
other over one link, while the passes go on. Compute utilisation is the share of time in which chips compute.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from gruppetto.errors import SettingError

__all__ = ["BITS", "METHODS", "Demand", "Traffic", "demand", "needed_gbit_s"]

BITS = {"fp32": 32.0, "bf16": 16.0, "int8": 8.125, "int4": 4.125, "fp4-e3m0": 4.125}
"""Bits of one element on the wire, scales included (a test compares them with the codecs'). What is said around the
bytes of a fragment, about a thousand bytes, is left out."""
FORWARD_SHARE = 1 / 3
GIGA = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """A model, where it is trained, and how often what is sent.

    >>> paper = Traffic(parameters=5_000_000_000, sync_period=48, num_fragments=48)
    >>> round(needed_gbit_s("data-parallel", paper, utilisation=0.9)), round(needed_gbit_s("decoupled", paper), 2)
    (105, 1.67)
    """

    parameters: int
    sites: int = 2
    step_s: float = 1.0
    """Of computing alone."""
    layers: int = 48
    gradient_codec: str = "bf16"
    """What data parallel sends."""
    codec: str = "bf16"
    """What outer gradients are sent as, and global fragments come back as."""
    sync_period: int = 24
    num_fragments: int = 24
    overlap_steps: int = 2

    def __post_init__(self) -> None:
        for name in ("parameters", "layers", "sync_period", "num_fragments"):
            if getattr(self, name) < 1:
                raise SettingError(f"{name} is {getattr(self, name)}", where=f"traffic.{name}", fix="use 1 or more")
        if self.sites < 2:
            raise SettingError(f"sites is {self.sites}", where="traffic.sites", fix="use 2 or more")
        if not 0 < self.step_s < math.inf:
            raise SettingError(f"step_s is {self.step_s}", where="traffic.step_s", fix="use more than 0 seconds")
        for name in ("gradient_codec", "codec"):
            if getattr(self, name) not in BITS:
                fix = f"use one of {', '.join(BITS)}"
                raise SettingError(f"{name} is {getattr(self, name)!r}", where=f"traffic.{name}", fix=fix)

    @property
    def ring(self) -> float:
        """2·(S − 1)/S: what a site sends, and receives, in a ring all-reduce of one unit."""
        return 2 * (self.sites - 1) / self.sites

    @property
    def gradient_gbit(self) -> float:
        """All gradients of one step, as one site sends them in a ring."""
        return self.ring * self.parameters * BITS[self.gradient_codec] / GIGA

    @property
    def model_gbit(self) -> float:
        """All outer gradients, once."""
        return self.parameters * BITS[self.codec] / GIGA

    @property
    def fragment_gbit(self) -> float:
        return self.model_gbit / self.num_fragments


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What one method makes of a link of ``gbit_s`` each way."""

    method: str
    gbit_s: float
    utilisation: float
    """The share of time in which chips compute."""
    in_time: float
    """The share of synchronisations that a link of this width can carry at the pace of the steps."""
    gbit_a_step: float
    """What a site sends in an average step."""


def demand(method: str, traffic: Traffic, gbit_s: float) -> Demand:
    """How ``method`` fares on a link of ``gbit_s`` each way."""
    if method not in METHODS:
        raise SettingError(f"{method!r} is no method", where="method", fix=f"use one of {', '.join(METHODS)}")
    if not gbit_s > 0:
        raise SettingError(f"gbit_s is {gbit_s}", where="bandwidth", fix="use more than 0")
    return METHODS[method](traffic, gbit_s)


def needed_gbit_s(method: str, traffic: Traffic, *, utilisation: float = 0.9) -> float:
    """The narrowest link that gives this utilisation; for decoupled learners, one that carries every round in time."""

    def enough(gbit_s: float) -> bool:
        found = demand(method, traffic, gbit_s)
        return found.utilisation >= utilisation and (method != "decoupled" or found.in_time >= 1.0)

    low, high = 1e-12, 1e9
    for _ in range(100):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def _step_with_reduction_s(traffic: Traffic, gbit: float, gbit_s: float) -> float:
    """One step that ends when the last layer's share of ``gbit`` has been reduced."""
    forward_s = FORWARD_SHARE * traffic.step_s
    layer_s, transfer_s = (traffic.step_s - forward_s) / traffic.layers, gbit / traffic.layers / gbit_s
    free_s = 0.0
    for layer in range(traffic.layers):
        free_s = max(free_s, forward_s + (layer + 1) * layer_s) + transfer_s
    return max(traffic.step_s, free_s)


def _data_parallel(traffic: Traffic, gbit_s: float) -> Demand:
    """Gradients of all layers, every step."""
    took_s = _step_with_reduction_s(traffic, traffic.gradient_gbit, gbit_s)
    return _synchronous("data-parallel", traffic, gbit_s, traffic.step_s / took_s, traffic.gradient_gbit)


def _diloco(traffic: Traffic, gbit_s: float) -> Demand:
    """The whole model at once, every H steps."""
    gbit, period = traffic.ring * traffic.model_gbit, traffic.sync_period
    took_s = (period - 1) * traffic.step_s + _step_with_reduction_s(traffic, gbit, gbit_s)
    return _synchronous("diloco", traffic, gbit_s, period * traffic.step_s / took_s, gbit / period)


def _streaming(traffic: Traffic, gbit_s: float) -> Demand:
    """One fragment after the other; each may travel for τ steps before anybody waits for it."""
    gbit = traffic.ring * traffic.fragment_gbit
    every = traffic.sync_period / traffic.num_fragments
    now = free_s = sent = 0.0
    due: list[tuple[int, float]] = []
    steps = 8 * max(traffic.sync_period, traffic.num_fragments)
    for step in range(1, steps + 1):
        now += traffic.step_s
        while (sent + 1) * every <= step:
            sent += 1
            free_s = max(free_s, now) + gbit / gbit_s
            due.append((step + traffic.overlap_steps, free_s))
        while due and due[0][0] <= step:
            now = max(now, due.pop(0)[1])
    return _synchronous("streaming", traffic, gbit_s, steps * traffic.step_s / now, gbit / every)


def _decoupled(traffic: Traffic, gbit_s: float) -> Demand:
    """One fragment up and one down for each round. Nobody waits; on a narrow link rounds come later instead.

    A fragment goes up, and comes down again, within τ steps; up and down share nothing.
    """
    every_s = traffic.step_s * traffic.sync_period / traffic.num_fragments
    trip_s = max(traffic.overlap_steps, 1) * traffic.step_s
    enough = max(traffic.fragment_gbit / every_s, 2 * traffic.fragment_gbit / trip_s)
    return Demand(
        method="decoupled",
        gbit_s=gbit_s,
        utilisation=1.0,
        in_time=min(1.0, gbit_s / enough),
        gbit_a_step=traffic.model_gbit / traffic.sync_period,
    )


def _synchronous(method: str, traffic: Traffic, gbit_s: float, utilisation: float, gbit_a_step: float) -> Demand:
    return Demand(method=method, gbit_s=gbit_s, utilisation=utilisation, in_time=utilisation, gbit_a_step=gbit_a_step)


METHODS: dict[str, Callable[[Traffic, float], Demand]] = {
    "data-parallel": _data_parallel,
    "diloco": _diloco,
    "streaming": _streaming,
    "decoupled": _decoupled,
}
