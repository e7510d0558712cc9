"""What is written stays true: generated pages are fresh, links lead somewhere, and every setting is on its page."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from gruppetto import errors
from gruppetto.config.load import TABLES
from gruppetto.protocol.actions import AlarmKind
from gruppetto.protocol.alarm_table import ALARMS

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])


@pytest.mark.parametrize(
    "tool",
    ["settings_page.py", "alarms_page.py", "metrics_page.py", "errors_page.py", "figures.py", "evidence_tables.py"],
)
def test_what_is_generated_is_what_the_source_says(tool: str) -> None:
    checked = subprocess.run([sys.executable, f"tools/{tool}", "--check"], cwd=ROOT, check=False)
    assert checked.returncode == 0, f"run python tools/{tool}"


def test_every_alarm_has_its_row() -> None:
    assert set(ALARMS) == set(AlarmKind)


def test_every_error_has_its_meaning() -> None:
    kinds = {kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception)}
    assert set(errors.MEANINGS) == kinds - {errors.GruppettoError}


def test_every_setting_is_on_the_page() -> None:
    text = (ROOT / "docs" / "settings.md").read_text()
    for table, keys in TABLES.items():
        section = text.partition(f"## [{table}]")[2].partition("\n## ")[0]
        assert section, table
        missing = [key for key in keys if f"`{key}`" not in section]
        assert not missing, (table, missing)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_and_named_files_exist(page: Path) -> None:
    text = page.read_text()
    targets = [link for link in re.findall(r"\]\(([^)#]+)", text) if "://" not in link]
    missing = [target for target in targets if not (page.parent / target).exists()]
    named = re.findall(r"\b(?:tests|benchmarks|tools|examples|deploy)/[\w/.-]+\.(?:py|toml|sh|ya?ml)\b", text)
    missing += [name for name in named if not (ROOT / name).exists()]
    assert not missing, missing


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_page_is_unfinished(page: Path) -> None:
    assert re.findall(r"\b[A-Z]+_SECTION\b|\b[A-Z]+_ROWS\b|TODO|FIXME|TBD", page.read_text()) == []


def test_every_file_on_the_paper_map_exists() -> None:
    text = (ROOT / "docs" / "paper-map.md").read_text()
    named = set(re.findall(r"`((?:\w+/)+\w+\.py)[:`]", text))
    tests = {ROOT / name for name in named if name.startswith(("tests/", "experiments/"))}
    code = {ROOT / "src" / "gruppetto" / name for name in named if not name.startswith(("tests/", "experiments/"))}
    assert len(code) > 10 and len(tests) > 8
    assert [str(path) for path in sorted(code | tests) if not path.exists()] == []
