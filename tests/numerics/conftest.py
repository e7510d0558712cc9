"""Compile once, then never time a test: the first call of a kernel takes seconds, the others microseconds."""

from __future__ import annotations

import pytest
from hypothesis import settings

from gruppetto.numerics import warm

settings.register_profile("numerics", deadline=None)
settings.load_profile("numerics")


@pytest.fixture(scope="session", autouse=True)
def _compiled() -> None:
    warm()
