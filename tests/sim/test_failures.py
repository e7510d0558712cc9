"""Failures: rates, not objects; the same seed, the same faults."""

from __future__ import annotations

import itertools
import math
import random
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gruppetto.errors import SettingError
from gruppetto.sim.failures import YEAR_S, Cause, Recovery, draw_faults

RECOVERY = Recovery(scale_s=2190.0, shape=1.5, power=1.5)
CHIP = Cause(name="chip", mtbi_s=YEAR_S, recovery=RECOVERY)


def first(count: int, *causes: Cause, chips: int = 1_200_000, seed: int = 0) -> list[object]:
    return list(itertools.islice(draw_faults(causes, chips=chips, seed=seed), count))


def test_failures_come_at_the_rate_of_all_chips_together() -> None:
    """The count over a time is Poisson: within four standard deviations of its mean, and chips are hit evenly."""
    days, chips = 20, 600_000
    faults = list(itertools.takewhile(lambda f: f.at_s < days * 86_400, draw_faults([CHIP], chips=chips, seed=3)))
    mean = chips * days / 365
    assert abs(len(faults) - mean) < 4 * math.sqrt(mean)
    lower = sum(f.first_chip < chips // 2 for f in faults)
    assert abs(lower - len(faults) / 2) < 4 * math.sqrt(len(faults) / 4)


def test_the_chips_are_one_superposed_process() -> None:
    """Twice the chips fail twice as often: the same draws, at half the times."""
    small, large = first(50, CHIP, chips=1000), first(50, CHIP, chips=2000)
    assert [f.at_s / 2 for f in small] == pytest.approx([f.at_s for f in large])  # type: ignore[attr-defined]


def test_another_cause_leaves_the_faults_of_the_others_as_they_were() -> None:
    region = Cause(name="region", mtbi_s=36_000, recovery=RECOVERY, source_chips=100_000)
    alone = first(50, CHIP)
    both = first(200, CHIP, region)
    assert [f for f in both if f.cause == "chip"][:50] == alone  # type: ignore[attr-defined]
    regions = [f for f in both if f.cause == "region"]  # type: ignore[attr-defined]
    assert regions
    assert all(f.first_chip % 100_000 == 0 and f.num_chips == 100_000 for f in regions)  # type: ignore[attr-defined]
    assert [f.at_s for f in both] == sorted(f.at_s for f in both)  # type: ignore[attr-defined]


def test_seeds_differ_and_hash_seeds_do_not_matter() -> None:
    assert first(5, CHIP, seed=1) == first(5, CHIP, seed=1) != first(5, CHIP, seed=2)
    program = (
        "import itertools; from gruppetto.sim.failures import *;"
        "c = Cause(name='chip', mtbi_s=YEAR_S, recovery=Recovery(scale_s=60));"
        "print(list(itertools.islice(draw_faults([c], chips=1000, seed=7), 20)))"
    )
    said = {
        subprocess.run(
            [sys.executable, "-c", program], env={"PYTHONHASHSEED": h, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True, check=True, text=True,
        ).stdout
        for h in ("1", "2")
    }  # fmt: skip
    assert len(said) == 1


@given(st.floats(0.5, 3), st.floats(0.5, 3), st.floats(0, 0.999))
def test_the_quantile_inverts_the_distribution(shape: float, power: float, share: float) -> None:
    recovery = Recovery(scale_s=600.0, shape=shape, power=power)
    x = recovery.quantile_s(share)
    assert (1 - math.exp(-((x / 600.0) ** shape))) ** power == pytest.approx(share, abs=1e-9)


def test_draws_have_the_mean() -> None:
    rng = random.Random(0)
    draws = [RECOVERY.draw_s(rng) for _ in range(20_000)]
    assert sum(draws) / len(draws) == pytest.approx(RECOVERY.mean_s, rel=0.02)
    assert RECOVERY.mean_s == pytest.approx(2400, rel=0.01)


def test_no_failures_at_all() -> None:
    assert first(1, Cause(name="chip", mtbi_s=math.inf, recovery=RECOVERY)) == []


@pytest.mark.parametrize("field", ["scale_s", "shape", "power"])
@pytest.mark.parametrize("value", [0.0, -1.0, math.inf, math.nan])
def test_an_impossible_recovery_is_refused(field: str, value: float) -> None:
    with pytest.raises(SettingError, match=f"recovery.{field}"):
        Recovery(**{"scale_s": 1.0, field: value})


def test_an_impossible_cause_is_refused() -> None:
    with pytest.raises(SettingError, match="cause rack: mtbi_s is -1"):
        Cause(name="rack", mtbi_s=-1.0, recovery=RECOVERY)
    with pytest.raises(SettingError, match="source_chips is 0"):
        Cause(name="rack", mtbi_s=1.0, recovery=RECOVERY, source_chips=0)
