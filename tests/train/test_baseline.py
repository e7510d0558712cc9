"""Baselines as real processes: the same mathematics, a clear end, and nothing left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
import torch
from safetensors.torch import load_file

from gruppetto.errors import DataError, RunFailed, SettingError, StateError, UserError
from gruppetto.train.baseline import Mode, Plan, run_baseline
from gruppetto.train.data import Data
from gruppetto.train.log import TrainLog
from gruppetto.train.rivals import lockstep_data_parallel, single
from gruppetto.train.setting import TrainSetting

pytestmark = pytest.mark.live


def plan_for(setting: TrainSetting, cache: Path, out: Path, mode: Mode, learners: int, rounds: int) -> Plan:
    return Plan(mode=mode, setting=setting, num_learners=learners, rounds=rounds, out=str(out), cache=str(cache))


def records(out: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (out / "train.jsonl").read_text().splitlines()]


def test_two_processes_equal_lock_step(setting: TrainSetting, data: Data, cache: Path, tmp_path: Path) -> None:
    plan = plan_for(setting, cache, tmp_path / "run", "data-parallel", 2, 20)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".lock").touch()  # of who holds it
    outcome = run_baseline(plan)
    with TrainLog(tmp_path / "log", lambda: 0.0) as log:
        model, found = lockstep_data_parallel(setting, data, num_learners=2, rounds=20, log=log)
    weights = load_file(tmp_path / "run" / "model" / "model.safetensors")
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(weights[name], parameter.detach(), rtol=0, atol=5e-4)
    assert outcome.loss == pytest.approx(found.loss, abs=1e-3)
    assert outcome.loss < outcome.initial_loss - 1
    assert outcome.tokens == 2 * 20 * setting.tokens_per_step
    assert json.loads((tmp_path / "run" / "corpus.json").read_bytes())["sha256"] == data.manifest.sha256
    written = records(tmp_path / "run")
    assert {record["who"] for record in written} == {"learner-0", "learner-1"}
    assert {record["who"] for record in written if record["kind"] != "train"} == {"learner-0"}
    assert sum(int(str(r["tokens"])) for r in written if r["kind"] == "train" and r["round"] == 20) == (outcome.tokens)


def test_diloco_of_two_learns_and_ends_together(setting: TrainSetting, cache: Path, tmp_path: Path) -> None:
    plan = replace(plan_for(setting, cache, tmp_path / "run", "diloco", 2, 30), sync_period=7)
    outcome = run_baseline(plan)
    assert outcome.loss < outcome.initial_loss - 1
    assert (tmp_path / "run" / "model" / "config.json").exists()


@contextmanager
def running(setting: TrainSetting, cache: Path, tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """An endless data-parallel run of two, and the process ids of its ranks, once both have trained."""
    setting_path, out = tmp_path / "setting.json", tmp_path / "run"
    setting_path.write_bytes(msgspec.json.encode(setting))
    command = [sys.executable, "-m", "gruppetto.train.baseline", "--mode", "data-parallel", "--learners", "2"]
    command += ["--rounds", "1000000", "--out", str(out), "--cache", str(cache)]
    command += ["--setting", str(setting_path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    watchdog = threading.Timer(120, process.kill)
    watchdog.start()
    pause = threading.Event()
    try:
        while not (out / "train.jsonl").exists() or {"learner-0", "learner-1"} != {
            record["who"] for record in records(out) if record["kind"] == "train"
        }:
            assert process.poll() is None, process.communicate()
            pause.wait(0.05)
        yield process, list(json.loads((out / "pids.json").read_text()).values())
    finally:
        watchdog.cancel()
        process.kill()


def gone(pid: int) -> bool:
    """Whether the process has ended, even where nobody has asked how."""
    try:
        return ") Z " in Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return True


def test_a_killed_rank_ends_the_run_with_one_line(setting: TrainSetting, cache: Path, tmp_path: Path) -> None:
    with running(setting, cache, tmp_path) as (process, ranks):
        os.kill(ranks[1], signal.SIGKILL)
        stdout, stderr = process.communicate()
    assert process.returncode == 1
    assert stdout == ""
    assert len(stderr.strip().splitlines()) == 1
    assert "rank 1 of 2 (data-parallel) ended the run: was killed by SIGKILL" in stderr
    assert all(gone(pid) for pid in ranks)


def test_no_rank_outlives_its_run(setting: TrainSetting, cache: Path, tmp_path: Path) -> None:
    with running(setting, cache, tmp_path) as (process, ranks):
        process.kill()
        process.communicate()
        pause = threading.Event()
        while not all(gone(pid) for pid in ranks):
            pause.wait(0.05)


def test_mistakes_are_found_before_anything_starts(setting: TrainSetting, cache: Path, tmp_path: Path) -> None:
    full = tmp_path / "full"
    full.mkdir()
    (full / "precious").write_text("kept")
    for taken in (full, full / "precious"):
        with pytest.raises(StateError, match="not empty"):
            run_baseline(plan_for(setting, cache, taken, "single", 1, 5))
    with pytest.raises(SettingError, match=r"data\.slots"):
        plan_for(setting, cache, tmp_path / "run", "diloco", 5, 5)
    with pytest.raises(SettingError, match=r"run\.num_learners"):
        plan_for(setting, cache, tmp_path / "run", "single", 2, 5)
    missing = replace(setting, data=replace(setting.data, corpus=f"text:{tmp_path / 'nowhere'}"))
    with pytest.raises(DataError, match="does not exist"):
        run_baseline(plan_for(missing, cache, tmp_path / "run", "single", 1, 5))
    assert not (tmp_path / "run").exists()


def test_a_mistake_that_only_a_rank_can_see_is_the_users(setting: TrainSetting, cache: Path, tmp_path: Path) -> None:
    unknown = replace(setting, model=replace(setting.model, architecture="hf:nonesuch"))
    with pytest.raises(UserError, match="nonesuch") as caught:
        run_baseline(plan_for(unknown, cache, tmp_path / "run", "single", 1, 5))
    assert not isinstance(caught.value, RunFailed)
    assert str(caught.value).count("model.architecture") == 1


def test_the_command_line_runs_diloco_of_one_which_is_single(
    setting: TrainSetting, data: Data, cache: Path, tmp_path: Path
) -> None:
    setting_path = tmp_path / "setting.json"
    setting_path.write_bytes(msgspec.json.encode(setting))
    command = [sys.executable, "-m", "gruppetto.train.baseline", "--mode", "diloco", "--rounds", "12"]
    command += ["--sync-period", "5", "--outer-rate", "1", "--outer-momentum", "0"]
    command += ["--out", str(tmp_path / "run"), "--cache", str(cache), "--setting", str(setting_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    with TrainLog(tmp_path / "log", lambda: 0.0) as log:
        _, found = single(setting, data, rounds=12, log=log)
    outcome = json.loads(done.stdout)
    assert outcome["tokens"] == 12 * setting.tokens_per_step
    assert outcome["loss"] == pytest.approx(found.loss, abs=1e-4)
    again = subprocess.run(command, capture_output=True, text=True, check=False)
    assert again.returncode == 2
    assert len(again.stderr.strip().splitlines()) == 1
