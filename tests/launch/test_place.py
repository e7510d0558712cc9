"""Which directory a run gets, and what is never deleted for it."""

from __future__ import annotations

import fcntl
from contextlib import ExitStack
from pathlib import Path

import pytest

from gruppetto.errors import DataError, StateError
from gruppetto.launch.place import has_begun, holds_run, run_directory
from gruppetto.trace.log import TraceWriter


def old_run(place: Path) -> Path:
    TraceWriter(place / "trace.jsonl", {}).close()
    (place / "model").mkdir()
    (place / "model" / "config.json").touch()
    return place


def content(place: Path) -> set[str]:
    return {entry.name for entry in place.iterdir()} - {".lock"}


def test_directories_are_numbered_and_shared_by_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    # As if another start had made the first one a moment ago, and written nothing yet.
    Path("runs/demo-1").mkdir(parents=True)
    with ExitStack() as stack:
        given = [stack.enter_context(run_directory(None, "demo", overwrite=False)) for _ in range(2)]
    assert given == [Path("runs/demo-2"), Path("runs/demo-3")]


def test_overwrite_deletes_a_run_that_has_ended_also_behind_a_link(tmp_path: Path) -> None:
    for number, name in enumerate(("run", "link")):
        run = old_run(tmp_path / f"run{number}")
        (tmp_path / "link").unlink(missing_ok=True)
        (tmp_path / "link").symlink_to(run)
        out = run if name == "run" else tmp_path / "link"
        with run_directory(str(out), "x", overwrite=True) as directory:
            assert (directory, content(run)) == (out, set())


def test_a_run_that_goes_on_is_left_alone(tmp_path: Path) -> None:
    out = str(tmp_path / "run")
    with run_directory(out, "x", overwrite=False) as directory:
        old_run(directory)
        with pytest.raises(StateError, match="a run goes on in it"), run_directory(out, "x", overwrite=True):
            pass
    assert content(directory) == {"trace.jsonl", "model"}
    # A syncer by itself, as the store holds its state.
    (directory / "syncer").mkdir()
    (directory / "syncer" / "epochs").mkdir()
    with (directory / "syncer" / "epochs" / "00001").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(StateError, match="a run goes on in it"), run_directory(out, "x", overwrite=True):
            pass
    assert content(directory) == {"trace.jsonl", "model", "syncer"}
    with run_directory(out, "x", overwrite=True):
        assert content(directory) == set()


def test_nothing_is_deleted_before_the_new_run_can_start(tmp_path: Path) -> None:
    run = old_run(tmp_path / "run")

    def not_ready() -> None:
        raise DataError("no corpus")

    with pytest.raises(DataError, match="no corpus"), run_directory(str(run), "x", overwrite=True, ready=not_ready):
        pass
    (tmp_path / "link").symlink_to(run)
    needed = [tmp_path / "elsewhere", tmp_path / "link" / "RUN.toml"]
    with pytest.raises(StateError, match="which is needed"), run_directory(str(run), "x", overwrite=True, keep=needed):
        pass
    assert content(run) == {"trace.jsonl", "model"}


@pytest.mark.parametrize(
    ("files", "is_run"),
    [
        ({"run.toml": "x"}, False),
        ({"train.jsonl": "{}"}, False),
        ({"processes.json": "{}"}, False),
        ({"trace.jsonl": "my own"}, False),
        ({"trace.jsonl": ""}, False),
        ({"trace.jsonl": '{"trace":1}\n'}, True),
        ({"run.toml": "x", "processes.json": "{}"}, True),
        ({"train.jsonl": "{}", "plan.json": "{}"}, True),
    ],
)
def test_what_a_run_is(tmp_path: Path, files: dict[str, str], is_run: bool) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    assert holds_run(tmp_path) is is_run


def test_a_run_has_begun_when_a_round_was_closed(tmp_path: Path) -> None:
    assert not has_begun(old_run(tmp_path / "run"))
    with (tmp_path / "run" / "trace.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"t":1.0,"who":"syncer","out":"RoundClosed","data":{}}\n')
    assert has_begun(tmp_path / "run")
