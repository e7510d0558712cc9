"""Six healthy learners, one that sends NaN, one that sends everything a thousand times too long; see experiments/."""

from __future__ import annotations

import importlib.util
import math
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from gruppetto.train.data import Data
from gruppetto.train.setting import TrainSetting

ROUNDS = 32


@pytest.fixture(scope="module")
def hostile() -> ModuleType:
    path = Path(__file__).parents[2] / "experiments" / "hostile.py"
    spec = importlib.util.spec_from_file_location("hostile", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["hostile"] = module  # where its dataclasses look themselves up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def losses(hostile: ModuleType, setting: TrainSetting, data: Data) -> dict[str, dict[str, Any]]:
    """Every mode once, short."""
    setting = replace(setting, eval_every_rounds=ROUNDS, eval_windows=40)
    jobs = [hostile.Job(mode, 0, ROUNDS, 4) for mode in hostile.MODES]
    return {job.mode: hostile.run(job, setting, data) for job in jobs}


def test_with_the_gate_two_bad_learners_cost_the_healthy_ones_nothing(losses: dict[str, dict[str, Any]]) -> None:
    six = losses["six"]["loss"]
    for mode in ("clip", "reject"):
        loss = losses[mode]["loss"]
        assert isinstance(six, float) and isinstance(loss, float)
        assert loss <= 1.01 * six, (mode, loss, six)
        assert losses[mode]["rejected"]["not-finite"] > 0


def test_who_is_too_long_is_clipped_or_refused_every_time_and_nobody_else(losses: dict[str, dict[str, Any]]) -> None:
    clip, reject = losses["clip"], losses["reject"]
    # One contribution a round, but for a few that come too late.
    assert clip["clipped"].keys() == {"norm"} and ROUNDS - 5 < clip["clipped"]["norm"] <= ROUNDS
    assert reject["clipped"] == {} and ROUNDS - 5 < reject["rejected"]["norm"] <= ROUNDS
    assert losses["six"]["clipped"] == {} and losses["six"]["rejected"].keys() <= {"late"}


def test_honest_contributions_go_with_the_momentum(losses: dict[str, dict[str, Any]]) -> None:
    assert min(losses["six"]["cosines"].values()) > 0.1


def test_without_it_the_run_is_ruined(hostile: ModuleType, losses: dict[str, dict[str, Any]]) -> None:
    off, six = losses["off"]["loss"], losses["six"]["loss"]
    assert isinstance(six, float)
    assert off is None or off > hostile.RUINED * six


@pytest.mark.parametrize("rule", ["trimmed", "median", "clipped-rda"])
def test_a_robust_merge_rule_alone_saves_it_too(losses: dict[str, dict[str, Any]], rule: str) -> None:
    loss, six = losses[rule]["loss"], losses["six"]["loss"]
    assert isinstance(six, float) and isinstance(loss, float)
    assert math.isfinite(loss) and loss < 1.2 * six
