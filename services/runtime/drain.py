"""Waiting, within a bound, for what is under way to end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

_INTERVAL = 0.05


async def wait_until_idle(busy: Callable[[], int], grace: float) -> int:
    """Wait until ``busy()`` is 0, for at most ``grace`` seconds; returns what it is then."""
    end = time.monotonic() + grace
    while busy() and time.monotonic() < end:  # noqa: ASYNC110 - once in a life, over state of several owners
        await asyncio.sleep(_INTERVAL)
    return busy()
