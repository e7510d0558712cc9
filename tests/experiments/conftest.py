"""A small text that is easy to learn, and rides on it that take a moment."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from gruppetto.experiments.ride import Ride


@pytest.fixture(scope="session")
def story(tmp_path_factory: pytest.TempPathFactory) -> Path:
    draw = random.Random(7)
    who, does = ["the rider", "a climber", "my sprinter", "the 山 goat"], ["follows", "waits for", "passes"]
    text = ""
    while len(text) < 40_000:
        text += f"{draw.choice(who)} {draw.choice(does)} {draw.choice(who)}.\n"
    path = tmp_path_factory.mktemp("corpus") / "story.txt"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="session")
def short(story: Path) -> Ride:
    """Two learners, eight rounds."""
    return Ride(data=f"text:{story}", learners=2, rounds=8, sync_period=4, fragments=4, eval_windows=20)
