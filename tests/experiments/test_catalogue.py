"""Every experiment, at its smallest, from its arms to its table."""

from __future__ import annotations

from pathlib import Path

import pytest

from gruppetto.errors import UserError
from gruppetto.experiments.catalogue import EXPERIMENTS, choose, listed
from gruppetto.experiments.experiment import Experiment, Scale
from gruppetto.experiments.findings import Findings
from gruppetto.experiments.ride import Ride
from gruppetto.experiments.riding import ride
from gruppetto.experiments.store import Store
from gruppetto.experiments.telling import table

VIRTUAL = [experiment for experiment in EXPERIMENTS.values() if experiment.how == "virtual"]


def small(asked: Ride, story: Path) -> Ride:
    """The same in a moment: a few rounds of the smallest model of its kind."""
    data = f"text:{story}" if asked.data == "python-stdlib" else asked.data
    few = {"rounds": 4, "sync_period": 3, "fragments": 3, "overlap_steps": min(2, asked.overlap_steps), "batch": 1}
    sizes = tuple(min(size, 2) for size in asked.batches)
    model = "mite" if asked.model == "tiny" else asked.model
    least = {"eval_windows": 8, "evaluations": 2, "tuned_steps": 2, "questions": min(asked.questions, 4)}
    return asked.but(**few, **least, batches=sizes, data=data, model=model)


@pytest.mark.parametrize("experiment", VIRTUAL, ids=lambda experiment: experiment.name)
def test_end_to_end(experiment: Experiment, story: Path, cache: Path, tmp_path: Path) -> None:
    """The first arm and the last of either side of an ordering, told as results of the rides they stand for."""
    scale = Scale(quick=True, seeds=1, cache=cache)
    arms = {arm.name: arm for arm in experiment.arms(scale)}
    chosen = [next(iter(arms))]
    chosen += [name for ordering in list(experiment.orderings(scale))[-1:] for name in (ordering.less, ordering.more)]
    chosen += [arms[name].beside for name in chosen if arms[name].beside]
    store = Store(tmp_path / "x.jsonl")
    for name in dict.fromkeys(chosen):
        asked = arms[name].under(0)
        if asked not in store:
            store.add(asked, ride(small(asked, story), cache), took_s=0)
    found = Findings(experiment, scale, store)
    page = table(found)
    for name in dict.fromkeys(chosen):
        row = next(line for line in page.splitlines() if line.startswith(f"| {name} |"))
        assert row.endswith("| 1 |") and any(cell.strip() for cell in row.split("|")[2:-2]), row
    for judged in found.judged()[-1:]:
        assert judged.verdict.word == "undecided" and judged.verdict.share is not None


@pytest.mark.parametrize("quick", [True, False])
def test_orderings_are_between_arms_and_every_arm_has_its_own_ride(quick: bool, cache: Path) -> None:
    for experiment in EXPERIMENTS.values():
        scale = Scale(quick=quick, cache=cache)
        arms = {arm.name: arm for arm in experiment.arms(scale)}
        assert len({arm.ride.hash for arm in arms.values()}) == len(arms) == len(list(experiment.arms(scale)))
        assert {arm.beside for arm in arms.values()} <= {"", *arms}
        for ordering in experiment.orderings(scale):
            assert {ordering.less, ordering.more} <= arms.keys(), (experiment.name, ordering.says)
        assert len(experiment.rides(Scale(quick=quick, seeds=2, cache=cache))) == 2 * len(arms)
        assert experiment.number_of_seeds(Scale(quick=False)) >= 5 or experiment.name in ("demo", "bandwidth")


def test_they_are_found_by_name() -> None:
    assert [experiment.name for experiment in choose("all")] == list(EXPERIMENTS)
    told = listed()
    assert [name for name in EXPERIMENTS if name not in told] == []
    assert "44 runs (22 arms × 2 seeds) with --quick, else 22 runs (22 arms × 1 seed) of full length: about ten" in told
    with pytest.raises(UserError, match="did you mean merge"):
        choose("marge")
