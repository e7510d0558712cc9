"""What ``gruppetto simulate`` may be told, and the scenario that it describes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import tyro

from gruppetto.cli.flags import positional
from gruppetto.cli.quantities import as_count, as_gbit_s, as_number, as_seconds, as_years
from gruppetto.config.kinds import LARGEST, shown
from gruppetto.config.run import CodecChoice
from gruppetto.errors import SettingError
from gruppetto.numerics.codec import CODECS
from gruppetto.protocol.settings import ProtocolSetting
from gruppetto.sim.choice import GBIT
from gruppetto.sim.elastic import ElasticCosts
from gruppetto.sim.failures import Cause, Recovery
from gruppetto.sim.machine import read_machine
from gruppetto.sim.network import Link
from gruppetto.sim.paper import FITTED, Hardware, usual_slice
from gruppetto.sim.rivals import RestartCosts
from gruppetto.sim.scenario import LIVENESS_S, Outages, Scenario

__all__ = ["MANY", "Flags", "at_least_one", "chips_of", "one_by_one", "priced", "resized", "scenario_of"]

MANY = ("--chips", "--learners", "--systems", "--fails", "--sites")
"""Flags that take several values; every other one takes one."""
TABLE_STRIDE = 16


@dataclass(frozen=True, kw_only=True)
class Flags:
    """Goodput in virtual time: the shipping cores and their rivals under the same sample of failures.

    Chips are rates, so millions cost no more than thousands. Numbers may be written 1.2M, 400ms, 30d, 1y, 18%.
    """

    scenario: Annotated[tuple[str, ...], tyro.conf.Positional, positional("[SCENARIO.toml]")] = ()
    """A file of flags, by their names with _ for -, with [[learner]] and [[maintenance]]; the command line wins."""
    chips: Annotated[tuple[str, ...], tyro.conf.arg(metavar="N")] = ()
    """Chips of the cluster; several for several rows. The default is 1.2M."""
    learners: Annotated[tuple[str, ...], tyro.conf.arg(metavar="M")] = ()
    """Learners; several for several rows. The default is 8."""
    systems: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME")] = ()
    """Of data-parallel, elastic, diloco, decoupled. The default is all but diloco."""
    mtbi_years: str = "1"
    """Mean time between interruptions of one chip, in years or with a unit; never for none."""
    hours: str = "24"
    """Virtual hours."""
    seed: int = 0
    """The first seed. The same seed gives the same history."""
    seeds: int | None = None
    """Samples of failures, for the confidence interval. The default is 1, and 3 for a table."""
    step_s: str = "1"
    """Seconds an inner step takes."""
    stride: int | None = None
    """Inner steps between two boundaries that the cores see; the cost is 1/stride. Default 1, and 16 for a table."""
    spread: str = "0"
    """How much slower the slowest learner is than the fastest."""
    jitter: str = "0"
    """Every step takes between 1 - jitter and 1 + jitter times its mean."""
    latency: str | None = None
    """One way, between a learner and the syncer. The default is 20ms, or the machine's."""
    machine: Path | None = None
    """What the syncer's host and a link to it can do, from gruppetto doctor --measure: prices merges, commits and
    transfers of a model of --parameters, bf16 up and fp32 down."""
    gbit_s: str | None = None
    """With --machine: a learner's link to the syncer, each way. The default is what was measured: a loopback, unless
    doctor was told of a syncer."""
    slice_chips: str | None = None
    """Chips that are lost and regained together. The default is 256, and 8 below 32,768 chips."""
    scale_down_s: str = f"{FITTED.elastic.scale_down_s:g}"
    """An elastic job's pause after a loss."""
    scale_up_s: str = f"{FITTED.elastic.scale_up_s:g}"
    """... and to take returned slices in."""
    recovery_s: str | None = None
    """Mean time until a failed slice is back. The default is 40 minutes."""
    restart_s: str = f"{FITTED.restart.restart_s:g}"
    """From an interruption to the next step of a job without elasticity."""
    checkpoint_s: str = f"{FITTED.restart.checkpoint_s:g}"
    """Training time between two of its checkpoints."""
    fails: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME:CHIPS:MTBI:RECOVERY[:notice]")] = ()
    """More that fails: a rack, a power domain, a region, maintenance. For example region:131072:90d:2h."""
    link_fails: Annotated[str | None, tyro.conf.arg(metavar="MTBI:MEAN")] = None
    """Every learner's link to the syncer breaks. For example 6h:60s."""
    syncer_fails: Annotated[str | None, tyro.conf.arg(metavar="MTBI:MEAN")] = None
    """The syncer dies and comes back. For example 1d:30s."""
    chip_steps: str | None = None
    """Stop when decoupled learners have made so many steps, times their chips; rows say after how many hours."""
    min_quorum: int = 1
    """Learners that a round waits for (K)."""
    fragments: int = 24
    """Of the model (P)."""
    sync_period: int = 24
    """Rounds between two synchronisations of one fragment (H)."""
    overlap_steps: int | None = None
    """Inner steps during which a fragment may be in flight without costing anyone anything (τ). The default is 2, as of
    a run."""
    table: str | None = None
    """paper: the grid of the paper, ours beside it, with the error of every cell. bandwidth: what links must carry."""
    parameters: str = "5B"
    """Of the model, for bytes, the table of bandwidths and --machine."""
    sites: Annotated[tuple[str, ...], tyro.conf.arg(metavar="S")] = ()
    """Between which data parallel reduces, for the table of bandwidths. The default is 2 and 8."""
    figure: Path | None = None
    """Draw goodput against chips into this file; for the table of bandwidths, utilisation against bandwidth."""
    trace: Path | None = None
    """Record one run of decoupled learners here, for gruppetto report and replay: a directory, or a file that ends in
    .jsonl."""
    processes: int = 1
    """Rows are simulated side by side."""
    json: bool = False
    """One JSON object."""


