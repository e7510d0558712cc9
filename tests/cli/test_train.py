"""What the flags of the train verb make of a run, before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from gruppetto.cli.__main__ import main
from gruppetto.config import RunConfig
from gruppetto.errors import RunFailed


@pytest.mark.parametrize(("flags", "standby"), [((), False), (("--standby",), True)])
def test_a_standby_is_kept_when_it_is_asked_for(
    flags: tuple[str, ...], standby: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[RunConfig] = []

    def ride(config: RunConfig, *_: object, **__: object) -> None:
        seen.append(config)
        raise RunFailed("enough")

    monkeypatch.setattr("gruppetto.cli.train.ride_and_report", ride)
    assert main(["train", *flags, "--learners", "1", "--out", str(tmp_path / "run")]) == 1
    assert [config.launch.standby for config in seen] == [standby]
