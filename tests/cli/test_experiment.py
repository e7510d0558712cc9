"""``gruppetto experiment``: named, told, and shown without making anything."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from gruppetto.cli import experiment
from gruppetto.cli.__main__ import main
from gruppetto.errors import RunFailed
from gruppetto.experiments.budget import Budget
from gruppetto.experiments.catalogue import EXPERIMENTS
from gruppetto.experiments.experiment import Scale
from gruppetto.experiments.sharing import Asked
from gruppetto.experiments.store import Store
from gruppetto.train.corpus import open_corpus


def test_it_names_all_experiments(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["experiment", "--list"]) == 0
    told = capsys.readouterr().out
    assert [name for name in EXPERIMENTS if f"  {name} " not in told] == []


def test_what_is_there_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store, scale = Store(tmp_path / "apply.jsonl"), Scale(quick=True)
    for place, ride in enumerate(EXPERIMENTS["apply"].rides(scale)):
        store.add(ride, {"loss": 2.0 + 0.01 * place}, took_s=0)
    given = ["experiment", "apply", "--quick", "--show", "--out", str(tmp_path)]
    assert main(given) == 0
    told = capsys.readouterr()
    assert "| overwrite, near |" in told.out and "written" in told.err
    assert (tmp_path / "apply-quick.md").read_text() in told.out
    pages = {path.name: path.read_bytes() for path in tmp_path.glob("apply-quick.*")}
    assert main([*given, "--only", "carry"]) == 0
    told = capsys.readouterr()
    assert "| carry, 0.4 s away |" in told.out and "| overwrite" not in told.out
    others = len(EXPERIMENTS["apply"].arms(scale)) - len(EXPERIMENTS["apply"].found(Scale(quick=True, only="carry")))
    assert f"no page written: those in {tmp_path} tell of {others} arms" in told.err and "\nwritten" not in told.err
    assert {path.name: path.read_bytes() for path in tmp_path.glob("apply-quick.*")} == pages
    (tmp_path / "apply-quick.json").unlink()
    for only, writes in (("overwrite, near", True), ("overwrite", True), ("overwrite, near", False), (".", True)):
        assert main([*given, "--only", only]) == 0
        told = capsys.readouterr()
        assert ("apply: written: " in told.err) is writes
        assert ((tmp_path / "apply-quick.md").read_text() == told.out.removesuffix("\n")) is writes
    assert main([*given, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["experiment"] == "apply"


def test_pages_of_more_seeds_stay(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = Store(tmp_path / "apply.jsonl")
    for ride in EXPERIMENTS["apply"].rides(Scale(quick=True, seeds=5)):
        store.add(ride, {"loss": 2.0}, took_s=0)
    given = ["experiment", "apply", "--quick", "--show", "--out", str(tmp_path)]
    assert main([*given, "--seeds", "5"]) == 0
    pages = {path.name: path.read_bytes() for path in tmp_path.glob("apply-quick.*")}
    capsys.readouterr()
    assert main([*given, "--seeds", "2"]) == 0
    told = capsys.readouterr()
    assert "| 2 |" in told.out and f"those in {tmp_path} tell of 5 seeds, and here are 2; name" in told.err
    assert {path.name: path.read_bytes() for path in tmp_path.glob("apply-quick.*")} == pages


def test_all_with_some_arms_are_the_experiments_that_have_such(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("apply", "merge"):
        store = Store(tmp_path / f"{name}.jsonl")
        for ride in EXPERIMENTS[name].rides(Scale(quick=True)):
            store.add(ride, {"loss": 2.0}, took_s=0)
    assert main(["experiment", "all", "--quick", "--show", "--json", "--only", "carry", "--out", str(tmp_path)]) == 0
    assert list(json.loads(capsys.readouterr().out)) == ["apply"]


def test_another_corpus_is_another_experiment_beside_the_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, store = "text:my/story.txt", Store(tmp_path / "fragments.jsonl")
    own, other = (EXPERIMENTS["fragments"].rides(Scale(quick=True, data=data)) for data in ("", source))
    assert {ride.but(data=source).hash for ride in own} == {ride.hash for ride in other}
    for rides, loss in ((own, 2.0), (other, 1.0)):
        for place, ride in enumerate(rides):
            store.add(ride, {"loss": loss, **({"corpus": f"{place % 2}" * 64} if loss == 1.0 else {})}, took_s=0)
    given = ["experiment", "fragments", "--quick", "--show", "--out", str(tmp_path)]
    assert main([*given, "--data", "python-stdlib"]) == 0 and "| 2.000" in capsys.readouterr().out
    assert main([*given, "--data", source]) == 0
    told = capsys.readouterr().out
    assert f"Corpus: `{source}`, sha256 0000000000000000 and 1111111111111111…" in told and "| 1.000" in told
    (page,) = tmp_path.glob("fragments-on-text-my-story-txt-quick.md")
    assert page.read_text() in told and "Corpus" not in (tmp_path / "fragments-quick.md").read_text()


def test_results_of_other_bytes_under_the_same_name_are_not_added_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, out = tmp_path / "text.txt", tmp_path / "out"
    text.write_text("the wheel of the one ahead. " * 400)
    source = f"text:{text}"
    given = ["experiment", "fragments", "--quick", "--data", source, "--cache", str(tmp_path), "--out", str(out)]
    store, sha256 = Store(out / "fragments.jsonl"), open_corpus(source).manifest.sha256
    for ride in EXPERIMENTS["fragments"].rides(Scale(quick=True, data=source)):
        store.add(ride, {"loss": 2.0, "corpus": sha256}, took_s=0)
    assert main(given) == 0 and sha256[:16] in capsys.readouterr().out
    text.write_text("The wheel of the one ahead. " * 400)
    assert main(given) == 2
    told = capsys.readouterr().err
    assert f"fragments.jsonl: has results of another {source}: its sha256 was {sha256[:16]}" in told
    assert main([*given, "--show"]) == 0


def test_results_of_the_library_of_another_python_are_told_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rides, here = EXPERIMENTS["fragments"].rides(Scale(quick=True)), open_corpus("python-stdlib").manifest.sha256
    another = ("f" if here.startswith("0") else "0") * 64
    given = ["experiment", "fragments", "--quick", "--cache", str(tmp_path), "--out"]

    def make(work: Sequence[Asked], **how: object) -> None:
        for each in work:
            if not each.is_made:
                each.store.add(each.ride, {"loss": 2.0, "corpus": here}, took_s=0)

    def told(out: str, *kept: str | None) -> str:
        for ride, sha256 in zip(rides, kept, strict=False):
            result = {"loss": 2.0, **({} if sha256 is None else {"corpus": sha256})}
            Store(tmp_path / out / "fragments.jsonl").add(ride, result, took_s=0)
        assert main([*given, str(tmp_path / out)]) == 0
        said = capsys.readouterr()
        assert said.err.count("several texts") == said.out.count("several texts") <= 1
        return said.err

    monkeypatch.setattr(experiment, "make_rides", make)
    few = f"python-stdlib (sha256 {another[:16]}… of 2, and {here[:16]}… here)"
    assert few in told("mixed", another, another)
    assert "several texts" not in told("same", here)
    assert "several texts" not in told("before", None, here), "of results that do not say it nothing is known"
    with monkeypatch.context() as patch:  # nothing is left to make: what this Python has is no matter
        patch.setattr(experiment, "open_corpus", None)
        assert "several texts" not in told("whole", *[another] * len(rides))
    assert main([*given, str(tmp_path / "mixed"), "--show"]) == 0
    assert f"{another[:16]}… of 2" in (shown := capsys.readouterr()).err and f"{another[:16]}… of 2" in shown.out


def test_what_has_a_material_of_its_own_has_no_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--quick", "--show", "--data", "package:bible", "--out", str(tmp_path)]
    assert main(["experiment", "quality-caption", *given]) == 2
    assert "quality-caption trains on captions, and on no other corpus; leave it out" in capsys.readouterr().err
    scale = Scale(quick=True, data="package:bible", cache=tmp_path)
    on_it = {name for name, experiment in EXPERIMENTS.items() if experiment.found(scale)}
    assert {"quality-caption", "quality-vision"} == set(EXPERIMENTS) - on_it - {"noniid"}


def test_nothing_to_show_is_said_and_nothing_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("apply", "all"):
        assert main(["experiment", name, "--show", "--out", str(tmp_path / "typo")]) == 2
        told = capsys.readouterr()
        assert "no result" in told.err and told.err.count("\n") == 1 and not told.out
    assert not (tmp_path / "typo").exists()


def test_where_results_are_of_other_data_than_the_cache_has_it_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store, scale = Store(tmp_path / "quality-vision.jsonl"), Scale(quick=True, cache=tmp_path)
    store.add(EXPERIMENTS["quality-vision"].rides(scale)[0].but(data="fashion"), {"loss": 2.0}, took_s=0)
    given = ["--quick", "--show", "--out", str(tmp_path), "--cache", str(tmp_path)]
    assert main(["experiment", "quality-vision", *given]) == 2
    told = capsys.readouterr().err
    assert "as asked for, of shapes (1 of other data or settings); leave out" in told
    assert told.endswith(f"or bring what those are of into --cache {tmp_path}\n")


def test_a_reader_who_goes_away_does_not_keep_it_from_being_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path / "fragments.jsonl")
    store.add(EXPERIMENTS["fragments"].rides(Scale(quick=True))[0], {"loss": 2.0}, took_s=0)

    def gone(text: str, **how: object) -> None:
        raise BrokenPipeError

    with monkeypatch.context() as patch, pytest.raises(BrokenPipeError):
        patch.setattr("builtins.print", gone)
        experiment.main(["fragments", "--quick", "--show", "--out", str(tmp_path)])
    assert (tmp_path / "fragments-quick.png").exists()


def test_a_table_that_cannot_be_written_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = Store(tmp_path / "fragments.jsonl")
    store.add(EXPERIMENTS["fragments"].rides(Scale(quick=True))[0], {"loss": 2.0}, took_s=0)
    store.path.write_bytes(store.path.read_bytes() + b"half a li")
    (tmp_path / "fragments-quick.md").mkdir()
    assert main(["experiment", "fragments", "--quick", "--show", "--out", str(tmp_path)]) == 1
    told = capsys.readouterr()
    assert "| balanced | +0.00 % | 2.000 | 1 |" in told.out
    assert ": 1 left out" in told.err and "fragments-quick.md: Is a directory" in told.err


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["nobody"], "no experiment"),
        (["apply", "--workers", "0"], "use 1 to"),
        (["apply", "--minutes", "0"], "use 1 to"),
        (["apply", "--minutes", "nan"], "use 1 to"),
        (["apply", "--data", "wikipedia"], "archive:PATH"),
        (["apply", "--data", "text:no-such-file"], "does not exist"),
        (["apply", "--seeds", "0"], "use 1 to"),
        (["apply", "merge"], "one NAME"),
        (["apply", "--only", "nothing"], "no arm of apply"),
        (["apply", "--only", "("], "no regular expression"),
        (["apply", "--only", "a{99999999999}"], "no regular expression"),
        (["apply", "--only", "(" * 5000], "no regular expression"),
        (["all", "--only", "nothing at all"], "no arm"),
    ],
)
def test_mistakes_are_one_line(given: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["experiment", *given]) == 2
    told = capsys.readouterr().err
    assert said in told and told.count("\n") == 1


def test_when_minutes_are_over_it_is_said_what_is_left_and_what_is_there_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["experiment", "all", "--quick", "--only", "^(balanced|carry, near)$", "--out", str(tmp_path)]
    orders = list[list[tuple[str, int]]]()

    def two_of_them(work: Sequence[Asked], *, budget: Budget, **how: object) -> None:
        assert 59 < budget.left_s <= 60
        orders.append([(each.store.path.stem, each.ride.seed) for each in work])
        for each in work[:3]:
            each.store.add(each.ride, {"loss": 2.0}, took_s=0)

    monkeypatch.setattr(experiment, "make_rides", two_of_them)
    assert main([*given, "--minutes", "1"]) == 0
    told = capsys.readouterr()
    assert orders == [[("fragments", 0), ("apply", 0), ("fragments", 1), ("apply", 1), ("fragments", 2), ("apply", 2)]]
    assert "all: after 1 min time is up: 3 of 6 runs are left, and the same command goes on\n" in told.err
    assert "| balanced | +0.00 % ± 0.00 % | 2.000 ± 0.000 | 2 |" in told.out and "| carry, near |" in told.out
    assert {path.name for path in tmp_path.glob("*-quick.md")} == {"fragments-quick.md", "apply-quick.md"}


def test_a_run_that_fails_is_told_after_what_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def first_and_no_more(work: Sequence[Asked], **how: object) -> None:
        work[0].store.add(work[0].ride, {"loss": 2.0}, took_s=0)
        raise RunFailed("fragments seed=1: it fell")

    monkeypatch.setattr(experiment, "make_rides", first_and_no_more)
    assert main(["experiment", "fragments", "--quick", "--only", "balanced", "--out", str(tmp_path)]) == 1
    told = capsys.readouterr()
    assert "| balanced | +0.00 % | 2.000 | 1 |" in told.out and told.err.endswith("fragments seed=1: it fell\n")
    assert (tmp_path / "fragments-quick.md").exists()
