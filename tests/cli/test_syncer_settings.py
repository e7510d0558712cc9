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


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--shard", "2/3", "--directory", "http://a"], "the run has 2 shards, and this is 2/3; give --shard NUMBER/2"),
        ([], "the run has 2 shards, and it is not said which this is; give --shard NUMBER/2"),
        (["--shard", "2/2"], "shard 2/2 does not know the address of the first shard; give --directory URL"),
        (["--shard", "1/2", "--directory", "http://a"], "shard 1/2 is given the address of the first shard; leave it"),
        (["--shard", "nine"], "shard: is 'nine'; use NUMBER/OF, as in 1/2"),
    ],
)
def test_a_shard_that_is_not_of_this_run_does_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: list[str], said: str
) -> None:
    monkeypatch.setattr(syncer, "run_syncer", lambda *_, **__: pytest.fail("it serves"))
    (tmp_path / "RUN.toml").write_text("[syncer]\nshards = 2\n", encoding="utf-8")
    with pytest.raises(SettingError) as refused:
        syncer.main([str(tmp_path / "RUN.toml"), *flags])
    assert said in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize(("shard", "state"), [("1/2", "syncer"), ("2/2", "syncer-2")])
def test_each_shard_of_one_file_has_a_state_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shard: str, state: str
) -> None:
    served = []
    monkeypatch.setattr(syncer, "run_syncer", lambda protocol, setting, **_: served.append(setting))
    (tmp_path / "RUN.toml").write_text("[syncer]\nshards = 2\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    where = ["--directory", "http://a:1,http://b:1"] if shard == "2/2" else []
    assert syncer.main(["RUN.toml", "--shard", shard, *where]) == 0
    assert (str(served[0].state), str(served[0].shard)) == (state, shard)
