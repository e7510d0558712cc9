"""One run under chaos, from its plan to its verdict: what ``gruppetto chaos`` does once, or once for each seed."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gruppetto.chaos.real.check import Verdict
from gruppetto.chaos.real.conductor import Conductor
from gruppetto.chaos.real.evidence import gather
from gruppetto.chaos.real.plan import LivePlan
from gruppetto.chaos.real.verdict import judge
from gruppetto.cli.train import ride_and_report
from gruppetto.errors import DataError, RunFailed
from gruppetto.files import json_in
from gruppetto.report.rundir import RIVALS, VERDICT, write_report
from gruppetto.runtime.clock import MonotonicClock

__all__ = ["Disturbed", "disturb"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Disturbed:
    """A run and what came of it. ``broken``: what stopped it before its end."""

    directory: Path
    verdict: Verdict
    broken: RunFailed | None


def disturb(plan: LivePlan, directory: Path, *, cache: Path, compare: Sequence[Path]) -> Disturbed:
    """Run ``plan`` in a fresh directory, then the same without faults where it asks for that, and judge.

    Raises what stopped the run, if it did not come so far that there is something to judge.
    """
    broken = _ride(plan, directory, cache)
    calm = [*compare, *([] if broken else _without_faults(plan, directory, cache))]
    try:
        verdict = _conclude(plan, directory, calm)
    except DataError as nothing:
        raise broken or nothing from nothing
    return Disturbed(directory=directory, verdict=verdict, broken=broken)


def _ride(plan: LivePlan, directory: Path, cache: Path) -> RunFailed | None:
    """What stopped the run before its end. There is a verdict on it all the same."""
    from gruppetto.cli.live import LiveView
    from gruppetto.launch.local import run_local
    from gruppetto.launch.sight import Sight

    # What does not go over a link could not be disturbed there.
    run = replace(plan.run, syncer=replace(plan.run.syncer, shared_memory=False))
    conductor = Conductor(plan, directory)
    with conductor.disk(), conductor, LiveView(str(directory), plan.run.rounds) as view:

        def show(sight: Sight) -> None:
            conductor.saw(sight.status, standby_waits=sight.standby is not None and sight.standby["state"] == "waiting")
            view.show(sight)

        try:
            unjudged = run_local(
                run, directory, cache=cache, clock=MonotonicClock(), show=show, routes=conductor.routes
            )
        except RunFailed as broken:
            return broken
    if unjudged:
        print(unjudged, file=sys.stderr)
    return None


def _without_faults(plan: LivePlan, directory: Path, cache: Path) -> list[Path]:
    """The same run, undisturbed, once for each seed of ``[compare]``."""
    calm = []
    for seed in plan.compare.seeds:
        place = directory / RIVALS / f"calm-{seed}"
        place.mkdir(parents=True)
        print(f"for comparison: without faults, seed {seed}", file=sys.stderr)
        ride_and_report(replace(plan.run, train=plan.run.train.seeded(seed)), place, cache=cache)
        calm.append(place)
    return calm


def _conclude(plan: LivePlan, directory: Path, calm: Sequence[Path]) -> Verdict:
    names = [entry.name for entry in plan.run.learners]
    seen = gather(directory, learners=names, liveness_s=plan.run.protocol.liveness_s)
    losses = [loss for place in calm if (loss := _last_loss(place)) is not None]
    verdict = judge(seen, plan.expect, compare=losses)
    (directory / VERDICT).write_text(json.dumps(verdict.as_json(), indent=2) + "\n", encoding="utf-8")
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        pass  # the report says that there are no figures
    else:
        from gruppetto.chaos.real.figure import draw_chaos
        from gruppetto.report.figures import save

        save(draw_chaos(seen), directory / "figures", "chaos")
    write_report(directory, [place for place in calm if not place.is_relative_to(directory)])
    return verdict


def _last_loss(directory: Path) -> float | None:
    try:
        return _loss_in(json_in(directory / "report.json"))
    except (OSError, ValueError, LookupError, TypeError):  # not made yet, or damaged
        return _loss_in(write_report(directory).figures)


def _loss_in(figures: Mapping[str, Any]) -> float | None:
    loss = figures["eval"]["loss"]
    return None if loss is None else float(loss)
