"""The results that come with the repository: what is told of them is what is told of them today."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gruppetto.experiments.catalogue import EXPERIMENTS
from gruppetto.experiments.experiment import Scale
from gruppetto.experiments.findings import Findings
from gruppetto.experiments.store import Store
from gruppetto.experiments.telling import table

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs" / "corpora.md"
RESULTS, CORPORA = ROOT / "experiments" / "results", ROOT / "experiments" / "corpora"


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """In which everything seems to be that has to be fetched."""
    for name in ("fashion-mnist/train-images-idx3-ubyte.gz", "smollm2/config.json", "peers/bin/python"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).touch()
    return tmp_path


@pytest.mark.parametrize("page", sorted(RESULTS.glob("*.md")), ids=lambda page: page.stem)
def test_pages_are_up_to_date(page: Path, cache: Path) -> None:
    name, quick = page.stem.removesuffix("-quick"), page.stem.endswith("-quick")
    experiment, store = EXPERIMENTS[name], Store(RESULTS / f"{name}.jsonl")
    lines = set(page.read_text(encoding="utf-8").splitlines())
    # With which --seeds it was made, and of which arms, it does not say.
    made = [table(Findings(experiment, Scale(quick=quick, seeds=n, cache=cache), store)) for n in (None, 3, 5)]
    assert any(lines <= {*told.splitlines()} for told in made), min(lines - {*told.splitlines()} for told in made)


@pytest.mark.parametrize("page", sorted(CORPORA.glob("*.md")), ids=lambda page: page.stem)
def test_pages_of_other_corpora_are_up_to_date(page: Path) -> None:
    name, _, corpus = page.stem.removesuffix("-quick").partition("-on-package-")
    store = Store(CORPORA / f"{name}.jsonl")
    assert not store.left_out
    told = table(Findings(EXPERIMENTS[name], Scale(quick=True, data=f"package:{corpus}"), store))
    lines = [line for line in page.read_text(encoding="utf-8").splitlines() if line not in told.splitlines()]
    assert not lines
    row = next(line for line in DOCS.read_text(encoding="utf-8").splitlines() if f"| `package:{corpus}` | " in line)
    cells = [cell.strip() for line in told.splitlines() if re.match(r"\| d.* \|$", line) for cell in line.split("|")]
    assert [cell for cell in cells if "±" in cell and cell not in row and "0.00" not in cell] == []


@pytest.mark.parametrize("kept", [RESULTS / f"{name}.jsonl" for name in EXPERIMENTS], ids=lambda kept: kept.stem)
def test_no_result_is_of_another_version(kept: Path) -> None:
    store = Store(kept)
    assert len(store) and not store.left_out


WORDS = ("HOLDS", "DOES NOT HOLD", "undecided")


def _rows_in_short() -> dict[str, list[str]]:
    page = (RESULTS.parents[1] / "docs" / "evidence.md").read_text(encoding="utf-8")
    section = page.partition("## In short")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| \[?`([\w-]+)`(.*) \|$", section, re.MULTILINE)
    return {name: [cell.strip() for cell in rest.split(" | ")] for name, rest in rows}


def test_the_summary_of_evidence_has_a_line_for_every_experiment() -> None:
    assert set(_rows_in_short()) == set(EXPERIMENTS)


@pytest.mark.parametrize("name", [name for name, cells in _rows_in_short().items() if "/" in cells[-1]])
def test_the_summary_of_evidence_counts_what_the_results_say(name: str, cache: Path) -> None:
    experiment, store = EXPERIMENTS[name], Store(RESULTS / f"{name}.jsonl")
    counted = []
    for seeds in (None, 5):  # as for the pages
        found = Findings(experiment, Scale(quick=True, seeds=seeds, cache=cache), store).judged()
        counted.append(" / ".join(str(sum(each.verdict.word == word for each in found)) for word in WORDS))
    assert _rows_in_short()[name][-1] in counted
