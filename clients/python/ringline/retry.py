"""What may be tried again, how soon, and until when."""

from __future__ import annotations

import math
import random
import time

from ringline.errors import DeadlineExceeded, Overloaded, RingError, Truncated, Unavailable, invalid

_FIRST_DELAY = 0.1
_LONGEST_DELAY = 2.0
GRACE = 1.0
"""Seconds past its deadline after which a request whose server does not end it is given up."""


class Deadline:
    """A point of time on this process's monotonic clock, or none."""

    def __init__(self, timeout: float | None) -> None:
        """``timeout`` is in seconds from now; raise InvalidRequest unless it is positive."""
        if timeout is not None and not 0 < timeout < math.inf:
            raise invalid("timeout", f"{timeout!r} is not a positive number of seconds")
        self._end = None if timeout is None else time.monotonic() + timeout

    def remaining(self) -> float | None:
        """Seconds left, > 0; None without a deadline. Raise DeadlineExceeded when it has passed."""
        if self._end is None:
            return None
        left = self._end - time.monotonic()
        if left <= 0:
            raise DeadlineExceeded("the timeout passed before the request was admitted")
        return left

    def remaining_ms(self) -> int | None:
        """The same in whole milliseconds, ≥ 1."""
        left = self.remaining()
        return None if left is None else math.ceil(left * 1000)

    def backstop(self) -> float | None:
        """Seconds until the server should long have ended the request by itself."""
        left = self.remaining()
        return None if left is None else left + GRACE


class Backoff:
    """The attempts of one request: only what cannot have delivered anything is tried again."""

    def __init__(self, retries: int, retry_overloaded: bool, deadline: Deadline) -> None:
        self._left = retries
        self._retry_overloaded = retry_overloaded
        self._deadline = deadline
        self._delay = _FIRST_DELAY

    def delay(self, error: RingError) -> float:
        """Seconds to wait before another attempt; raise ``error`` where it stands.

        Delays double up to 2 s, with jitter, and are at least what the server asked for.
        """
        least = self._least_delay(error)
        if least is None or self._left <= 0:
            raise error
        delay = max(least, self._delay * random.uniform(0.5, 1.0))
        remaining = self._deadline.remaining()
        if remaining is not None and delay >= remaining:
            raise error
        self._left -= 1
        self._delay = min(2 * self._delay, _LONGEST_DELAY)
        return delay

    def _least_delay(self, error: RingError) -> float | None:
        """None: the error is not one to try again after, or the request had been admitted."""
        if error.partial is not None:
            return None
        if isinstance(error, Unavailable) and not isinstance(error, Truncated):
            return 0.0
        if isinstance(error, Overloaded) and self._retry_overloaded:
            return error.retry_after
        return None
