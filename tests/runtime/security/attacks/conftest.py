"""A syncer that asks for certificates, to be attacked."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.runtime.security.attacks.site_of_a_run import House, Site, run, serving


@pytest.fixture
def house(tmp_path: Path) -> House:
    return House(tmp_path)


@pytest.fixture
def at_the_site(house: House) -> Callable[..., None]:
    """Run an async test at a syncer of ``house``."""

    def play(test: Callable[[Site], Awaitable[None]], **how: Any) -> None:
        async def whole() -> None:
            async with serving(house, **how) as site:
                await test(site)

        run(whole())

    return play
