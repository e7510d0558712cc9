"""One run of an experiment as a pure value: everything that its result depends on, and nothing else.

A ride is known by the hash of what it says beyond the defaults. So a new field changes no hash of old, and the results
that are there stay good; the price is that **a default never changes**: what a field left alone means is for ever.

>>> Ride(seed=1, uplink="int4").told
'seed=1 uplink=int4'
>>> Ride(seed=1).hash == Ride(seed=1, uplink="bf16").hash != Ride(seed=2).hash
True
"""

from __future__ import annotations

import hashlib
from typing import Any, Literal

import msgspec

__all__ = ["Ride", "System"]

System = Literal["decoupled", "lockstep", "data-parallel", "elastic", "diloco", "processes", "race"]
"""``lockstep`` is data parallel without a clock (and with one learner, one learner alone); ``data-parallel``,
``elastic`` and ``diloco`` have virtual time and its mishaps; ``processes`` is a real local run, and ``race`` a run of
ours or of another system's (:mod:`gruppetto.experiments.peers`)."""


class Ride(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is trained, by whom, how, and what goes wrong meanwhile. Seconds are virtual."""

    system: System = "decoupled"
    seed: int = 0
    """Of first weights, data, paces and mishaps."""

    # what is trained
    model: str = "mite"
    """A row of :data:`gruppetto.experiments.models.MODELS`."""
    data: str = "python-stdlib"
    """A corpus, or a row of :data:`gruppetto.experiments.material.MATERIAL`."""
    batch: int = 4
    """Windows a step and learner."""
    batches: tuple[int, ...] = ()
    """The same for each learner, where they differ; the last serves all further ones."""
    inner_rate: float = 3e-3
    rounds: int = 240
    evaluations: int = 1
    """So many along the way, the last one at the end."""
    eval_windows: int = 256

    # by whom
    learners: int = 4
    slots: int | None = None
    step_s: tuple[float, ...] = (1.0,)
    """Of each learner; the last serves all further ones."""
    jitter: float = 0.1
    latency_s: float = 0.02
    """One way, between syncer and learners. What is far away is in flight for more steps."""
    guests: int = 0
    """So many at a time, in three visits ..."""
    guests_share: float = 0.0
    """... for this part of ``guests_of_rounds`` steps of a second."""
    guests_of_rounds: int = 0
    bad: tuple[tuple[int, str], ...] = ()
    """(learner, factor): what its contributions are multiplied by; ``nan`` spoils them altogether."""
    kills_per_hour: float = 0.0
    """Of all learners together; each is away for a minute in the mean."""

    # how
    sync_period: int = 8
    fragments: int = 8
    fragmenter: str = "balanced"
    overlap_steps: int = 2
    in_flight: int = 1
    """Rounds that may be open at once."""
    snapshot_window: int = 2
    quorum: int = 1
    grace: bool = True
    apply: str = "overwrite"
    merge: str = ""
    """One rule for every tensor; none: RDA, and the mean for tables of embeddings."""
    weighting: str = ""
    """``tokens`` or ``equal``; none: tokens² / steps."""
    outer: tuple[float, float] | None = None
    """η and μ; none: by the length of the run."""
    outer_shares: tuple[float, float] = (1.0, 1.0)
    """Of η in the first round and in the last, on a straight line between."""
    outer_average: float = 0.0
    """The share of the run at its end over which values are averaged."""
    uplink: str = "bf16"
    """A codec, or a row of :data:`gruppetto.experiments.coarse.COARSE`."""
    feedback: bool = True
    downlink: str = "fp32"
    gate: str = "clip"

    peer: str = ""
    """Of a race: whose system; and what goes wrong in it."""
    mishap: str = ""

    # what else is looked at
    books: bool = False
    """Goodput, uptime and tokens, from the trace."""
    directions: bool = False
    """Cosines between the contributions to a round, and how long their mean is."""
    domains: bool = False
    """The loss on each domain of the material, besides that on all."""
    tuned_on: str = ""
    """Afterwards the model is fine-tuned alone on this material, and judged there ..."""
    tuned_steps: int = 0
    lora: int = 0
    """Of a pre-trained model, which is trained from the beginning, adapters of so many columns only; 0: all of it."""
    questions: int = 0
    """So many of each kind of :mod:`gruppetto.experiments.riddles` are put to the exported model."""

    @property
    def hash(self) -> str:
        """Sixteen bytes of BLAKE2b over what it says, in hexadecimal."""
        return hashlib.blake2b(msgspec.json.encode(self.said, order="sorted"), digest_size=16).hexdigest()

    @property
    def told(self) -> str:
        """What it says beyond the defaults, in a line."""
        return " ".join(f"{key}={_short(value)}" for key, value in self.said.items()) or "as it ships"

    @property
    def said(self) -> dict[str, Any]:
        """The fields that are not as by default, as JSON has them."""
        # Compared by value: the encoder's own omission goes by identity.
        values = {name: getattr(self, name) for name in self.__struct_fields__}
        defaults = dict(zip(self.__struct_fields__, self.__struct_defaults__, strict=True))
        return {name: msgspec.to_builtins(value) for name, value in values.items() if value != defaults[name]}

    def but(self, **change: Any) -> Ride:
        """The same with other values, which are checked."""
        return msgspec.convert({**self.said, **msgspec.to_builtins(change)}, Ride)


def _short(value: object) -> str:
    if isinstance(value, list | tuple):
        return ",".join(map(_short, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
