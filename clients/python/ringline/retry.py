"""What may be tried again, how soon, and until when."""

from __future__ import annotations

import math
import random
import time
from dataclasses import dataclass

from ringline.errors import DeadlineExceeded, Overloaded, RingError, Unavailable, invalid

_FIRST_DELAY = 0.1
_LONGEST_DELAY = 1.0
_LONGEST_RETRY = 30.0
"""Seconds to which doubling what an overloaded server asked for may bring it."""
_MOST_DOUBLINGS = 10
_SPREAD = 1.5
_MODEL_GONE = "MODEL_GONE"
"""The reason of a request that no other server can go on with."""
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
            raise DeadlineExceeded("the timeout passed while no server had the request")
        return left

    def remaining_ms(self) -> int | None:
        """The same in whole milliseconds, ≥ 1."""
        left = self.remaining()
        return None if left is None else math.ceil(left * 1000)

    def backstop(self) -> float | None:
        """Seconds until the server should long have ended the request by itself."""
        left = self.remaining()
        return None if left is None else left + GRACE


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """A client's choice; see there."""

    patience: float
    retries: int
    retry_overloaded: bool

    def __post_init__(self) -> None:
        """Raise InvalidRequest for a number that means nothing."""
        if not self.patience >= 0:
            raise invalid("patience", f"{self.patience!r} is not a number of seconds")
        if not self.retries >= 0:
            raise invalid("retries", f"{self.retries!r} is not a number of attempts")


class Attempts:
    """The attempts at one request: what is tried again after an error, and when it stands.

    An outage lasts from the first error until a server takes the request, ``patience`` seconds at most. A request
    that was lost with its server ``retries`` times, with nothing delivered in between, is not given to another: it
    may be what ends them.
    """

    def __init__(self, policy: RetryPolicy, deadline: Deadline) -> None:
        self._policy = policy
        self._deadline = deadline
        self._outage_began: float | None = None
        self._delay = _FIRST_DELAY
        self._taken = False
        """Whether a server took the current attempt."""
        self._refusals = 0
        """Attempts in a row that were refused for overload."""
        self._lost = 0
        """Attempts in a row that were lost after that, with nothing delivered."""

    @property
    def resumable(self) -> bool:
        """Whether a request that was admitted may be tried again at all."""
        return self._policy.patience > 0 and self._policy.retries > 0

    def admitted(self) -> None:
        """A server took the request."""
        self._taken = True
        self._outage_began = None
        self._delay = _FIRST_DELAY
        self._refusals = 0

    def delivered(self) -> None:
        """Something of its answer came."""
        self._lost = 0

    def delay(self, error: RingError, *, another: bool) -> float:
        """Seconds to wait before another attempt; raise ``error`` where it stands.

        None while there is ``another`` server to ask; else they double up to 1 s, with jitter. In any case at least
        what the server asked for; twice that after a second refusal in a row, and so on, and up to half more at random.
        """
        least = self._least_delay(error)
        if least is None:
            raise error
        if self._taken:
            self._taken = False
            self._lost += 1
            if self._lost > self._policy.retries:
                raise error
        delay = least
        if not another:
            delay = max(least, self._delay * random.uniform(0.5, 1.0))
            self._delay = min(2 * self._delay, _LONGEST_DELAY)
        now = time.monotonic()
        if self._outage_began is None:
            self._outage_began = now
        remaining = self._deadline.remaining()
        if now + delay - self._outage_began >= self._policy.patience or (remaining is not None and delay >= remaining):
            raise error
        return delay

    def _least_delay(self, error: RingError) -> float | None:
        """None: the error is not one to try again after."""
        if isinstance(error, Unavailable):
            return None if error.reason == _MODEL_GONE else 0.0
        if isinstance(error, Overloaded):
            if error.partial is not None:  # it had been admitted elsewhere, and is only to go on
                return self._spread(error.retry_after or 0.0)
            if self._policy.retry_overloaded and error.retry_after is not None:
                return self._spread(error.retry_after)
        return None

    def _spread(self, asked: float) -> float:
        """Those who were refused together must not come back together, nor all too often."""
        delay = min(asked * (1 << self._refusals), max(asked, _LONGEST_RETRY))
        self._refusals = min(self._refusals + 1, _MOST_DOUBLINGS)
        return delay * random.uniform(1.0, _SPREAD)
