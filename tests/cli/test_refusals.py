"""Every value that cannot be meant is refused before anything begins, under the name that the user gave it."""

from __future__ import annotations

from pathlib import Path

import pytest

from gruppetto.cli.__main__ import main
from gruppetto.cli.quantities import as_count, as_gbit_s, as_gib, as_number, as_seconds
from gruppetto.cli.virtual import read_virtual_plan
from gruppetto.config.virtual import VirtualTable
from gruppetto.errors import SettingError

DURATIONS = ("nan", "-1", "-inf", "1e400", "1e-400", "5parsecs", "²", "10%", "1,5")
LISTED = ("nan", "-1", "inf", "0", "1e400", "²", "1.5")
COUNTS = (*DURATIONS, "inf", "0", "1.5", "0x10")
NUMBERS = ("nan", "inf", "-1", "1e400", "1e-400", "1h", "²")
BOUNDLESS = ("never", "inf")

OPTIONS: dict[tuple[str, str], tuple[str, ...]] = {
    ("simulate", "--chips"): COUNTS,
    ("simulate", "--learners"): (*LISTED, "1e18"),
    ("simulate", "--systems"): ("magic",),
    ("simulate", "--mtbi-years"): (*DURATIONS, "0"),
    ("simulate", "--hours"): (*DURATIONS, *BOUNDLESS, "0", "1e-9"),
    ("simulate", "--seed"): ("x", "1.5", "nan"),
    ("simulate", "--seeds"): ("0", "-1", "1.5", "1e9"),
    ("simulate", "--step-s"): (*DURATIONS, *BOUNDLESS, "0"),
    ("simulate", "--stride"): ("0", "-1", "1.5"),
    ("simulate", "--spread"): (*NUMBERS, "1e18"),
    ("simulate", "--jitter"): (*NUMBERS, "1", "1.5", "100%"),
    ("simulate", "--latency"): (*DURATIONS, *BOUNDLESS, "1h", "60"),
    ("simulate", "--slice-chips"): COUNTS,
    ("simulate", "--scale-down-s"): (*DURATIONS, *BOUNDLESS),
    ("simulate", "--scale-up-s"): (*DURATIONS, *BOUNDLESS),
    ("simulate", "--recovery-s"): (*DURATIONS, *BOUNDLESS, "0"),
    ("simulate", "--restart-s"): (*DURATIONS, *BOUNDLESS),
    ("simulate", "--checkpoint-s"): (*DURATIONS, *BOUNDLESS, "0"),
    ("simulate", "--fails"): ("rack", "rack:0:1d:1h", "rack:5:0:1h", "rack:5:1d:never", "chip:5:1d:1h"),
    ("simulate", "--link-fails"): ("6h", "0:1s", "6h:0", "6h:never", ":"),
    ("simulate", "--syncer-fails"): ("6h", "0:1s", "6h:0", "6h:never", ":"),
    ("simulate", "--chip-steps"): COUNTS,
    ("simulate", "--min-quorum"): ("0", "-1", "9", "1.5", "nan", "9" * 24),
    ("simulate", "--fragments"): ("0", "-1", "1.5", "99999"),
    ("simulate", "--sync-period"): ("0", "-1", "1.5", "9" * 24),
    ("simulate", "--table"): ("tennis",),
    ("simulate", "--parameters"): COUNTS,
    ("simulate", "--sites"): COUNTS,
    ("simulate", "--processes"): ("0", "-1", "1.5"),
    ("plan", "--chips"): COUNTS,
    ("plan", "--params"): (*COUNTS, "1", "1e18"),
    ("plan", "--step-s"): (*DURATIONS, *BOUNDLESS, "0"),
    ("plan", "--mtbi-years"): (*DURATIONS, "0"),
    ("plan", "--gbit-s"): ("nan", "inf", "0", "-1", "1e400", "1e-400", "wide"),
    ("plan", "--sites"): (*COUNTS, "9"),
    ("plan", "--learners"): LISTED,
    ("plan", "--syncer-gib"): ("nan", "inf", "0", "-1", "1e400", "much"),
    ("plan", "--syncer-gbit-s"): ("nan", "inf", "0", "-1", "1e400", "wide"),
    ("plan", "--latency"): (*DURATIONS, *BOUNDLESS, "1h", "1e18"),
    ("plan", "--spread"): (*NUMBERS, "1e18"),
    ("plan", "--slice-chips"): COUNTS,
    ("plan", "--rounds"): COUNTS,
    ("train --virtual", "--learners"): ("0", "-1", "1.5", "nan", "inf", "many", "1e18"),
    ("train --virtual", "--rounds"): ("0", "-1", "1.5", "nan", "inf", "many"),
    ("train --virtual", "--seed"): ("-1", "1.5", "nan", "x"),
    ("train --virtual", "--mode"): ("solo",),
    ("train --virtual", "--preset"): ("dmeo",),
    ("train --virtual", "--shards"): ("0", "-1", "many"),
    ("train --virtual", "--workers"): ("0", "-1", "65", "1.5", "nan", "many"),
    ("train --virtual", "--set run.min_quorum"): ("0", "9", "1.5", "nan"),
    ("train --virtual", "--set virtual.jitter"): ("1", "-1", "nan", "inf", "little"),
    ("train --virtual", "--set virtual.step_s"): ("0", "-1", "nan", "inf", "1h"),
}


