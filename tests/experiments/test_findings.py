"""Means, intervals and verdicts, against what can be worked out otherwise."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from gruppetto.experiments.experiment import Arm, Experiment, Ordering, Scale
from gruppetto.experiments.findings import Findings
from gruppetto.experiments.ride import Ride
from gruppetto.experiments.store import Store
from gruppetto.experiments.telling import table, write
from gruppetto.sim.tally import half_width


def quantile(freedom: int) -> float:
    """Of Student's t, two-sided 95 %: by Simpson's rule and bisection."""
    scale = math.gamma((freedom + 1) / 2) / math.gamma(freedom / 2) / math.sqrt(freedom * math.pi)

    def inside(q: float) -> float:
        steps = 2000
        density = [scale * (1 + (q * i / steps) ** 2 / freedom) ** (-(freedom + 1) / 2) for i in range(steps + 1)]
        return 2 * q / steps / 3 * (density[0] + density[-1] + 4 * sum(density[1:-1:2]) + 2 * sum(density[2:-1:2]))

    low, high = 1.0, 20.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if inside(middle) < 0.95 else (low, middle)
    return low


@pytest.mark.parametrize("n", [2, 3, 4, 5, 7, 10, 13, 20])
def test_intervals_are_students(n: int) -> None:
    values = [math.sin(3.7 * i) for i in range(n)]
    mean = sum(values) / n
    deviation = math.sqrt(sum((v - mean) ** 2 for v in values) / (n - 1))
    exact = quantile(n - 1) * deviation / math.sqrt(n)
    found = half_width(values)
    assert found is not None
    # Where the table has a gap the interval is a little too wide, never too narrow.
    assert 0.998 * exact < found < (1.01 if n <= 10 or n in (15, 20) else 1.1) * exact


def experiment(**more: object) -> Experiment:
    arms = [
        Arm(name="good", ride=Ride(learners=2), beside="bad"),
        Arm(name="bad", ride=Ride(learners=3), beside="bad"),
    ]
    ordering = Ordering(less="good", more="bad", says="good ends below bad")
    given = {"arms": lambda scale: arms, "orderings": lambda scale: [ordering], "seeds": (3, 5)} | more
    return Experiment(name="x", question="?", paper="", **given)  # type: ignore[arg-type]


def findings(tmp_path: Path, good: list[float | None], bad: list[float | None], **more: object) -> Findings:
    store = Store(tmp_path / "x.jsonl")
    for seed, losses in enumerate(zip(good, bad, strict=True)):
        for learners, loss in zip((2, 3), losses, strict=True):
            store.add(Ride(seed=seed, learners=learners), {"loss": loss}, took_s=0)
    return Findings(experiment(**more), Scale(), store)


@pytest.mark.parametrize(
    ("good", "bad", "word"),
    [
        # Seeds differ far more than arms do: compared seed by seed, it shows.
        ([1.00, 2.00, 3.01], [1.01, 2.02, 3.04], "HOLDS"),
        ([1.01, 2.02, 3.04], [1.00, 2.00, 3.01], "DOES NOT HOLD"),
        ([1.00, 2.02, 3.00], [1.01, 2.00, 3.01], "undecided"),
        ([1.00], [2.00], "undecided"),  # a single seed says nothing of the next
        ([1.00, None, 3.0], [1.01, 2.0, 3.1], "DOES NOT HOLD"),  # it has come to no number
    ],
)
def test_verdicts(tmp_path: Path, good: list[float | None], bad: list[float | None], word: str) -> None:
    judged = findings(tmp_path, good, bad).judged()
    assert [j.verdict.word for j in judged] == [word]


def test_within_is_a_share_of_what_it_is_compared_with(tmp_path: Path) -> None:
    close = Ordering(less="good", more="bad", says="", within=0.02)
    found = findings(tmp_path, [1.011, 2.021, 3.03], [1.0, 2.0, 3.0], orderings=lambda scale: [close])
    assert found.judged()[0].verdict.word == "HOLDS"
    assert found.judged()[0].verdict.share == pytest.approx((0.011 + 0.0105 + 0.01) / 3)


def test_what_is_written_says_the_same_everywhere(tmp_path: Path) -> None:
    found = findings(tmp_path, [1.0, 2.0, 3.0], [1.1, 2.2, 3.3])
    page = table(found)
    assert "| good | -9.09 % ± 0.00 % | 2.000 ± 2.483 | 3 |" in page
    assert "| good ends below bad | HOLDS | -9.09 % ± 0.00 % |" in page and "Virtual time" in page
    written = write(found, tmp_path / "out")
    assert [path.name for path in written] == ["x.md", "x.json", "x.png"]
    said = json.loads(written[1].read_text())
    assert said["arms"][0]["figures"]["held-out nats"]["by_seed"] == [1.0, 2.0, 3.0]
    assert written[2].stat().st_size > 1000


def test_a_loss_that_is_no_number_is_said_and_not_left_out_of_a_mean(tmp_path: Path) -> None:
    assert "no number in 1 of 3 seeds" in table(findings(tmp_path, [1.0, None, 3.0], [1.0, 2.0, 3.0]))
