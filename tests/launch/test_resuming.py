"""What a run leaves behind, made ready to go on: the trace up to the cut, and whose part lies where."""

from __future__ import annotations

from pathlib import Path

import pytest

from gruppetto.config import load_run
from gruppetto.config.write import END, write_run
from gruppetto.errors import SettingError, StateError
from gruppetto.launch.resuming import Resumption, _cut_trace, find, part_of
from gruppetto.protocol.actions import Checkpoint
from gruppetto.protocol.events import Tick
from gruppetto.protocol.ledger import Ledger
from gruppetto.protocol.state import SyncerState
from gruppetto.protocol.units import Epoch, Incarnation, LearnerId, Round
from gruppetto.runtime.manifest import Manifest, PartOf, write_manifest
from gruppetto.trace.log import Record, TraceWriter, read_trace


def manifest(**change: object) -> Manifest:
    parts = (PartOf(learner=LearnerId("a"), incarnation=Incarnation(2), where="/disk/of/a"),)
    given = {"version": 1, "run_id": "r", "mark": "m", "round": Round(3), "epoch": Epoch(1), "rounds": 9}
    left_out = ((LearnerId("b"), "it went away"),)
    return Manifest(**{**given, "parts": parts, "left_out": left_out, **change})  # type: ignore[arg-type]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with one checkpoint at t = 2, evaluations on both sides of it, and a torn last line."""
    state = SyncerState(
        run_id="r",
        layout_hash="l",
        epoch=Epoch(1),
        round=Round(3),
        versions=(),
        members=(),
        cursors=(),
        ledger=Ledger(num_fragments=1),
    )
    write_run(load_run(), tmp_path / "run.toml")
    with TraceWriter(tmp_path / "trace.jsonl", {"setting": "..."}) as trace:
        trace.event(1.0, "syncer", Tick())
        trace.actions(1.5, "syncer", [Checkpoint(mark="another", round=Round(2), state=state)])
        trace.event(2.0, "syncer", Tick())
        trace.actions(2.0, "syncer", [Checkpoint(mark="m", round=Round(3), state=state)])
        trace.event(3.0, "syncer", Tick())
        trace.note(4.0, "judge", "evaluation", round=3, loss=1.0)
        trace.note(5.0, "judge", "evaluation", round=4, loss=0.5)
    with (tmp_path / "trace.jsonl").open("ab") as file:
        file.write(b'{"t": 6.0, "who"')
    with TraceWriter(tmp_path / "evaluation.jsonl", {}) as notes:
        notes.note(6.0, "judge", "evaluation", round=2, loss=2.0)
        notes.note(7.0, "judge", "evaluation", round=5, loss=0.4)
    return tmp_path


def resumption(run: Path) -> Resumption:
    return Resumption(run=run, config=load_run(), checkpoint=run, manifest=manifest(), round=3, newest_round=5)


def records(path: Path) -> list[tuple[float, str]]:
    return [(line.t, line.name) for line in read_trace(path) if isinstance(line, Record)]


def test_the_trace_ends_at_the_cut_and_what_came_after_is_kept(run: Path) -> None:
    whole = (run / "trace.jsonl").read_bytes()
    _cut_trace(resumption(run), run, "m")
    assert records(run / "trace.jsonl") == [
        (1.0, "Tick"),
        (1.5, "Checkpoint"),
        (2.0, "Tick"),
        (2.0, "Checkpoint"),
        (4.0, "evaluation"),
    ]
    assert (run / "trace-before-resume-1.jsonl").read_bytes() == whole
    assert records(run / "evaluation.jsonl") == [(6.0, "evaluation")]
    _cut_trace(resumption(run), run, "m")  # nothing more to leave out
    assert not (run / "trace-before-resume-2.jsonl").exists()


def test_in_a_new_directory_the_old_trace_stays_as_it_is(run: Path, tmp_path: Path) -> None:
    whole, new = (run / "trace.jsonl").read_bytes(), tmp_path / "new"
    new.mkdir()
    _cut_trace(resumption(run), new, "m")
    assert (run / "trace.jsonl").read_bytes() == whole
    assert records(new / "trace.jsonl")[-1] == (4.0, "evaluation")


def test_without_a_checkpoint_nothing_is_left_out_but_what_was_torn(run: Path) -> None:
    _cut_trace(resumption(run), run, None)
    assert len(records(run / "trace.jsonl")) == 7


def test_whose_part_lies_where(tmp_path: Path) -> None:
    write_manifest(tmp_path, manifest())
    assert part_of(tmp_path, "a") == Path("/disk/of/a")
    with pytest.raises(StateError, match="has no part of b: it went away; start it without --from"):
        part_of(tmp_path, "b")
    with pytest.raises(StateError, match="has no part of c; start it"):
        part_of(tmp_path, "c")
    assert part_of(tmp_path / "the part itself", "a") == tmp_path / "the part itself"


def test_what_cannot_be_resumed_is_said(run: Path, tmp_path: Path) -> None:
    with pytest.raises(StateError, match="is neither a run directory nor a checkpoint of one"):
        find(tmp_path / "nowhere")
    lonely = tmp_path / "lonely"
    lonely.mkdir()
    (run / "trace.jsonl").unlink()
    write_manifest(lonely, manifest())
    with pytest.raises(StateError, match="does not lie in a run directory; start `gruppetto syncer` and each"):
        find(lonely)
    with pytest.raises(StateError, match="holds no run"):
        find(run)
    (run / "run.toml").write_text(f'[run]\nmode = "diloco"\n{END}\n', encoding="utf-8")
    with pytest.raises(StateError, match="is a diloco run"):
        find(run)


def test_settings_that_were_cut_short_are_no_settings(tmp_path: Path) -> None:
    """Cut anywhere, at the end of a line too, where what is left is TOML and would mean the defaults of the rest."""
    write_run(load_run(overrides={"run.rounds": 77}), tmp_path / "run.toml")
    whole = (tmp_path / "run.toml").read_text(encoding="utf-8")
    lines = whole.splitlines(keepends=True)
    for cut in ("[run]\n", "".join(lines[:9]), "".join(lines[:-1]), whole[: len(whole) // 2], ""):
        (tmp_path / "run.toml").write_text(cut, encoding="utf-8")
        with pytest.raises(SettingError, match=r"run\.toml: is (cut short|not TOML)"):
            find(tmp_path)
