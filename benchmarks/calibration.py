"""How far the simulator is from real runs: the same small scenarios as processes on this machine, and in virtual time.

The machine is measured first (as ``gruppetto doctor --measure`` does), each scenario is run with ``gruppetto chaos``,
and its twin is simulated from the measured profile alone, with the shipping cores. Both leave a trace, and one code
reads both (:mod:`gruppetto.trace.metrics`). Steps are padded (``min_step_s``), so that learners on a shared machine do
not slow each other down; what the machine was busy with stands in the result.

Steady rounds are soon told from others, so that kills have all the rounds and the other scenarios half of them: under
four minutes on an idle machine.

``python benchmarks/calibration.py [--rounds 80] [--step-s 1] [--scenario kills] [--out FILE.json]``
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from gruppetto.config import load_run
from gruppetto.launch.measuring import measure_machine, measure_start
from gruppetto.launch.restart import FIRST_PAUSE_S
from gruppetto.numerics.codec import CODECS
from gruppetto.protocol.settings import ProtocolSetting
from gruppetto.runtime.clock import MonotonicClock
from gruppetto.sim import Pace
from gruppetto.sim.elastic import ElasticCosts, ElasticJob
from gruppetto.sim.failures import Fault
from gruppetto.sim.fleet import Fleet
from gruppetto.sim.machine import MachineProfile, read_machine
from gruppetto.sim.rider import RiderSpec
from gruppetto.trace.log import TraceWriter
from gruppetto.trace.measures import Measures
from gruppetto.trace.metrics import measure

LEARNERS = ("anna", "ben", "clara", "dora")
FRAGMENTS = 6
MODEL = "dim = 32\nlayers = 2\nheads = 2\nffn_dim = 64"
PARAMETERS = 28_832
"""Of that model with the byte vocabulary."""
CLOCK = MonotonicClock()


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """What differs from four equal learners that nothing happens to. Kills are (share of the run, learner)."""

    name: str
    kills: tuple[tuple[float, str], ...] = ()
    slow: tuple[tuple[str, float], ...] = ()
    min_quorum: int = 1


SCENARIOS = (
    Scenario(name="calm"),
    Scenario(
        name="kills",
        kills=((0.1, "anna"), (0.25, "ben"), (0.4, "clara"), (0.55, "anna"), (0.7, "dora")),
    ),
    Scenario(name="unequal", slow=(("clara", 1.5), ("dora", 2.0))),
)


def steps_of(scenario: Scenario, step_s: float) -> dict[str, float]:
    slow = dict(scenario.slow)
    return {name: step_s * slow.get(name, 1.0) for name in LEARNERS}


def kills_of(scenario: Scenario, rounds: int, step_s: float) -> list[tuple[float, str]]:
    return [(share * rounds * step_s, name) for share, name in scenario.kills]


def plan_text(scenario: Scenario, rounds: int, step_s: float) -> str:
    learners = [f'[[learner]]\nname = "{n}"\nmin_step_s = {s}\n' for n, s in steps_of(scenario, step_s).items()]
    faults = [f'[[fault]]\nat_s = {t:.3f}\nkind = "kill"\nwho = "{n}"\n' for t, n in kills_of(scenario, rounds, step_s)]
    return "\n".join(
        [
            f"[run]\nrounds = {rounds}\nnum_fragments = {FRAGMENTS}\nsync_period = {FRAGMENTS}\n"
            f"min_quorum = {scenario.min_quorum}\n",
            f"[model]\n{MODEL}\n\n[train]\nbatch_size = 4\neval_every_rounds = {rounds}\neval_windows = 16\n",
            *learners,
            *faults,
        ]
    )


def run_real(scenario: Scenario, place: Path, rounds: int, step_s: float) -> tuple[Measures, ProtocolSetting]:
    plan, run = place / f"{scenario.name}.toml", place / scenario.name
    plan.write_text(plan_text(scenario, rounds, step_s), encoding="utf-8")
    subprocess.run(
        [sys.executable, "-m", "gruppetto", "chaos", str(plan), "--out", str(run), "--json"],
        check=False,  # a verdict on the run is not what this is about
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    return measure(run / "trace.jsonl"), load_run(run / "run.toml").protocol


def run_simulated(
    scenario: Scenario, place: Path, machine: MachineProfile, setting: ProtocolSetting, *, step_s: float
) -> Measures:
    """From the scenario and the profile alone; of the real run nothing but its settings is known here."""
    rounds = setting.rounds or 0
    away_s = FIRST_PAUSE_S + (machine.start_s or 0.0)
    nothing = ElasticCosts(slice_chips=1, scale_down_s=0.0, scale_up_s=0.0)
    kills = kills_of(scenario, rounds, step_s)
    specs = [
        RiderSpec(
            name=name,
            job=ElasticJob(
                first_chip=i,
                chips=1,
                faults=[Fault(at_s=t, first_chip=i, num_chips=1, down_s=away_s) for t, who in kills if who == name],
                costs=nothing,
            ),
            pace=Pace(step_s=each_s),
            link=machine.link,
        )
        for i, (name, each_s) in enumerate(steps_of(scenario, step_s).items())
    ]
    elements = -(-PARAMETERS // setting.num_fragments)
    path = place / f"{scenario.name}-simulated.jsonl"
    with TraceWriter(path, {"simulated": scenario.name}) as trace:
        Fleet(
            replace(setting, start_learners=len(LEARNERS)),
            specs,
            seed=0,
            horizon_s=4 * rounds * step_s + 60.0,
            costs=machine.costs(fragment_elements=elements),
            fragment_bytes=CODECS["bf16"].payload_bytes(elements),
            download_bytes=CODECS["fp32"].payload_bytes(elements),
            trace=trace,
        ).run()
    return measure(path)


def figures(found: Measures) -> dict[str, float | None]:
    start, end = found.window
    recoveries = [r.seconds for r in found.recoveries if r.seconds is not None]
    return {
        "goodput": found.goodput,
        "participation": found.participation,
        "uptime": found.uptime,
        "round_s": (end - start) / max(found.rounds, default=1),
        "recovery_s": statistics.fmean(recoveries) if recoveries else None,
    }


def compare(scenario: Scenario, place: Path, machine: MachineProfile, rounds: int, step_s: float) -> dict[str, Any]:
    before, starts = os.getloadavg()[0], [measure_start(CLOCK)]
    real, setting = run_real(scenario, place, rounds, step_s)
    loads = (before, os.getloadavg()[0])
    # On a busy machine the time that a process takes to start changes within minutes: measured again.
    starts.append(measure_start(CLOCK))
    machine = replace(machine, start_s=statistics.fmean(s.start_s for s in starts if s is not None))
    seen, told = figures(real), figures(run_simulated(scenario, place, machine, setting, step_s=step_s))
    errors = {
        name: None if seen[name] is None or told[name] is None else told[name] / seen[name] - 1  # type: ignore[operator]
        for name in seen
    }
    return {
        "scenario": scenario.name,
        "rounds": rounds,
        "real": seen,
        "simulated": told,
        "error": errors,
        "start_s": machine.start_s,
        "load": loads,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=80)
    parser.add_argument("--step-s", type=float, default=1.0)
    parser.add_argument("--scenario", choices=[s.name for s in SCENARIOS], action="append")
    parser.add_argument("--machine", type=Path, help="a profile of gruppetto doctor --measure; else measured now")
    parser.add_argument("--out", type=Path, help="write the result here")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        machine = read_machine(asked.machine) if asked.machine else measure_machine(place, CLOCK)
        print(f"{'scenario':<10} {'':<14} {'real':>8} {'simulated':>10} {'error':>7}", flush=True)
        rows = []
        for scenario in SCENARIOS:
            if asked.scenario is None or scenario.name in asked.scenario:
                rounds = asked.rounds if scenario.kills else asked.rounds // 2
                rows.append(compare(scenario, place, machine, rounds, asked.step_s))
                show(rows[-1])
    if asked.out is not None:
        result = {"rounds": asked.rounds, "step_s": asked.step_s, "machine": asdict(machine), "rows": rows}
        asked.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


def show(row: dict[str, Any]) -> None:
    for name, real in row["real"].items():
        told, error = row["simulated"][name], row["error"][name]
        if real is not None and told is not None:
            print(f"{row['scenario']:<10} {name:<14} {real:>8.3f} {told:>10.3f} {error:>+7.1%}")
    before, after = row["load"]
    print(f"{'':<10} load average {before:.1f} before, {after:.1f} after", flush=True)


if __name__ == "__main__":
    main()
