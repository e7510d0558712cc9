"""Figures of several seeds: side by side, mean and spread."""

from __future__ import annotations

import json
from statistics import fmean, stdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gruppetto.chaos.real.check import Check, Verdict
from gruppetto.chaos.real.seeds import as_table, spread


def verdict(loss: float, *, recovery_s: float | None = None, well: bool = True) -> Verdict:
    checks = [
        Check(name="quality", state="pass" if well else "fail", text=f"{loss}", figures={"loss": loss, "at_most": 9})
    ]
    if recovery_s is not None:
        checks.append(Check(name="recovery", state="measured", text="", figures={"max_s": recovery_s, "wrong": []}))
    return Verdict(checks=tuple(checks))


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=9))
def test_mean_and_spread_are_those_of_the_values(losses: list[float]) -> None:
    figures = spread({seed: verdict(loss) for seed, loss in enumerate(losses)})
    assert list(figures) == ["quality.loss"]
    figure = figures["quality.loss"]
    assert figure.mean == pytest.approx(fmean(losses))
    assert (figure.sd is None) == (len(losses) == 1)
    if figure.sd is not None:
        assert figure.sd == pytest.approx(stdev(losses))
    json.dumps(figure.as_json(), allow_nan=False)


def test_a_figure_counts_for_the_seeds_that_have_it_and_what_fails_is_said() -> None:
    verdicts = {1: verdict(2.0, recovery_s=4.0), 2: verdict(3.0), 7: verdict(float("nan"), well=False)}
    figures = spread(verdicts)
    assert figures["quality.loss"].values == {1: 2.0, 2: 3.0}
    assert (figures["recovery.max_s"].values, figures["recovery.max_s"].sd) == ({1: 4.0}, None)
    lines = as_table(verdicts).splitlines()
    assert lines[0].split() == ["seed", "1", "seed", "2", "seed", "7", "mean", "±", "sd"]
    assert lines[1].split() == ["verdict", "holds", "holds", "FAILS"]
    assert lines[2].split() == ["quality.loss", "2", "3", "–", "2.5", "0.7071"]
    assert lines[3].split() == ["recovery.max_s", "4", "–", "–", "4", "–"]
    assert lines[4] == "seed 7: FAIL quality: nan"
