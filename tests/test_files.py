"""Files that others may have put there are read at once, or are an error of two kinds: whatever lies in their place."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from gruppetto.cli.__main__ import main
from gruppetto.errors import GruppettoError
from gruppetto.experiments.ride import Ride
from gruppetto.experiments.store import Store
from gruppetto.files import content_of, json_in, open_file
from gruppetto.launch.ask import find_endpoint
from gruppetto.launch.papers import looker_papers_in
from gruppetto.launch.place import is_held
from gruppetto.report.curves import read_train_log
from gruppetto.runtime.address_book import Directory
from gruppetto.runtime.antechamber import who_serves
from gruppetto.runtime.manifest import read_manifest
from gruppetto.trace.log import read_trace


def deep(place: Path) -> None:
    place.write_bytes(b"[" * 100_000)


def pipe(place: Path) -> None:
    os.mkfifo(place)


def loop(place: Path) -> None:
    place.symlink_to(place.name)


INSTEAD: list[Callable[[Path], None]] = [deep, pipe, Path.mkdir, loop]


@pytest.mark.parametrize("instead", INSTEAD[1:])
def test_only_files_are_opened(instead: Callable[[Path], None], tmp_path: Path) -> None:
    instead(tmp_path / "x")
    for read in (open_file, content_of, json_in):
        with pytest.raises(OSError):
            read(tmp_path / "x")


def test_brackets_without_end_are_no_json(tmp_path: Path) -> None:
    deep(tmp_path / "x")
    with pytest.raises(ValueError, match="nested too deeply"):
        json_in(tmp_path / "x")


READS: dict[str, Callable[[Path], object]] = {
    "endpoint.json": find_endpoint,
    "syncer/endpoint.json": lambda run: (find_endpoint(run), who_serves(run / "syncer"), Directory(run)),
    "processes.json": lambda run: main(["status", str(run)]),
    "trace.jsonl": lambda run: (
        main(["report", str(run)]),
        main(["replay", str(run)]),
        list(read_trace(run / "trace.jsonl")),
    ),
    "train.jsonl": lambda run: read_train_log(run / "train.jsonl"),
    "verdict.json": lambda run: main(["report", str(run)]),
    "run.toml": lambda run: looker_papers_in(run, None, None),
    "manifest.json": read_manifest,
    ".lock": is_held,
    "apply.jsonl": lambda run: Ride() in Store(run / "apply.jsonl"),
}


@pytest.mark.parametrize("instead", INSTEAD)
@pytest.mark.parametrize("name", READS)
def test_whatever_lies_in_a_files_place_is_said_or_passed_over_at_once(
    name: str, instead: Callable[[Path], None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    instead(tmp_path / name)
    with suppress(GruppettoError, OSError):
        READS[name](tmp_path)
    assert "Traceback" not in capsys.readouterr().err
