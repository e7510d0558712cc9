"""The settings that a syncer keeps in its state directory."""

from __future__ import annotations

from pathlib import Path

import pytest

from gruppetto.cli import syncer
from gruppetto.config import load_run
from gruppetto.errors import SettingError
from gruppetto.runtime.serving import Endpoint


@pytest.mark.parametrize("text", ["", "\n# nothing\n", "[outer]\npreset = 'paper'\n", "[run]\n"])
def test_kept_settings_without_a_run_are_refused_and_never_the_defaults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setattr(syncer, "run_syncer", lambda *_, **__: pytest.fail("it serves"))
    (tmp_path / "run.toml").write_text(text, encoding="utf-8")
    with pytest.raises(
        SettingError, match=r"run.toml: does not hold the settings .*; name the run's own RUN.toml"
    ) as refused:
        syncer.main(["--state", str(tmp_path)])
    assert "\n" not in str(refused.value)


def test_a_link_to_nowhere_is_not_a_directory_without_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(syncer, "run_syncer", lambda *_, **__: pytest.fail("it serves"))
    (tmp_path / "run.toml").symlink_to(tmp_path / "nowhere")
    with pytest.raises(SettingError, match="cannot be read"):
        syncer.main(["--state", str(tmp_path)])


def test_kept_settings_come_back_and_are_forced_before_they_have_their_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = load_run(overrides={"syncer.state": str(tmp_path), "run.min_quorum": "2", "run.num_learners": "4"})
    endpoint = Endpoint(url="http://127.0.0.1:1", run_id="r", epoch=1, pid=1, control="c")
    syncer._ready(endpoint, config)
    kept = (tmp_path / "run.toml").read_bytes()
    assert load_run(content=syncer._kept_settings(tmp_path / "run.toml"), file=tmp_path / "run.toml") == config
    with monkeypatch.context() as broken:
        broken.setattr("os.fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        syncer._ready(endpoint, load_run(overrides={"syncer.state": str(tmp_path)}))
    assert (tmp_path / "run.toml").read_bytes() == kept
