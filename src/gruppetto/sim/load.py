"""How much there is to simulate, told before it is begun: whoever asks for a billion steps hears of it at once."""

from __future__ import annotations

from gruppetto.errors import SettingError
from gruppetto.sim.failures import Cause
from gruppetto.sim.goodput import ONE_JOB
from gruppetto.sim.scenario import LIVENESS_S, Outages, Scenario

__all__ = ["MAX_EVENTS", "check_load", "expected_faults", "expected_steps"]

MAX_EVENTS = 2e8
"""Of one row: the better part of an hour. The dearest cell of the paper's grid has a hundredth of it."""


def expected_faults(system: str, scenario: Scenario) -> float:
    """Faults of the cluster and outages of links and syncer that a row lives through, on average.

    Every learner goes through the faults of all chips to find its own, and dials again after each outage of the syncer.

    >>> year = 365 * 86_400.0
    >>> expected_faults("elastic", Scenario(chips=365, mtbi_s=year, hours=24))
    1.0
    """
    learners, horizon_s = _learners(system, scenario), scenario.horizon_s
    chip = Cause(name="chip", mtbi_s=scenario.mtbi_s, recovery=scenario.hardware.recovery)
    faults = sum(cause.rate(scenario.chips) for cause in (chip, *scenario.causes)) * horizon_s
    if system == "decoupled":
        faults += sum(horizon_s / (outages.mtbi_s + outages.mean_s) for outages in _outages(scenario))
    return learners * faults


def expected_steps(system: str, scenario: Scenario) -> float:
    """Boundaries that a row simulates, and heartbeats between them, if nothing fails.

    >>> expected_steps("elastic", Scenario(chips=8, hours=1, step_s=2.0))
    1800.0
    """
    if system == "data-parallel":
        return 0.0  # goes from fault to fault
    learners = _learners(system, scenario)
    a_second = learners / scenario.step_s
    if system == "decoupled":
        if scenario.parties:
            a_second = sum(1 / party.step_s for party in scenario.parties)
        a_second = a_second / scenario.stride + learners * 4 / LIVENESS_S
    return scenario.horizon_s * a_second


def check_load(system: str, scenario: Scenario) -> None:
    """Raises :class:`SettingError` with the numbers when a row would not end while somebody waits for it."""
    faults, steps = expected_faults(system, scenario), expected_steps(system, scenario)
    if faults + steps <= MAX_EVENTS:
        return
    fix = "--mtbi-years, or --fails, --link-fails and --syncer-fails that come less often"
    if steps > faults:
        fix = "longer --step-s" + (" or --stride, or fewer --learners" if system == "decoupled" else "")
    raise SettingError(
        f"{system} has about {faults:.3g} faults and {steps:.3g} steps in {scenario.hours:g} hours, "
        f"more than {MAX_EVENTS:g} events in all",
        where="gruppetto simulate",
        fix=f"use fewer --hours, or {'larger ' if faults >= steps else ''}{fix}",
    )


def _learners(system: str, scenario: Scenario) -> int:
    return 1 if system in ONE_JOB else scenario.learners


def _outages(scenario: Scenario) -> list[Outages]:
    return [outages for outages in (scenario.link_outages, scenario.syncer_outages) if outages is not None]
