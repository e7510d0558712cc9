"""Several coroutines as one: the end of any is the end of all."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

__all__ = ["until_one_ends"]


async def until_one_ends(*parts: Coroutine[Any, Any, None]) -> None:
    """Run all until the first ends or fails; end the others; raise what it raised."""
    tasks = [asyncio.create_task(part) for part in parts]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
