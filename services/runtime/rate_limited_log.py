"""A log line for what strangers can make happen as often as they like: one a second, with how many were left out."""

from __future__ import annotations

import time
from typing import Any

QUIET = 1.0
"""Seconds after a line before the next."""


class RateLimitedLog:
    """Writes one kind of event."""

    def __init__(self, log: Any, event: str) -> None:
        """``log``: the logger of whoever tells it."""
        self._log = log
        self._event = event
        self._told_at: float | None = None
        self._untold = 0

    def tell(self, **fields: object) -> None:
        """It has happened: a line at the level info, unless there was one just now."""
        now = time.monotonic()
        if self._told_at is not None and now - self._told_at < QUIET:
            self._untold += 1
            return
        self._log.info(self._event, **fields, not_logged_before=self._untold)
        self._told_at, self._untold = now, 0
