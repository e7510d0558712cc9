"""Compile once, then never time a test: the first call of a kernel takes seconds, the others microseconds."""

from __future__ import annotations

import pytest

from gruppetto.numerics import warm


@pytest.fixture(scope="session", autouse=True)
def _compiled() -> None:
    warm()
