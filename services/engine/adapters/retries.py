"""What is tried again after a failure that may pass by itself, less and less often."""

from __future__ import annotations

import time
from typing import Generic, TypeVar

FIRST_SECONDS, MOST_SECONDS = 2.0, 300.0
_T = TypeVar("_T")


class Retries(Generic[_T]):
    """Things to try again. What is not added again while it is tried is forgotten."""

    def __init__(self) -> None:
        self._waiting: dict[_T, tuple[float, float]] = {}
        """When each is due, on the monotonic clock, and how long it has waited until then."""

    def __contains__(self, thing: _T) -> bool:
        return thing in self._waiting

    def add(self, thing: _T, waited: float = 0.0) -> None:
        """It failed; ``waited``: as ``due`` said, if it was tried again."""
        seconds = min(max(FIRST_SECONDS, 2 * waited), MOST_SECONDS)
        self._waiting[thing] = time.monotonic() + seconds, seconds

    def due(self) -> dict[_T, float]:
        """Those to be tried now, which wait no more, and how long each has waited."""
        now = time.monotonic()
        found = {thing: waited for thing, (at, waited) in self._waiting.items() if at <= now}
        for thing in found:
            del self._waiting[thing]
        return found

    def forget(self, thing: _T) -> None:
        """It is not wanted any more, or was tried for another reason. Idempotent."""
        self._waiting.pop(thing, None)


def may_pass(error: BaseException) -> bool:
    """Whether an error came of what may pass without a change of files: a file system that is away, or no memory."""
    return isinstance(_cause(error), OSError | MemoryError)


def is_missing(error: BaseException) -> bool:
    """Whether an error came of a file that is not there."""
    return isinstance(_cause(error), FileNotFoundError)


def _cause(error: BaseException) -> BaseException:
    while error.__cause__ is not None:
        error = error.__cause__
    return error
