"""When those who are refused should come again: when half of what is in their way is gone."""

from __future__ import annotations

import random

_LEAST_MS, _MOST_MS = 100, 30_000
UNKNOWN_MS = 1000
"""Where nobody knows how long it takes."""
_SPREAD = 1.25


def retry_after_ms(seconds: float | None) -> int:
    """``seconds`` until all that is in the way is gone. Spread, so that not all who are refused come back together."""
    delay = UNKNOWN_MS if seconds is None else min(max(500 * seconds, _LEAST_MS), _MOST_MS)
    return round(delay * random.uniform(1.0, _SPREAD))
