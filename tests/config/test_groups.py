"""Groups of learners: names, what they need, and what cannot be."""

from __future__ import annotations

from pathlib import Path

import pytest

from gruppetto.config import load_run
from gruppetto.config.write import write_run
from gruppetto.errors import SettingError
from gruppetto.launch.needs import bundles_for

TEXT = """
[[learner]]
name = "own"
slowdown = 2.0
[[learner]]
name = "eu-1"
slowdown = 3.0
[[group]]
name = "eu"
learners = 2
max_learners = 3
ranks = 4
ranks_per_node = 2
cpus = 1.5
gpus = 1
memory_gib = 2
resources = [["eu", 1], ["h100", 0.5]]
set = ["train.batch_size=4"]
[launch]
syncer_resources = [["disk", 1]]
"""


def test_a_group_adds_its_learners_to_those_that_are_listed(tmp_path: Path) -> None:
    (tmp_path / "RUN.toml").write_text(TEXT)
    run = load_run(tmp_path / "RUN.toml")
    assert [(entry.name, entry.slowdown) for entry in run.learners] == [("own", 2.0), ("eu-1", 3.0), ("eu-0", 1.0)]
    assert (run.protocol.num_learners, run.extras) == (3, ("eu-2",))
    eu = {"CPU": 3.0, "GPU": 2.0, "memory": 4.0 * 2**30, "eu": 1.0, "h100": 0.5}
    assert bundles_for(run, "eu-2") == [eu, eu]
    assert bundles_for(run, "own") == [{"CPU": 1.0}]
    assert bundles_for(run, "syncer") == [{"CPU": 1.0, "disk": 1.0}]


def test_a_resolved_run_with_groups_reads_back_to_itself(tmp_path: Path) -> None:
    (tmp_path / "RUN.toml").write_text(TEXT)
    run = load_run(tmp_path / "RUN.toml")
    write_run(run, tmp_path / "again.toml")
    assert load_run(tmp_path / "again.toml") == run


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('[[group]]\nname = "a/b"', r"group.name: is 'a/b'; use 1 to 100 letters"),
        ('[[group]]\nname = ""', r"group.name: is ''"),
        ("[[group]]\nlearners = 2", r"group.name: is missing; give it"),
        ('[[group]]\nname = "a"\nlearners = -1', r"group.learners: is -1; use 0 to 4096"),
        ('[[group]]\nname = "a"\nlearners = 0', r"group.max_learners: is None; use 1 to 4096"),
        ('[[group]]\nname = "a"\nlearners = 3\nmax_learners = 2', r"group.max_learners: is 2; use 3 to 4096"),
        ('[[group]]\nname = "a"\nranks = 4\nranks_per_node = 3', r"ranks_per_node: is 3; use a divisor of the 4 ranks"),
        ('[[group]]\nname = "a"\ngpus = 1.5', r"group.gpus: is 1.5; use a whole number"),
        ('[[group]]\nname = "a"\ncpus = -1', r"group.cpus: is -1.0; use 0 or more"),
        ('[[group]]\nname = "a"\nresources = [["eu", 0]]', r"group.resources\[0\]: is \['eu', 0.0\]"),
        ('[[group]]\nname = "a"\nset = ["batch_size=4"]', r"group.set\[0\]: is 'batch_size=4'; use TABLE.KEY=VALUE"),
        ('[[group]]\nname = "a"\n[[group]]\nname = "a"', r"group.name: two groups are called 'a'"),
        ('[[group]]\nname = "a"\nmax_learners = 20', r"run.num_slots: num_slots is 16, but 20 learners may ride"),
        ('[[group]]\nname = "a"\nlearnres = 2', r"group.learnres is unknown; did you mean group.learners\?"),
        ("group = 3", r"group: is 3; write \[\[group\]\] once for each"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "RUN.toml").write_text(text)
    with pytest.raises(SettingError, match=says) as caught:
        load_run(tmp_path / "RUN.toml")
    assert "\n" not in str(caught.value)
