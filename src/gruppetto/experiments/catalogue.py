"""All experiments, by name."""

from __future__ import annotations

from gruppetto.errors import UserError
from gruppetto.experiments.bandwidth import BANDWIDTH
from gruppetto.experiments.compression import COMPRESSION
from gruppetto.experiments.dials import APPLY, FRAGMENTS, SCHEDULE, WEIGHTS
from gruppetto.experiments.downstream import DOWNSTREAM
from gruppetto.experiments.experiment import Experiment, Scale
from gruppetto.experiments.faults import FAULTS
from gruppetto.experiments.heterogeneous import HETEROGENEOUS
from gruppetto.experiments.hostile import HOSTILE
from gruppetto.experiments.levers import LEVERS
from gruppetto.experiments.merging import MERGE
from gruppetto.experiments.noniid import NONIID
from gruppetto.experiments.outer import DEMO, OUTER
from gruppetto.experiments.peers.question import RACES
from gruppetto.experiments.posttraining import POSTTRAINING
from gruppetto.experiments.quality import CAPTIONS, MOE, QUALITY, VISION
from gruppetto.experiments.scavenging import SCAVENGING

__all__ = ["ALL", "EXPERIMENTS", "choose", "listed"]

ALL = "all"
EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment
    for experiment in (
        QUALITY,
        MOE,
        VISION,
        CAPTIONS,
        MERGE,
        OUTER,
        LEVERS,
        HETEROGENEOUS,
        FRAGMENTS,
        SCHEDULE,
        APPLY,
        WEIGHTS,
        COMPRESSION,
        SCAVENGING,
        FAULTS,
        HOSTILE,
        NONIID,
        POSTTRAINING,
        BANDWIDTH,
        DEMO,
        DOWNSTREAM,
        RACES,
    )
}


def choose(name: str) -> list[Experiment]:
    """The experiment called ``name``, or all of them. Raises :class:`UserError`.

    >>> [experiment.name for experiment in choose("merge")]
    ['merge']
    """
    if name == ALL:
        return list(EXPERIMENTS.values())
    if name not in EXPERIMENTS:
        import difflib

        near = difflib.get_close_matches(name, EXPERIMENTS, n=1)
        fix = f"did you mean {near[0]}?" if near else "see gruppetto experiment --list"
        raise UserError(f"{name!r} is no experiment", where="gruppetto experiment", fix=fix)
    return [EXPERIMENTS[name]]


def listed() -> str:
    """Two lines each: name and question; how many runs, of how many arms and seeds."""
    rows = []
    for experiment in EXPERIMENTS.values():
        rows.append(f"  {experiment.name:<14} {experiment.question}")
        quick, whole = (_runs(experiment, Scale(quick=quick)) for quick in (True, False))
        rows.append(f"  {'':<14} {quick} with --quick, else {whole} of full length: {experiment.cost}")
    return "\n".join(["gruppetto experiment NAME [--quick], or all (what they take is estimated):", "", *rows])


def _runs(experiment: Experiment, scale: Scale) -> str:
    arms, seeds = len(experiment.arms(scale)), experiment.number_of_seeds(scale)
    return f"{arms * seeds} runs ({arms} arms × {seeds} seed{'s' * (seeds > 1)})"
