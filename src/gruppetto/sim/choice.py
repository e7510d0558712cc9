"""One way to train on a cluster, and what it asks of links, disk and memory: the bandwidth model of a plan.

What one round with one fragment in it costs::

    progress ─▶ quorum ─▶ ask ─▶ answer goes up ─▶ folds ─▶ outer step ─▶ persist ─▶ publish ─▶ fragment goes down
                └──────────────── a round: the D-th after it opens at its end ─────────┘
    └───────────────────────────────────── the flight of a contribution ──────────────────────────────────────┘
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

from gruppetto.numerics.codec import CODECS, Codec
from gruppetto.numerics.downlink import DOWNLINKS, REST
from gruppetto.protocol.settings import MAX_IN_FLIGHT
from gruppetto.sim.cluster import Cluster
from gruppetto.sim.quality import codec_loss, compute_share, flight_loss, learners_loss, period_loss

__all__ = ["Choice", "Needs", "needs_of"]

GIB = 2.0**30
GBIT = 1e9 / 8
FP32_BYTES = 4
FULL = 0.8
"""Of a link: beyond, what is short and urgent waits behind bodies, and a lost second is not caught up with."""
SAMPLE = 1 << 20
"""Elements by which the bytes of a codec are counted."""
CORE_BYTES_PER_S = 1e9
"""What one core takes in, or gives out: a checksum and a copy."""
HELD = 3 * FP32_BYTES
"""Bytes of a parameter in the syncer's memory: value, momentum, and what is in the making (docs/ARCHITECTURE.md)."""
KEPT_ON_DISK = 3 * 2 * FP32_BYTES
"""... and on its disk, with ``syncer.snapshots_kept = 2``."""
LONGEST_PERIOD = 1000.0
"""Steps between two synchronisations of a fragment beyond which nobody has looked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What RUN.toml says of it."""

    learners: int
    sync_period: int = 24
    num_fragments: int = 24
    uplink: str = "bf16"
    downlink: str = "fp32"
    durability: Literal["round", "interval"] = "round"
    min_quorum: int = 1

    @property
    def every(self) -> float:
        """Rounds from one fragment that is due to the next; P ≤ H."""
        return self.sync_period / self.num_fragments


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What a choice asks of a cluster, and what may be expected of it."""

    upload_bytes: int
    """One fragment, up; the answer of one learner."""
    download_bytes: int
    width_bytes_s: float
    """What one learner has of the links while all of them use them."""
    syncer_s: float
    """Folds of all answers, and the outer step."""
    persist_s: float
    """Of an average round."""
    interval_s: float
    """From one round to the next: a step, or more where links, disk or syncer need longer."""
    slowdown: float
    """Steps to a round."""
    rounds_in_flight: int
    """D: the steps in which an answer is asked for and arrives."""
    flight_steps: float
    """Inner steps from a snapshot to the merged value, and half a step until the boundary at which it is applied."""
    gbit_s: float
    """The narrowest link of a site that gives a round for every step; infinite where that is not up to the link."""
    mean_gbit_s: float
    """What the link of a site carries in the mean, the busier way."""
    syncer_gbit_s: float
    """What the syncer's own link carries in the mean, the busier way."""
    syncer_gib: float
    syncer_cores: int
    disk_gib: float
    loss: float
    """The relative loss that this is expected to cost against data parallel."""
    goodput: float
    problems: tuple[str, ...] = ()
    """Why it cannot be done here."""

    @property
    def value(self) -> float:
        """Goodput, less the compute that would make up for the loss: what plans are ranked by."""
        return self.goodput * compute_share(self.loss)


