"""``~`` is home wherever people write paths: on the command line, in settings, in Python."""

from __future__ import annotations

from pathlib import Path

import pytest

from gruppetto.attach.checkpoints import Checkpoints
from gruppetto.cli.__main__ import main
from gruppetto.cli.train import needed_by
from gruppetto.config import load_run
from gruppetto.errors import AddressError, SettingError
from gruppetto.home import at_home
from gruppetto.launch.ask import read_token
from gruppetto.runtime.address_book import address_book
from gruppetto.train.corpus import open_corpus


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    texts = tmp_path / "home" / "texts"
    texts.mkdir(parents=True)
    for number in range(40):
        (texts / f"{number}.txt").write_text(f"this is text {number}\n" * 9)
    return tmp_path / "home"


def test_only_what_begins_with_it_is_spelled_out(home: Path) -> None:
    assert at_home("~") == home and at_home(Path("~/a")) == home / "a"
    assert [str(at_home(path)) for path in ("a/~", "/~/b", "a~", "")] == ["a/~", "/~/b", "a~", "."]
    with pytest.raises(SettingError, match="no home of ~nobody-of-this-name is known"):
        at_home("~nobody-of-this-name/a")


@pytest.mark.parametrize("given", [["--cache", "~/kept"], ["--cache=~/kept"]])
def test_on_the_command_line(given: list[str], home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["corpus", "text:~/texts", *given]) == 0
    assert '"train_documents": 39' in capsys.readouterr().out and not Path("~").exists()
    assert main(["experiment", "apply", "--quick", "--show", "--out=~/results"]) == 2
    assert str(home / "results") in capsys.readouterr().err
    assert main(["experiment", "apply", "--quick", "--show", "--out=~"]) == 2
    assert f"--out {home}: holds no result" in capsys.readouterr().err


def test_whose_home_nobody_knows_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["corpus", "text:texts", "--cache=~nobody-of-this-name/kept"]) == 2
    said = capsys.readouterr().err
    assert said == (
        "gruppetto: ~nobody-of-this-name/kept: no home of ~nobody-of-this-name is known; write the path out\n"
    )


def test_in_settings(home: Path) -> None:
    (home / "token").write_text("secret\n")
    (home / "token").chmod(0o600)
    Path("run.toml").write_text(
        '[data]\ncorpus = "text:~/texts"\n[syncer]\ntoken_file = "~/token"\nstate = "~/state"\n'
    )
    config = load_run(Path("run.toml"))
    assert Path("rundir") / config.syncer.state == home / "state"
    assert needed_by(config) == [home / "texts", home / "token"]
    assert len(open_corpus(config.train.data.corpus).train) > 20 and read_token(config.syncer.token_file) == "secret"


def test_in_python(home: Path) -> None:
    assert Checkpoints("~/checkpoints").directory == home / "checkpoints"
    with pytest.raises(AddressError, match=rf"^{home}/run: no syncer has said"):
        address_book("~/run")
    assert not Path("~").exists()


def test_what_is_no_path_is_said_in_one_line() -> None:
    with pytest.raises(SettingError, match=r"^5: cannot be used \(.*\); pass a path$"):
        at_home(5)  # type: ignore[arg-type]
