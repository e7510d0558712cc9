"""The script of a job says what it needs, and runs what it was given; run by bash, with words for Slurm's commands."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gruppetto.launch.children import NODE_LOST, STOPPED
from gruppetto.launch.engine import HERE
from gruppetto.launch.slurm_job import Job, SlurmProcess, script_of
from gruppetto.runtime.clock import MonotonicClock

SRUN = '#!/bin/bash\nshift\nexport SLURM_PROCID=0 SLURM_NODEID=0\nexec "$@"\n'
SBATCH = "#!/bin/bash\necho '7;one'\n"


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory for commands that are found first."""
    place = tmp_path / "bin"
    place.mkdir()
    monkeypatch.setenv("PATH", f"{place}:{os.environ['PATH']}")
    for name, text in (("srun", SRUN), ("sbatch", SBATCH), ("scancel", "#!/bin/bash\n"), ("scontrol", "#!/bin/bash\n")):
        (place / name).write_text(text)
        (place / name).chmod(0o755)
    return place


def job(tmp_path: Path, *arguments: str, ranks: int = 1, **need: float) -> Job:
    return Job(
        name="eu-0",
        arguments=arguments,
        threads=2,
        log=tmp_path / "log",
        place=tmp_path / "a place",
        python=sys.executable,
        bundles=[{"CPU": 1.5, **need}] * (2 if ranks > 2 else 1),
        ranks_per_node=min(ranks, 2),
    )


def test_the_script_asks_for_what_the_process_needs(tmp_path: Path) -> None:
    script = script_of(job(tmp_path, "-V", GPU=2, memory=2**30 + 1, **{"partition=gpu": 1, "disk": 3}))
    for flag in ("cpus-per-task=2", "gpus-per-node=2", "mem=1025M", "partition=gpu", "gres=disk:3", "nodes=1"):
        assert f"#SBATCH --{flag}\n" in script
    assert "#SBATCH --nodes=2\n" in script_of(job(tmp_path, "-V", ranks=4))


@pytest.mark.parametrize("word", ["two words", "it's", '"$HOME"', "$(false)", "a;b", "*", "--listen=" + HERE])
def test_arguments_arrive_as_they_were_given(tmp_path: Path, commands: Path, word: str) -> None:
    one = job(tmp_path, "-c", "import sys; print(sys.argv[1:])", word)
    one.place.mkdir()
    done = subprocess.run(
        ["bash", "-c", script_of(one)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "SLURM_JOB_ID": "7"},
    )
    (here,) = subprocess.run(["hostname", "-I"], capture_output=True, text=True, check=True).stdout.split()[:1]
    assert done.stdout.strip() == repr([word.replace(HERE, here)])
    assert one.exit_file.read_text() == "0\n"
    assert one.pid_file.read_text().strip().isdecimal()


@pytest.mark.parametrize(
    ("state", "said", "code"),
    [
        ("COMPLETED", "0", 0),
        ("FAILED", "2", 2),
        ("FAILED", "137", -9),
        ("NODE_FAIL", "", NODE_LOST),
        ("", "", NODE_LOST),
    ],
)
def test_how_a_job_has_ended(tmp_path: Path, commands: Path, state: str, said: str, code: int) -> None:
    process = SlurmProcess(job(tmp_path, "-V"), MonotonicClock())
    assert process.number == "7"
    process.heard("PENDING", "(Resources)")
    assert (process.waits, process.poll()) == ("Slurm (Resources)", None)
    process.heard("RUNNING", "None")
    assert (process.waits, process.poll()) == ("", None)
    if said:
        process.job.exit_file.write_text(said)
    process.heard(state, "None")
    assert process.poll() == code and not process.evicted


def test_who_is_told_to_leave_by_slurm_may_come_back(tmp_path: Path, commands: Path) -> None:
    for ours in (False, True):
        process = SlurmProcess(job(tmp_path, "-V"), MonotonicClock())
        process.heard("RUNNING", "None")
        if ours:
            process.terminate()
        process.job.exit_file.write_text(str(STOPPED))
        process.heard("FAILED", "None")
        assert (process.poll(), process.evicted) == (STOPPED, not ours)


def test_what_slurm_refuses_is_the_users_to_mend_and_its_silence_is_not(tmp_path: Path, commands: Path) -> None:
    for said, code in (("invalid partition specified: gpu", 2), ("Unable to contact slurm controller", NODE_LOST)):
        (commands / "sbatch").write_text(f"#!/bin/bash\necho 'sbatch: error: {said}' >&2\nexit 1\n")
        process = SlurmProcess(job(tmp_path, "-V"), MonotonicClock())
        assert process.poll() == code
        assert said in process.job.log.read_text()
