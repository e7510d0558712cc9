"""The architecture names the rooms as they are."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HOUSE = ROOT / "src" / "gruppetto"
PAGE = (ROOT / "docs" / "ARCHITECTURE.md").read_text(encoding="utf-8")


def test_every_file_that_it_names_is_there() -> None:
    named = set(re.findall(r"`([\w/]+\.py)`", PAGE))
    known = {str(file.relative_to(HOUSE)) for file in HOUSE.rglob("*.py")}
    known |= {str(file.relative_to(ROOT)) for place in ("tests", "benchmarks") for file in (ROOT / place).rglob("*.py")}
    ends = {name for file in known for name in (file, file.rsplit("/", 1)[-1])}
    assert len(named) > 40
    assert named <= ends, sorted(named - ends)


def test_every_floor_of_the_house_is_in_its_drawing() -> None:
    drawing = PAGE.split("```text", 1)[1].split("```", 1)[0]
    named = {word for line in drawing.splitlines() for word in re.findall(r"\w+", line.split("  ", 1)[0])}
    floors = {file.parent.name for file in HOUSE.glob("*/__init__.py")} | {"errors"}
    assert floors <= named, sorted(floors - named)
