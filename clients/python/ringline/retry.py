"""The retry rule: which errors are retried, after which delay, and until when."""

from __future__ import annotations

import math
import random
import time
from dataclasses import dataclass
from numbers import Real

from ringline.errors import DeadlineExceeded, Overloaded, RingError, Unavailable, invalid
from ringline.proto_fields import shown

_FIRST_DELAY = 0.1
_LONGEST_DELAY = 1.0
_LONGEST_RETRY = 30.0
"""Seconds; the limit of doubling the delay that an overloaded server asked for."""
_MOST_DOUBLINGS = 10
_JITTER = 1.5
ADAPTER_GONE = "ADAPTER_GONE"
_GONE = ("MODEL_GONE", ADAPTER_GONE)
"""The error reasons of a request that no server can continue because its model, or its adapter, is gone."""
DEFAULT_TIMEOUT = 3600.0
"""Seconds that a call may take if neither it nor its client says: none waits for ever."""
_LONGEST_TIMEOUT = (2**32 - 1) / 1000
"""Seconds; the largest ``timeout_ms`` that the contract can hold."""
GRACE = 1.0
"""Seconds after a request's deadline at which the client ends it if the server has not."""


def _check_number(name: str, value: object) -> None:
    if not isinstance(value, Real):  # numpy's numbers, too
        raise TypeError(f"{name}: expected a number, got {type(value).__name__}")


def check_timeout(timeout: float | None) -> None:
    """Raise InvalidRequest if a timeout in seconds is out of range, TypeError if it is no number."""
    if timeout is not None:
        _check_number("timeout", timeout)
        if not 0 < timeout <= _LONGEST_TIMEOUT:
            expected = f"expected more than 0 and at most {_LONGEST_TIMEOUT:.0f} s"
            raise invalid("timeout", f"{shown(timeout)} is out of range: {expected}")


class Deadline:
    """A point in time on this process's monotonic clock, or none."""

    def __init__(self, timeout: float | None) -> None:
        """``timeout``: seconds from now. Raises InvalidRequest if it is out of range, TypeError if it is no number."""
        check_timeout(timeout)
        self._end = None if timeout is None else time.monotonic() + timeout

    def remaining(self) -> float | None:
        """Seconds left, > 0; None without a deadline. Raises DeadlineExceeded when it has passed."""
        if self._end is None:
            return None
        left = self._end - time.monotonic()
        if left <= 0:
            raise DeadlineExceeded("the timeout passed before a server took the request")
        return left

    def remaining_ms(self) -> int | None:
        """Like ``remaining``, in whole milliseconds, ≥ 1."""
        left = self.remaining()
        return None if left is None else math.ceil(left * 1000)

    def backstop(self) -> float | None:
        """Seconds after which the client ends the request if the server has not; None without a deadline."""
        left = self.remaining()
        return None if left is None else left + GRACE


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """A client's retry options, as documented at ``Client``."""

    patience: float
    retries: int
    retry_overloaded: bool
    wait_for_ready: bool = False

    def __post_init__(self) -> None:
        """Raises InvalidRequest for a number out of range."""
        for name, value in (("patience", self.patience), ("retries", self.retries)):
            _check_number(name, value)
            if not value >= 0:
                raise invalid(name, f"{shown(value)} is out of range: expected at least 0")


class RetryState:
    """Decides for one request whether an error is retried.

    An outage lasts from the first error until a server takes the request, at most ``patience`` seconds. A client that
    has never reached a server does not wait for one, unless ``wait_for_ready``. A request that lost its server more
    than ``retries`` times with nothing delivered in between is not retried: it may be crashing servers. A server that
    admits the request but then refuses it as Overloaded, its engine being full, has not taken it: the outage goes on.
    """

    def __init__(self, policy: RetryPolicy, deadline: Deadline) -> None:
        self._policy = policy
        self._deadline = deadline
        self._outage_began: float | None = None
        self._delay = _FIRST_DELAY
        self._admitted = False
        """Whether the current attempt was admitted."""
        self._taken = False
        """Whether some server has taken the request: it delivered something, or was lost after admitting it."""
        self._refusals = 0
        """Number of consecutive attempts refused for overload."""
        self._lost = 0
        """Number of consecutive attempts that were admitted, then lost, with nothing delivered."""

    @property
    def resumable(self) -> bool:
        """Whether the policy allows retrying a request after it was admitted."""
        return self._policy.patience > 0 and (self._policy.retries > 0 or self._policy.retry_overloaded)

    def admitted(self) -> None:
        """A server admitted the request."""
        self._admitted = True

    def delivered(self) -> None:
        """A part of the answer arrived."""
        self._take()
        self._lost = 0

    def delay(self, error: RingError, *, any_available: bool, begins_anew: bool = False) -> float:
        """Seconds to wait before the next attempt; raises ``error`` if it is not retried.

        ``begins_anew``: the next attempt needs nothing of what the last one had.

        0 if some server is not ejected; else doubling up to 1 s, with jitter. At least the delay that an overloaded
        server asked for, doubled with each consecutive refusal, plus up to half of that as jitter.
        """
        least = self._least_delay(error, begins_anew)
        if least is None:
            raise error
        if self._admitted and not isinstance(error, Overloaded):
            self._take()
            self._lost += 1
            if self._lost > self._policy.retries:
                raise error
        self._admitted = False
        delay = least
        if not any_available:
            delay = max(least, self._delay * random.uniform(0.5, 1.0))
            self._delay = min(2 * self._delay, _LONGEST_DELAY)
        now = time.monotonic()
        if self._outage_began is None:
            self._outage_began = now
        try:
            remaining = self._deadline.remaining()
        except DeadlineExceeded:
            raise DeadlineExceeded(f"the timeout passed; the last attempt failed: {error}") from None
        if now + delay - self._outage_began >= self._policy.patience or (remaining is not None and delay >= remaining):
            raise error
        return delay

    def _take(self) -> None:
        """A server has taken the request: the outage is over."""
        self._taken = True
        self._outage_began = None
        self._delay = _FIRST_DELAY
        self._refusals = 0

    def _least_delay(self, error: RingError, begins_anew: bool) -> float | None:
        """Seconds; None: the error is not retried."""
        if isinstance(error, Unavailable):
            never_reached = error.unreached is not None
            is_gone = error.reason in _GONE and not begins_anew
            return None if is_gone or (never_reached and not self._policy.wait_for_ready) else 0.0
        if isinstance(error, Overloaded):
            if self._taken:  # a resume is retried even if the policy does not retry overload
                return self._backoff(error.retry_after or _FIRST_DELAY)
            if self._policy.retry_overloaded and error.retry_after is not None:
                return self._backoff(error.retry_after)
        return None

    def _backoff(self, asked: float) -> float:
        """Exponential, with jitter, so that clients refused together do not retry together."""
        delay = min(asked * (1 << self._refusals), max(asked, _LONGEST_RETRY))
        self._refusals = min(self._refusals + 1, _MOST_DOUBLINGS)
        return delay * random.uniform(1.0, _JITTER)
