"""What a ride means in the settings of trainer, protocol and virtual world."""

from __future__ import annotations

from dataclasses import replace

from gruppetto.experiments.coarse import COARSE
from gruppetto.experiments.guests import VISITS, visits
from gruppetto.experiments.material import MATERIAL
from gruppetto.experiments.models import MODELS
from gruppetto.experiments.ride import Ride
from gruppetto.numerics.outer import OuterSetting, choose_outer
from gruppetto.protocol.messages import ApplyMode
from gruppetto.protocol.settings import ProtocolSetting
from gruppetto.sim.failures import Recovery
from gruppetto.sim.mishaps import draw_kills
from gruppetto.train.setting import DataSetting, InnerSetting, TrainSetting
from gruppetto.train.virtual_setting import VirtualSetting, name_of

__all__ = ["protocol_of", "training_of", "world_of"]

AWAY = Recovery(scale_s=60.0 * 2190.0 / 2400.0, shape=1.5, power=1.5)
"""A minute in the mean."""
KILLS_LAST_S = 20.0
"""For each round: so long are kills drawn for, since no system takes longer."""
LEAST_SLOTS = 16


def training_of(ride: Ride) -> TrainSetting:
    """What every learner trains, and how it is judged."""
    setting = TrainSetting(
        model=MODELS[ride.model],
        data=DataSetting() if ride.data in MATERIAL else DataSetting(corpus=ride.data),
        inner=InnerSetting(learning_rate=ride.inner_rate),
        batch_size=ride.batch,
        eval_every_rounds=max(1, ride.rounds // ride.evaluations),
        eval_windows=ride.eval_windows,
    )
    return setting.seeded(ride.seed)


def protocol_of(ride: Ride) -> ProtocolSetting:
    slots = ride.slots or max(LEAST_SLOTS, 2 * ride.learners, ride.learners + VISITS * ride.guests)
    return ProtocolSetting(
        num_learners=ride.learners,
        num_slots=slots,
        rounds=ride.rounds,
        sync_period=ride.sync_period,
        num_fragments=ride.fragments,
        overlap_steps=ride.overlap_steps,
        rounds_in_flight=ride.in_flight,
        snapshot_window=ride.snapshot_window,
        min_quorum=ride.quorum,
        grace=ride.grace,
        apply=ApplyMode(ride.apply),
        norm_gate=ride.gate,  # type: ignore[arg-type]
    )


def world_of(ride: Ride) -> VirtualSetting:
    """Who is how fast, who comes and goes, what goes wrong, and what the syncer does to tensors."""
    kills = draw_kills(
        [name_of(m) for m in range(ride.learners)],
        per_hour=ride.kills_per_hour,
        lasts_s=KILLS_LAST_S * ride.rounds,
        seed=ride.seed,
        recovery=AWAY,
    )
    setting = VirtualSetting(
        fragmenter=ride.fragmenter,
        merge=((".*", ride.merge),) if ride.merge else (),
        uplink="fp32" if ride.uplink in COARSE else ride.uplink,
        feedback=ride.feedback,
        downlink=ride.downlink,
        step_s=ride.step_s,
        batch_sizes=ride.batches,
        jitter=ride.jitter,
        latency_s=ride.latency_s,
        spoilt=tuple((learner, float(factor)) for learner, factor in ride.bad),
        mishaps=kills,
        guests=visits(ride),
    )
    if ride.outer is None:
        outer, _ = choose_outer("auto", ride.rounds, ride.sync_period)
    else:
        lr, momentum = ride.outer
        outer = OuterSetting(optimizer="nesterov" if momentum else "sgd", lr=lr, momentum=momentum)
    first, final = ride.outer_shares
    changed = replace(outer, first_share=first, final_share=final, average_share=ride.outer_average)
    return setting if changed == outer and ride.outer is None else replace(setting, outer=changed)