@pytest.mark.parametrize(("verb", "option"), OPTIONS)
def test_what_cannot_be_meant_is_refused_by_the_name_of_its_option(
    verb: str, option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for value in (*OPTIONS[verb, option], " "):
        words = [*option.split(" "), value] if " " not in option else ["--set", f"{option.split(' ')[1]}={value}"]
        if value.startswith("-"):
            words = [f"{words[0]}={words[1]}"]
        if value == " " and option.startswith("--set"):
            continue  # a text may be empty
        assert main([*verb.split(), *words]) == 2, (option, value)
        said = capsys.readouterr()
        assert said.err.startswith((f"gruppetto: {option}", f"gruppetto: Error parsing {option}")), said.err
        assert said.err.count("\n") == 1 and ("; " in said.err) and said.out == "", said.err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("jitter = 2", "jitter: jitter is 2.0; use a share from 0 to below 1"),
        ('step_s = "0"', "step_s: is '0'; use a duration"),
        ("latency = '1h'", "latency: is '1h'; use less than 60 s"),
        ("min_quorum = 9\nlearners = [4]", "min_quorum: min_quorum is 9 but num_learners is 4; use 4 or less"),
        ("chips = 10\nlearners = [20]", "learners: 20 learners on 10 chips; use at most 10"),
        ("hours = nan", "hours: is 'nan'; use a duration"),
        ('fails = ["rack:0:1d:1h"]', "fails: chips: is '0'; use a whole number"),
        ("seeds = 0", "seeds: is 0; use 1 or more"),
    ],
)
def test_what_a_file_says_is_refused_by_its_key(
    line: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "DAY.toml"
    file.write_text(line + "\n")
    assert main(["simulate", str(file)]) == 2
    assert f"gruppetto: {file}: {says}" in (said := capsys.readouterr().err) and said.count("\n") == 1, said
    # What the command line says too is the command line's.
    assert main(["simulate", str(file), "--hours", "0"]) == 2
    assert "--hours: is '0'" in capsys.readouterr().err or "hours" not in line


@pytest.mark.parametrize(
    "key", [name for name in VirtualTable.__dataclass_fields__ if name not in ("rivals", "donates")]
)
def test_every_key_of_virtual_refuses_what_it_cannot_be(key: str, tmp_path: Path) -> None:
    file = tmp_path / "RUN.toml"
    for value in ("-1", "nan", "inf", '"many"', "true"):
        file.write_text(f"[virtual]\n{key} = {value}\n")
        with pytest.raises(SettingError) as refused:
            read_virtual_plan(file)
        assert refused.value.where == f"{file}: virtual.{key}" and refused.value.fix


@pytest.mark.parametrize(
    ("key", "value"), [("joins_s", "nan"), ("leaves_s", "nan"), ("step_s", "0"), ("step_s", "inf")]
)
def test_a_guest_refuses_what_it_cannot_be(key: str, value: str, tmp_path: Path) -> None:
    (file := tmp_path / "RUN.toml").write_text(
        f'[[guest]]\nname = "g"\n{"" if key == "joins_s" else "joins_s = 1"}\n{key} = {value}\n'
    )
    with pytest.raises(SettingError) as refused:
        read_virtual_plan(file)
    assert refused.value.where == f"{file}: guest.{key}"


def test_the_command_line_may_say_what_a_virtual_world_is() -> None:
    asked = read_virtual_plan(None, overrides={"virtual.step_s": "2.5", "virtual.jitter": "0"})
    assert (asked.table.step_s, asked.table.jitter) == (2.5, 0.0)


def test_digits_of_every_script_are_digits() -> None:
    assert as_count("٣", where="") == 3 and as_seconds("１５min", where="") == 900.0
    assert as_number("0", where="") == 0.0 == as_seconds("٠", where="", zero=True)
    for read in (as_gib, as_gbit_s):
        assert read("４", where="") == 4.0
