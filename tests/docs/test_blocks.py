"""Every block of code in README and docs works as it stands there.

A comment above each says how it is run::

    <!-- run: parse -->              each command is understood by the real command line, and a syncer would
                                    listen where it says; nothing is started
    <!-- run: sh -->                 each command runs to its end, in a directory that the blocks of a page share
    <!-- run: toml -->               a RUN.toml that loads (toml as NAME: and lies there for the commands that follow)
    <!-- run: yaml -->               a configuration for Prometheus
    <!-- run: python STAGE -->       executed among the names that the stage has; see conftest.py
    <!-- not run: WHY -->
"""

from __future__ import annotations

import importlib
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from gruppetto.cli import flags, syncer
from gruppetto.cli.__main__ import VERBS, main
from gruppetto.config.load import load_run
from gruppetto.errors import GruppettoError
from gruppetto.numerics.deal import ONE, Shard

ROOT = Path(__file__).resolve().parents[2]
PAGES = [path for path in sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]) if "```" in path.read_text()]
FENCE = re.compile(r"^(?P<indent> *)(?P<ticks>`{3,})(?P<kind>\S*)\n(?P<text>.*?)^ *(?P=ticks)$", re.M | re.S)
MARK = re.compile(r"<!-- (?P<how>run|not run): (?P<what>.+?) -->\n *\Z")
NO_CODE = {"text", "{toctree}", "{eval-rst}", "{include}"}
"""Fences that hold a drawing, or are for the generator of the site, which reads them itself."""


class Understood(Exception):
    """The real command line has taken all arguments of a verb; it goes no further here."""

    def __init__(self, flags: Any) -> None:
        super().__init__()
        self.flags = flags


@dataclass(frozen=True, kw_only=True)
class Block:
    place: str
    kind: str
    how: str | None
    what: str
    text: str

    @property
    def commands(self) -> list[str]:
        """With what goes on in the next line; of a block with prompts only what stands behind them."""
        lines = self.text.replace("\\\n", " ").splitlines()
        return [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]


def blocks_of(page: Path) -> Iterator[Block]:
    text = page.read_text()
    for found in FENCE.finditer(text):
        if found["kind"] in NO_CODE:
            continue
        before = text[: found.start()]
        mark = MARK.search(before)
        yield Block(
            place=f"{page.name}:{before.count(chr(10)) + 1}",
            kind=found["kind"],
            how=mark and mark["how"],
            what=mark["what"] if mark else "",
            text="".join(line.removeprefix(found["indent"]) for line in found["text"].splitlines(keepends=True)),
        )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_block_says_how_it_is_run(page: Path) -> None:
    unmarked = [f"{block.place} {block.kind}" for block in blocks_of(page) if block.how is None or not block.kind]
    assert not unmarked, "name the language, and put <!-- run: … --> or <!-- not run: why --> above (tests/docs)"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_block_works(
    page: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    play: Callable[[str, str, str], None],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "corpus.txt").write_text((ROOT / "docs" / "resilience.md").read_text() * 4)
    for block in blocks_of(page):
        if block.how != "run":
            continue
        how, _, more = block.what.partition(" ")
        match how:
            case "parse":
                assert block.commands, block.place
                for command in block.commands:
                    understand(command, block.place, monkeypatch)
            case "sh":
                for command in block.commands:
                    carry_out(command, block.place, capfd)
            case "toml":
                place = Path(more.removeprefix("as ") or "any.toml")
                place.write_text(block.text)
                load_run(place)
            case "yaml":
                check_scrape(block.text)
            case "python":
                play(block.text, more, block.place)
            case _:
                pytest.fail(f"{block.place}: nobody knows how to run {block.what}")


def understand(command: str, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command's program takes these arguments."""
    words = shlex.split(command, comments=True)
    match words:
        case ["gruppetto", verb, *arguments]:
            module = importlib.import_module(f"gruppetto.cli.{verb}")

            def read(*given: object) -> None:
                raise Understood(flags.read_flags(*given))  # type: ignore[arg-type]

            with monkeypatch.context() as patched:
                patched.setattr(module, "read_flags", read)
                try:
                    module.main(arguments)
                except Understood as understood:
                    if verb == "syncer":
                        would_serve(understood.flags, place, command)
                    return
                except Exception as wrong:
                    pytest.fail(f"{place}: {command}: {wrong}")
            pytest.fail(f"{place}: {command}: read no flags")
        case ["make", target, *_]:
            assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.M), f"{place}: make {target}"
        case ["pip", "install", what]:
            known = (ROOT / "pyproject.toml").read_text()
            extras = re.findall(r"\w+", what.partition("[")[2])
            assert all(re.search(rf"^{extra} = \[", known, re.M) for extra in extras), f"{place}: {command}"
        case _:
            pytest.fail(f"{place}: nobody can tell whether {words[0]} would understand this; use run: sh or not run")


def would_serve(given: Any, place: str, command: str) -> None:
    """A syncer would listen where this says, with the papers that it names, and not warn of its settings.

    Its files are not looked for: the reader's RUN.toml and state are not here, so the flags alone have to say enough.
    """
    token_file = "a-token"
    Path(token_file).write_text("a token\n")
    here = replace(given, run=(), state=None, token_file=token_file if given.token_file else None)
    shard = ONE if given.shard is None else Shard.parse(given.shard)
    try:
        config = syncer._config(here, shard)
        syncer._setting(config, shard, here).check_exposure()
        assert not config.protocol.notice, f"{place}: {command}: {config.protocol.notice}"
    except GruppettoError as refused:
        pytest.fail(f"{place}: {command}: {refused}")


def carry_out(command: str, place: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Verbs of ours in this process, which has imported everything already; all else in a shell."""
    if command.startswith("gruppetto "):
        code = main(shlex.split(command, comments=True)[1:])
        said = "".join(capfd.readouterr())
    else:
        done = subprocess.run(["sh", "-ec", command], capture_output=True, text=True, check=False)
        code, said = done.returncode, done.stdout + done.stderr
    assert code == 0, f"{place}: {command}: exit {code}: {said[-2000:]}"


def check_scrape(text: str) -> None:
    """It is what Prometheus takes, where that is installed; elsewhere it is read."""
    for name in ("cert.pem", "token"):
        Path(name).touch()
    Path("prometheus.yml").write_text(text)
    assert yaml.safe_load(text)["scrape_configs"][0]["job_name"]
    if promtool := shutil.which("promtool"):
        subprocess.run([promtool, "check", "config", "--syntax-only", "prometheus.yml"], check=True)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_is_said_in_passing_exists(page: Path) -> None:
    """Commands within sentences: the verb, each flag, and each script are there."""
    sentences = FENCE.sub("", page.read_text())
    for said in re.findall(r"`(gruppetto [^`]+|python [^`]+)`", sentences):
        program, what, *rest = said.split()
        named = set(re.findall(r"--[a-z][a-z-]+", " ".join(rest)))
        if program == "python":
            source = (ROOT / what).read_text()
            assert {flag for flag in named if flag not in source and flag[2:].replace("-", "_") not in source} == set()
        elif not what.startswith(("VERB", "…")):
            assert what in VERBS, said
            known = Path(importlib.import_module(f"gruppetto.cli.{what}").__file__ or "").read_text()
            known += "".join(path.read_text() for path in (ROOT / "src/gruppetto/cli").glob(f"{what}_*.py"))
            unknown = {flag for flag in named if f" {flag[2:].replace('-', '_')}" not in known}
            assert unknown <= {"--help", "--debug", "--version", "--from"}, said
