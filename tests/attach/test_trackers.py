"""A learner's numbers reach a tracker under their names, at the learner's step."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from gruppetto.attach.trackers import to_tensorboard, to_trackio, to_wandb, track
from gruppetto.errors import SettingError


class Rider:
    def __init__(self) -> None:
        self.steps = 0

    def metrics(self) -> dict[str, float]:
        return {"gruppetto/steps": self.steps, "gruppetto/round": 7.0}


class Log:
    """What wandb and trackio have in common."""

    def __init__(self) -> None:
        self.said: list[tuple[dict[str, float], int]] = []

    def log(self, metrics: Mapping[str, float], *, step: int) -> None:
        self.said.append((dict(metrics), step))


def test_every_so_many_steps_each_tracker_gets_all_of_it() -> None:
    wandb, trackio, rider = Log(), Log(), Rider()
    for rider.steps in range(1, 11):
        track(rider, to_wandb(wandb), to_trackio(trackio), every=5, loss=0.5)
    said = [({"gruppetto/steps": n, "gruppetto/round": 7.0, "loss": 0.5}, n) for n in (5, 10)]
    assert wandb.said == trackio.said == said


def test_every_no_step_is_refused_and_a_trackers_own_failure_is_its_owners() -> None:
    with pytest.raises(SettingError, match=r"every.*1 or more"):
        track(Rider(), every=0)

    def closed(metrics: Mapping[str, float], step: int) -> None:
        raise ValueError("the file is closed")

    with pytest.raises(ValueError, match="the file is closed"):
        track(Rider(), closed)


def test_tensorboard_keeps_them(tmp_path: Path) -> None:
    tensorboard = pytest.importorskip("torch.utils.tensorboard", reason="tensorboard is not installed")
    with tensorboard.SummaryWriter(str(tmp_path)) as writer:
        track(Rider(), to_tensorboard(writer), loss=0.5)
    assert list(tmp_path.glob("events.out.tfevents.*"))


def test_whatever_has_add_scalar_will_do() -> None:
    class Writer:
        def __init__(self) -> None:
            self.said: list[tuple[str, float, int]] = []

        def add_scalar(self, name: str, value: float, step: int) -> None:
            self.said.append((name, value, step))

    writer, rider = Writer(), Rider()
    rider.steps = 3
    track(rider, to_tensorboard(writer))
    assert writer.said == [("gruppetto/steps", 3, 3), ("gruppetto/round", 7.0, 3)]