def one_by_one(arguments: Sequence[str]) -> list[str]:
    """``--learners 2 4 8`` and ``--learners 2,4,8`` as one flag each."""
    spelled: list[str] = []
    many: str | None = None
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if argument.startswith("--"):
            many = name if name in MANY else None
            if many is None:
                spelled.append(argument)
            elif equals:
                spelled += _spell(many, value)
        elif many is None:
            spelled.append(argument)
        else:
            spelled += _spell(many, argument)
    return spelled


def _spell(flag: str, values: str) -> list[str]:
    """A comma parts learners and systems; in a number of chips it groups digits."""
    each = values.split(",") if flag in ("--learners", "--systems") else [values]
    return [word for value in each for word in (flag, value)]


def scenario_of(flags: Flags) -> Scenario:
    # Judged also where no table and no machine wants them: what is mistyped is nothing that was meant.
    as_count(flags.parameters, where="--parameters")
    for sites in flags.sites:
        as_count(sites, where="--sites")
    recovery = FITTED.recovery
    if flags.recovery_s is not None:
        mean_s = as_seconds(flags.recovery_s, where="--recovery-s", never=False)
        recovery = replace(recovery, scale_s=recovery.scale_s * mean_s / recovery.mean_s)
    hardware = Hardware(
        elastic=ElasticCosts(
            slice_chips=slice_of(flags, max(map(chips_of, flags.chips or ("1.2M",)))),
            scale_down_s=as_seconds(flags.scale_down_s, where="--scale-down-s", zero=True, never=False),
            scale_up_s=as_seconds(flags.scale_up_s, where="--scale-up-s", zero=True, never=False),
        ),
        recovery=recovery,
        restart=RestartCosts(
            restart_s=as_seconds(flags.restart_s, where="--restart-s", zero=True, never=False),
            checkpoint_s=as_seconds(flags.checkpoint_s, where="--checkpoint-s", never=False),
        ),
    )
    stride = flags.stride if flags.stride is not None else (TABLE_STRIDE if flags.table else 1)
    return Scenario(
        chips=max(map(chips_of, flags.chips or ("1.2M",))),
        mtbi_s=as_years(flags.mtbi_years, where="--mtbi-years"),
        hours=as_seconds(flags.hours, where="--hours", unit="h", never=False) / 3600.0,
        step_s=as_seconds(flags.step_s, where="--step-s", never=False),
        spread=as_number(flags.spread, where="--spread"),
        jitter=as_number(flags.jitter, where="--jitter"),
        stride=at_least_one(stride, "--stride"),
        hardware=hardware,
        causes=tuple(map(_cause, flags.fails)),
        link=Link(latency_s=_latency_s(flags)),
        link_outages=_outages(flags.link_fails, "--link-fails"),
        syncer_outages=_outages(flags.syncer_fails, "--syncer-fails"),
        chip_steps=as_count(flags.chip_steps, where="--chip-steps") if flags.chip_steps is not None else None,
        protocol=ProtocolSetting(
            # The number of learners is set for each row; here it only has to allow the quorum.
            num_learners=max(1, flags.min_quorum),
            min_quorum=flags.min_quorum,
            num_fragments=flags.fragments,
            sync_period=flags.sync_period,
            overlap_steps=min(2, max(0, flags.sync_period - 1)) if flags.overlap_steps is None else flags.overlap_steps,
            liveness_s=LIVENESS_S,
        ),
    )


