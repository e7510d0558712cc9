"""A scenario as a file: unequal fleets, guests, correlated failures and maintenance, each with its effect."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gruppetto.cli.__main__ import main

CALM = 'mtbi_years = "never"\nhours = 0.1\nsystems = ["decoupled"]\nslice_chips = 8\n'
FOUR = "".join(f'[[learner]]\nname = "own-{i}"\nchips = 8\n' for i in range(4))


def rows_of(text: str, place: Path, capsys: pytest.CaptureFixture[str], *more: str) -> list[dict[str, Any]]:
    file = place / "SCENARIO.toml"
    file.write_text(text, encoding="utf-8")
    assert main(["simulate", str(file), "--json", *more]) == 0
    rows: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["rows"]
    return rows


def row_of(text: str, place: Path, capsys: pytest.CaptureFixture[str], *more: str) -> dict[str, Any]:
    (row,) = rows_of(text, place, capsys, *more)
    return row


@pytest.mark.parametrize("text", ["", "# nothing yet\n"])
def test_a_file_that_says_nothing_is_refused(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "SCENARIO.toml"
    file.write_text(text, encoding="utf-8")
    assert main(["simulate", str(file)]) == 2
    said = capsys.readouterr()
    assert said.err.startswith(f"gruppetto: {file}: says nothing; write what is to be simulated, hours = 24")
    assert not said.out


def test_unequal_fleets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    slow = '[[learner]]\nname = "old"\nchips = 16\nstep_s = "3s"\n'
    row = row_of(CALM + FOUR + slow, tmp_path, capsys)
    assert (row["learners"], row["chips"]) == (5, 48)
    assert row["goodput"] == pytest.approx(1.0, abs=0.01)
    alone = row_of(CALM + FOUR, tmp_path, capsys)
    assert row["participation"] < alone["participation"]


def test_guests_shorten_the_way_to_a_number_of_steps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """+100 % for a quarter of the plain run's time gives 0.75 of it. Guests count only while they are there."""
    steps = f'chip_steps = "{4 * 8 * 300}"\n'
    plain = row_of(CALM + steps + FOUR, tmp_path, capsys)
    guests = "".join(f'[[learner]]\nname = "guest-{i}"\nchips = 8\njoins = "20s"\nleaves = "95s"\n' for i in range(4))
    helped = row_of(CALM + steps + FOUR + guests, tmp_path, capsys)
    assert helped["hours"] / plain["hours"] == pytest.approx(0.75, abs=0.02)
    assert helped["goodput"] == pytest.approx(1.0, abs=0.02)


def test_correlated_failures_and_maintenance(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    calm = row_of(CALM + FOUR, tmp_path, capsys)["goodput"]
    region = row_of(CALM + 'fails = ["region:16:3min:1min"]\n' + FOUR, tmp_path, capsys)["goodput"]
    assert region < calm - 0.05
    upkeep = '[[maintenance]]\nat = "2min"\nlasts = "2min"\nfirst_chip = 8\nchips = 8\n'
    planned = row_of(CALM + FOUR + upkeep, tmp_path, capsys)["goodput"]
    assert planned == pytest.approx(calm - 2 / 6 / 4, abs=0.02)


def test_the_command_line_wins_and_a_rival_is_one_job(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = CALM + "seeds = 2\n" + FOUR
    assert row_of(text, tmp_path, capsys)["seeds"] == 2
    rows = rows_of(text, tmp_path, capsys, "--seeds", "1", "--systems", "elastic", "decoupled")
    assert [(r["system"], r["learners"], r["chips"], r["seeds"]) for r in rows] == [
        ("elastic", 1, 32, 1),
        ("decoupled", 4, 32, 1),
    ]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("chipz = 8\n", "chipz is unknown"),
        ('[[learner]]\nname = "a"\nchips = 0\n', "learner a: chips: is '0'"),
        ('[[learner]]\nname = "a"\nchips = 8\nstep = "1s"\n', "step is unknown"),
        (FOUR + FOUR, "name each one once"),
        ('[[learner]]\nname = "a"\nchips = 8\njoins = "2h"\nleaves = "1h"\n', "let it leave later"),
        (FOUR + '[[maintenance]]\nat = "1h"\nlasts = "1h"\nchips = 64\n', "name chips that are there"),
        ('[[maintenance]]\nat = "1h"\nchips = 64\n', "maintenance.lasts: is missing"),
        ("learner = 3\n", "write [[learner]]"),
        ("hours = true\n", "use a number or a text"),
        ("stride = [16, 3]\n", "stride: is [16, 3]; use one value"),
    ],
)
def test_mistakes_are_one_line_with_the_fix(
    text: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "SCENARIO.toml"
    file.write_text(text, encoding="utf-8")
    assert main(["simulate", str(file)]) == 2
    said = capsys.readouterr()
    assert says in said.err and len(said.err.strip().splitlines()) == 1
