"""Runs on engines that people operate: a real Ray of several nodes on this machine, and a real Slurm of one."""

from __future__ import annotations

import getpass
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytestmark = [pytest.mark.live, pytest.mark.alone, pytest.mark.timeout(600)]
ROOT = Path(__file__).resolve().parents[2]
SLURM_CONF = """
ClusterName=one
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
StateSaveLocation={place}/state
SlurmdSpoolDir={place}/spool
SlurmctldPidFile={place}/controller.pid
SlurmdPidFile={place}/node.pid
SlurmctldLogFile={place}/controller.log
SlurmdLogFile={place}/node.log
AuthType=auth/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
ReturnToService=2
MpiDefault=none
NodeName={host} NodeAddr=127.0.0.1 CPUs=8 State=UNKNOWN
PartitionName=all Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""
RUN = """
[run]
rounds = 100_000
num_fragments = 6
sync_period = 6
liveness_s = 3.0
[train]
batch_size = 4
eval_every_rounds = 10_000
eval_windows = 16
[model]
dim = 32
layers = 2
ffn_dim = 64
heads = 2
[[group]]
name = "pair"
ranks = 2
[[group]]
name = "one"
max_learners = 2
"""


def test_a_run_on_ray_outlives_the_loss_of_nodes_and_takes_in_a_new_one() -> None:
    pytest.importorskip("ray")
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "ray_nodes.py"), "--small", "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout[done.stdout.index("{") :])  # Ray says there that nodes are gone
    assert "big-0" in found["lost"]
    assert found["rounds_without_them"] > 0, "the others went on"
    assert {each["learner"] for each in found["recoveries"]} >= {"big-0"}
    assert found["ledger"]["ledger_balances"] == "ok"


@pytest.fixture
def slurm(tmp_path: Path) -> Iterator[dict[str, str]]:
    """The environment in which a Slurm of this one machine answers."""
    if missing := [name for name in ("slurmctld", "slurmd", "munge") if shutil.which(name) is None]:
        pytest.skip(f"{', '.join(missing)} not installed (Debian: slurm-wlm, munge)")
    if subprocess.run(["munge", "-n"], capture_output=True, check=False).returncode:
        pytest.skip("munged does not run (service munge start)")
    if os.geteuid() != 0:
        pytest.skip("only root can start a node of Slurm that runs jobs")
    for name in ("state", "spool"):
        (tmp_path / name).mkdir()
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as two:
        ports = (one.getsockname()[1], two.getsockname()[1])
    conf = tmp_path / "slurm.conf"
    host = socket.gethostname()
    conf.write_text(SLURM_CONF.format(place=tmp_path, host=host, user=getpass.getuser(), ports=ports))
    environment = {**os.environ, "SLURM_CONF": str(conf)}
    daemons = [
        subprocess.Popen([name, "-D", "-f", str(conf)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for name in ("slurmctld", "slurmd")
    ]
    asks = ["sinfo", "-h", "-o", "%T"]
    try:
        for _ in range(60):
            said = subprocess.run(asks, capture_output=True, text=True, env=environment, check=False)
            if said.stdout.strip() == "idle":
                break
            time.sleep(0.5)
        else:
            log = (tmp_path / "node.log").read_text()[-500:] if (tmp_path / "node.log").exists() else ""
            pytest.skip(f"Slurm does not come up here: {said.stdout.strip()} {said.stderr.strip()} {log}")
        yield environment
    finally:
        subprocess.run(["scancel", "--me"], env=environment, check=False, capture_output=True)
        for daemon in reversed(daemons):
            daemon.terminate()
            daemon.wait(20)


def until(holds: Callable[[], bool], launch: subprocess.Popen[bytes]) -> None:
    for _ in range(400):
        if holds():
            return
        assert launch.poll() is None, "the run has ended already"
        time.sleep(0.3)
    raise AssertionError("it has not come so far in two minutes")


def test_a_run_on_slurm_survives_a_preemption_and_a_kill(slurm: dict[str, str], tmp_path: Path) -> None:
    file, out = tmp_path / "RUN.toml", tmp_path / "run"
    file.write_text(RUN)
    with (tmp_path / "said").open("w") as said:
        launch = subprocess.Popen(
            [sys.executable, "-m", "gruppetto", "launch", str(file), "--on", "slurm", "--out", str(out), "--json"],
            stdout=subprocess.DEVNULL,
            stderr=said,
            env=slurm,
        )

    def job(name: str) -> str:
        asked = ["squeue", "--noheader", f"--name=gruppetto-{name}", "--states=RUNNING", "--format=%i"]
        return subprocess.run(asked, capture_output=True, text=True, env=slurm, check=True).stdout.strip()

    try:
        until(lambda: "training, round" in (tmp_path / "said").read_text(), launch)
        first = job("one-0")
        subprocess.run(["scancel", "--signal=TERM", first], env=slurm, check=True)
        os.kill(int((out / "slurm" / "pair-0" / "pid").read_text()), signal.SIGKILL)
        until(lambda: job("one-0") not in ("", first), launch)
        status = [sys.executable, "-m", "gruppetto", "status", str(out), "--json"]

        def riding() -> bool:
            shown = subprocess.run(status, capture_output=True, text=True, check=False).stdout
            learners = json.loads(shown)["learners"] if shown else {}
            return len(learners) == 3 and all(each["state"] == "live" for each in learners.values())

        until(riding, launch)
    finally:
        if launch.poll() is None:
            launch.terminate()
            launch.wait()
    assert launch.returncode == 143, (tmp_path / "said").read_text()[-4000:]
    assert not job("pair-0") and not job("syncer"), "it takes its jobs along"
    shown = subprocess.run(
        [sys.executable, "-m", "gruppetto", "report", str(out), "--json"], capture_output=True, text=True, check=True
    )
    report = json.loads(shown.stdout)
    died = {(each["process"], each["cause"]) for each in report["deaths"]}
    assert died == {("pair-0", "SIGKILL")}, "nobody else did"
    assert report["checks"]["ledger_balances"] == "ok"
