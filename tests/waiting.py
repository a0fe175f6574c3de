"""Waiting for state that tells nobody when it changes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


async def until(condition: Callable[[], T], seconds: float = 60.0) -> T:
    """Return what ``condition`` returns once that holds."""
    async with asyncio.timeout(seconds):
        while not (held := condition()):  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    return held