def needs_of(cluster: Cluster, choice: Choice) -> Needs:
    """Price a choice. Where a round takes longer than steps, rounds come later, and H is so much longer in steps."""
    m, machine, step_s = choice.learners, cluster.machine, cluster.step_s
    if m == 1:
        return _judged(_of_one_job(cluster), cluster, choice)
    elements = -(-cluster.parameters // choice.num_fragments)
    up, down = _bytes(CODECS[choice.uplink], elements), _bytes(_codec_down(cluster, choice), elements)
    at_a_site = -(-m // (cluster.sites or m))
    width = cluster.gbit_s / at_a_site * GBIT
    if cluster.syncer_gbit_s is not None:
        width = min(width, cluster.syncer_gbit_s / m * GBIT)

    costs = machine.costs(fragment_elements=elements, steps_down=_rests(choice) > 0)
    syncer_s = m * costs.fold_s + costs.merge_s
    persist_s = costs.persist_s
    if _rests(choice):
        persist_s += _rests(choice) * elements / machine.hosts / machine.persist_bytes_per_s
    if choice.durability == "interval":
        # The bytes are the same, and every fragment is written once in H rounds; the forced writes are fewer.
        persist_s -= machine.persist_s * (1 - 1 / choice.num_fragments)
    beside_links_s = 2 * machine.latency_s + syncer_s + persist_s + costs.publish_s
    round_s = beside_links_s + up / width
    in_flight = _in_flight(choice, step_s, latency_s=machine.latency_s, up_s=up / width, down_s=down / width)
    at_once = max(1.0, in_flight / choice.every)
    alone_s = syncer_s + persist_s + costs.publish_s
    due_s = max(choice.every * step_s, round_s / at_once, alone_s, up / width, down / width)
    interval_s = due_s / choice.every
    slack_s = at_once * choice.every * step_s - beside_links_s
    flight_s = round_s + 3 * machine.latency_s + down / width + step_s / 2
    busier = max(up, down) / due_s / GBIT
    # Pieces in blocks, of learners of many ranks, are put together as float32 (docs/sharded.md).
    in_blocks = CODECS[choice.uplink].block_numel > 1 and m < cluster.chips
    answer = elements * FP32_BYTES if in_blocks else up
    loss = (
        learners_loss(m, cluster.parameters)
        + period_loss(choice.sync_period * interval_s / step_s)
        + flight_loss(flight_s / step_s)
        + codec_loss(choice.uplink, choice.downlink)
    )
    found = Needs(
        upload_bytes=up,
        download_bytes=down,
        width_bytes_s=width,
        syncer_s=syncer_s,
        persist_s=persist_s,
        interval_s=interval_s,
        slowdown=interval_s / step_s,
        rounds_in_flight=in_flight,
        flight_steps=flight_s / step_s,
        gbit_s=at_a_site * max(up / slack_s, down / (choice.every * step_s)) / GBIT if slack_s > 0 else math.inf,
        mean_gbit_s=at_a_site * busier,
        syncer_gbit_s=m * busier,
        syncer_gib=((HELD + _rests(choice)) * cluster.parameters + m * answer + _bytes_beside(choice, cluster)) / GIB,
        syncer_cores=math.ceil((syncer_s + m * (up + down) / CORE_BYTES_PER_S) / due_s) + 1,
        disk_gib=(KEPT_ON_DISK + 3 * _rests(choice)) * cluster.parameters / GIB,
        loss=loss,
        goodput=cluster.goodput(m),
    )
    return _judged(found, cluster, choice)


def _in_flight(choice: Choice, step_s: float, *, latency_s: float, up_s: float, down_s: float) -> int:
    """1 where a link has too much to carry: with more of it at once everything would come late."""
    if max(up_s, down_s) > FULL * choice.every * step_s:
        return 1
    answer_s = 3 * latency_s + up_s  # progress, ask and answer, one way each
    return min(max(1, math.ceil(answer_s / step_s)), choice.sync_period, MAX_IN_FLIGHT)


def _of_one_job(cluster: Cluster) -> Needs:
    """One learner exchanges nothing with anybody, and so has no loss to show for it: plain data parallel."""
    return Needs(
        upload_bytes=0,
        download_bytes=0,
        width_bytes_s=cluster.gbit_s * GBIT,
        syncer_s=0.0,
        persist_s=0.0,
        interval_s=cluster.step_s,
        slowdown=1.0,
        rounds_in_flight=1,
        flight_steps=0.0,
        gbit_s=0.0,
        mean_gbit_s=0.0,
        syncer_gbit_s=0.0,
        syncer_gib=0.0,
        syncer_cores=0,
        disk_gib=0.0,
        loss=0.0,
        goodput=cluster.goodput(1),
    )


def _judged(found: Needs, cluster: Cluster, choice: Choice) -> Needs:
    problems = []
    if choice.learners > cluster.chips:
        problems.append(f"{choice.learners} learners on {cluster.chips} chips")
    if cluster.sites is not None and choice.learners < cluster.sites:
        problems.append(f"{choice.learners} learners at {cluster.sites} sites: a learner lies within one site")
    if cluster.syncer_gib is not None and found.syncer_gib > cluster.syncer_gib:
        problems.append(f"the syncer takes {found.syncer_gib:.3g} GiB, its host has {cluster.syncer_gib:.3g}")
    period = choice.sync_period * found.slowdown
    if period > LONGEST_PERIOD:
        problems.append(
            f"a fragment is synchronised every {period:,.0f} steps: it takes "
            f"{found.upload_bytes / found.width_bytes_s:.3g} s up and "
            f"{found.download_bytes / found.width_bytes_s:.3g} s down, {found.syncer_s:.3g} s to be merged and "
            f"{found.persist_s:.3g} s to be written"
        )
    return replace(found, problems=tuple(problems)) if problems else found


def _bytes(codec: Codec, elements: int) -> int:
    return -(-codec.payload_bytes(SAMPLE) * elements // SAMPLE)


def _codec_down(cluster: Cluster, choice: Choice) -> Codec:
    """What travels down as long as nobody misses anything. Learners of several ranks take every value whole."""
    down = DOWNLINKS[choice.downlink]
    return down.usual if choice.learners >= cluster.chips else down.whole


def _rests(choice: Choice) -> float:
    """Bytes of a parameter that the syncer keeps of what steps down have left unsaid."""
    return REST.bits / 8 if DOWNLINKS[choice.downlink].steps is not None else 0.0


def _bytes_beside(choice: Choice, cluster: Cluster) -> int:
    """With fp32 down, what is served is the value itself."""
    return 0 if choice.downlink == "fp32" else _bytes(DOWNLINKS[choice.downlink].usual, cluster.parameters)