def _latency_s(flags: Flags) -> float:
    """Refused where it is so long that whoever speaks is taken for dead before he is heard."""
    latency_s = (
        as_seconds(flags.latency, where="--latency", zero=True, never=False) if flags.latency is not None else 0.02
    )
    if latency_s >= LIVENESS_S:
        fix = f"use less than {LIVENESS_S:g} s, after which a learner that says nothing counts as gone"
        raise SettingError(f"is {flags.latency!r}", where="--latency", fix=fix)
    return latency_s


def priced(scenario: Scenario, flags: Flags) -> Scenario:
    """The scenario on a measured machine, with a model of ``--parameters``; as it is without one."""
    gbit_s = as_gbit_s(flags.gbit_s, where="--gbit-s") if flags.gbit_s is not None else None
    if flags.machine is None:
        if gbit_s is not None:
            fix = "give --machine, which says what fragments weigh and merges cost"
            raise SettingError("means nothing without a machine", where="--gbit-s", fix=fix)
        return scenario
    machine = read_machine(flags.machine)
    if gbit_s is not None:
        machine = replace(machine, link_bytes_per_s=gbit_s * GBIT)
    elements = -(-as_count(flags.parameters, where="--parameters") // flags.fragments)
    latency_s = machine.latency_s if flags.latency is None else scenario.link.latency_s
    return replace(
        scenario,
        link=Link(latency_s=latency_s, bytes_per_s=machine.link_bytes_per_s),
        costs=machine.costs(fragment_elements=elements),
        fragment_bytes=CODECS[CodecChoice().uplink].payload_bytes(elements),
        download_bytes=CODECS[CodecChoice().downlink].payload_bytes(elements),
    )


def slice_of(flags: Flags, chips: int) -> int:
    """What is lost together in a cluster of so many chips, as told or as usual."""
    return as_count(flags.slice_chips, where="--slice-chips") if flags.slice_chips is not None else usual_slice(chips)


def resized(scenario: Scenario, flags: Flags, chips: int) -> Scenario:
    """The same on so many chips, with the slices of such a cluster."""
    elastic = replace(scenario.hardware.elastic, slice_chips=slice_of(flags, chips))
    return replace(scenario, chips=chips, hardware=replace(scenario.hardware, elastic=elastic))


def chips_of(text: str) -> int:
    return as_count(text, where="--chips")


def at_least_one(value: int, where: str, *, most: int = LARGEST) -> int:
    if value < 1:
        raise SettingError(f"is {value}", where=where, fix="use 1 or more")
    if value > most:
        raise SettingError(f"is {shown(value)}", where=where, fix=f"use at most {most:,}")
    return value


def _cause(text: str) -> Cause:
    name, *parts = text.split(":")
    if len(parts) not in (3, 4) or parts[3:] not in ([], ["notice"]) or not name or name == "chip":
        fix = "use NAME:CHIPS:MTBI:RECOVERY or NAME:CHIPS:MTBI:RECOVERY:notice, such as region:131072:90d:2h"
        raise SettingError(f"is {text!r}", where="--fails", fix=fix)
    mean_s = as_seconds(parts[2], where=f"--fails {name}: recovery", never=False)
    unit = Recovery(scale_s=1.0, shape=FITTED.recovery.shape, power=FITTED.recovery.power).mean_s
    return Cause(
        name=name,
        source_chips=as_count(parts[0], where=f"--fails {name}: chips"),
        mtbi_s=as_seconds(parts[1], where=f"--fails {name}: mtbi"),
        recovery=replace(FITTED.recovery, scale_s=mean_s / unit),
        notice=len(parts) == 4,
    )


def _outages(text: str | None, where: str) -> Outages | None:
    if text is None:
        return None
    mtbi, colon, mean = text.partition(":")
    if not colon:
        raise SettingError(f"is {text!r}", where=where, fix="use MTBI:MEAN, such as 6h:60s")
    return Outages(mtbi_s=as_seconds(mtbi, where=where), mean_s=as_seconds(mean, where=where, never=False))
