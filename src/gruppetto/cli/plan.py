"""``gruppetto plan``"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import tyro

from gruppetto.cli.flags import print_json, read_flags
from gruppetto.cli.naming import as_typed
from gruppetto.cli.place_for import make_place_for
from gruppetto.cli.plan_file import run_toml
from gruppetto.cli.plan_sites import between, read_sites, sites_as_json, sites_text
from gruppetto.cli.plan_text import as_json, start_with, text_of
from gruppetto.cli.quantities import as_count, as_gbit_s, as_gib, as_number, as_seconds, as_years
from gruppetto.cli.simulate_flags import one_by_one
from gruppetto.errors import SettingError, StateError
from gruppetto.sim.cluster import Cluster
from gruppetto.sim.machine import MachineProfile, read_machine
from gruppetto.sim.paper import FITTED, usual_slice
from gruppetto.sim.planner import plan
from gruppetto.sim.sites import Site, check_sites

__all__ = ["main"]


@dataclass(frozen=True, kw_only=True)
class Flags:
    """Say how to train on a cluster, and why: learners, quorum, period, fragments, codecs, durability, syncer.

    Numbers may be written 1.2M, 70B, 400ms, 1y, 10Gbit/s, 18%.
    """

    chips: str = "8"
    """Of the whole cluster."""
    params: str = "1B"
    """Parameters of the model."""
    step_s: str = "1"
    """Seconds an inner step takes."""
    mtbi_years: str = "1"
    """Mean time between interruptions of one chip, in years or with a unit; never for none."""
    gbit_s: str = "10"
    """The link to the syncer, each way: of every site, or of every learner where no sites are named."""
    sites: str | None = None
    """Places with one link each; a learner lies within one of them. Or a file of [[site]] tables: name, learners, up,
    down, rtt; then the plan says too where the syncer is to be, and how full each link is."""
    learners: Annotated[tuple[str, ...], tyro.conf.arg(metavar="M")] = ()
    """Only consider these."""
    syncer_gib: str | None = None
    """Memory of the syncer's host; without it, the plan says what it takes."""
    syncer_gbit_s: str | None = None
    """The syncer's own link, each way; without it, the plan says what it takes."""
    latency: str | None = None
    """One way, between a learner and the syncer. The default is 20ms, or the machine's."""
    spread: str = "0"
    """How much slower the slowest learner is than the fastest."""
    slice_chips: str | None = None
    """Chips that are lost and regained together. The default is 256, and 8 below 32,768 chips; 1 where each one is
    preempted by itself."""
    machine: Path | None = None
    """What the syncer's host can do, from gruppetto doctor --measure."""
    rounds: str | None = None
    """The last round of the run, for --out."""
    out: Path | None = None
    """Write the RUN.toml here."""
    json: bool = False
    """One JSON object."""


OPTIONS = {
    **{f"plan.{name}": f"--{name.replace('_', '-')}" for name in ("chips", "sites", "gbit_s", "step_s")},
    **{f"plan.{name}": f"--{name.replace('_', '-')}" for name in ("syncer_gib", "syncer_gbit_s")},
    "plan.parameters": "--params",
    "simulate.spread": "--spread",
}
"""Where the planner says that a value is, and the option that sets it."""
LONGEST_LATENCY_S = 60.0
"""Whoever is not heard for so long counts as gone."""


def main(arguments: Sequence[str]) -> int:
    flags = read_flags(Flags, one_by_one(arguments), "plan")
    with as_typed(OPTIONS):
        return _plan(flags)


def _plan(flags: Flags) -> int:
    if flags.out is not None and flags.out.exists():
        raise StateError("is there already", where=str(flags.out), fix="name another file")
    if flags.out is not None:
        make_place_for(flags.out)
    rounds = as_count(flags.rounds, where="--rounds") if flags.rounds is not None else None
    learners = [as_count(m, where="--learners") for m in flags.learners] or None
    cluster, sites = cluster_of(flags), sites_of(flags)
    if sites:
        if learners is not None:
            raise SettingError("is given, and a file of sites", where="--learners", fix="leave one of them out")
        learners = [sum(site.learners for site in sites)]
        cluster = between(cluster, sites, latency=flags.latency is not None)
    found = plan(cluster, learners=learners, progress=_progress)
    toml = run_toml(found, rounds=rounds)
    if flags.out is not None:
        flags.out.write_text(toml, encoding="utf-8")
    commands = start_with(found, file="RUN.toml" if flags.out is None else str(flags.out))
    if flags.json:
        more = {"sites": sites_as_json(found, sites)} if sites else {}
        print_json({**as_json(found, rounds=rounds), **more, "run_toml": toml, "start": commands})
    else:
        print(text_of(found, rounds=rounds))
        if sites:
            print(f"\n{sites_text(found, sites)}")
        if flags.out is not None:
            print(f"\n{flags.out}")
        elif found.best.choice.learners > 1:
            print(f"\nRUN.toml (--out writes it):\n\n{toml}", end="")
        if commands:
            print("\nstart with (learners of your own: gruppetto.Learner; all on one machine: gruppetto train):\n")
            print("\n".join(f"  {command}" for command in commands))
    return 0


def cluster_of(flags: Flags) -> Cluster:
    chips = as_count(flags.chips, where="--chips")
    machine = read_machine(flags.machine) if flags.machine is not None else MachineProfile()
    if flags.latency is not None:
        latency_s = as_seconds(flags.latency, where="--latency", zero=True, never=False)
        if latency_s >= LONGEST_LATENCY_S:
            fix = f"use less than {LONGEST_LATENCY_S:g} s, after which a learner that says nothing counts as gone"
            raise SettingError(f"is {flags.latency!r}", where="--latency", fix=fix)
        machine = replace(machine, latency_s=latency_s)
    given = flags.slice_chips
    slice_chips = as_count(given, where="--slice-chips") if given is not None else usual_slice(chips)
    return Cluster(
        chips=chips,
        parameters=_parameters(flags.params),
        step_s=as_seconds(flags.step_s, where="--step-s", never=False),
        mtbi_s=as_years(flags.mtbi_years, where="--mtbi-years"),
        gbit_s=as_gbit_s(flags.gbit_s, where="--gbit-s"),
        sites=None if flags.sites is None or _is_file(flags.sites) else as_count(flags.sites, where="--sites"),
        syncer_gib=as_gib(flags.syncer_gib, where="--syncer-gib") if flags.syncer_gib is not None else None,
        syncer_gbit_s=as_gbit_s(flags.syncer_gbit_s, where="--syncer-gbit-s")
        if flags.syncer_gbit_s is not None
        else None,
        spread=as_number(flags.spread, where="--spread"),
        hardware=replace(FITTED, elastic=replace(FITTED.elastic, slice_chips=slice_chips)),
        machine=machine,
    )


def sites_of(flags: Flags) -> tuple[Site, ...]:
    """Those of the file; none where there is none."""
    if flags.sites is None or not _is_file(flags.sites):
        return ()
    sites = read_sites(Path(flags.sites), gbit_s=as_gbit_s(flags.gbit_s, where="--gbit-s"))
    check_sites(sites)
    return sites


def _is_file(sites: str) -> bool:
    return sites.endswith(".toml") or Path(sites).is_file()


def _parameters(text: str) -> int:
    count = as_count(text, where="--params")
    if not 1000 <= count <= 10**14:
        raise SettingError(f"is {text!r}", where="--params", fix="use 1k to 100T parameters, such as 350M or 70B")
    return count


def _progress(text: str) -> None:
    print(f"{text} …", file=sys.stderr, flush=True)
