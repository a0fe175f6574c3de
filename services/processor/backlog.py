"""Requests that this processor took and no engine has begun to compute: how many, and how long one more would wait.

A request that would wait too long is refused here, before anything is done for it. The time is estimated from how fast
tokens flow while requests wait, and how many of them a request has: tokens flow evenly, whereas requests begin and end
in bursts. It takes in whatever holds the engines up: full batches, a full KV cache, other processors' requests.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from services.processor.speed import Speed
from services.ring.events import Code, Reason, Refused
from services.ring.retry import retry_after_ms
from services.ring.shares import Shares

_FORGOTTEN = 0.02
"""How much less the tokens of requests count with each one that has ended since."""
_MARGIN = 1.25
"""How much longer than estimated a request may take and still end within its time."""


@dataclass(frozen=True, slots=True)
class BacklogLimits:
    """What may wait."""

    max_requests: int
    max_seconds: float
    """Longest wait that a request is taken for."""


class Backlog:
    """Counts who waits, by tenant: engines serve waiting tenants in turns, so each waits for its own requests."""

    def __init__(self, limits: BacklogLimits) -> None:
        self._limits = limits
        self._places = Shares(limits.max_requests)
        self._waiting: dict[str, str] = {}
        """Tenants by ring id."""
        self.on_leave: Callable[[str], None] = lambda ring_id: None
        """Is told of each request that waits no longer."""
        self._speed = Speed()
        self._fresh_tokens = 0
        """Computed since the last look."""
        self._request_tokens = self._request_seconds = self._requests = 0.0
        """Of those that ended: sums in which each counts less than the next."""

    @property
    def num_waiting(self) -> int:
        """Requests that no engine has begun."""
        return len(self._waiting)

    def check(self, tenant: str, timeout: float | None, max_tokens: int | None) -> None:
        """Raise ``Refused`` where one more request of ``tenant`` would wait in vain.

        ``timeout``: seconds that it has; ``max_tokens``: of its output, if it says so.
        """
        if not self._places.has_room(tenant, 1):
            raise Refused(
                Code.RESOURCE_EXHAUSTED,
                f"{self._places.held(tenant)} requests of this tenant wait for an engine, and "
                f"{self._limits.max_requests - self._places.total} more may: expected at most as many as may",
                retry_after_ms(self._wait(tenant, 0)),
                reason=Reason.QUOTA,
            )
        seconds = self._wait(tenant, 1)
        if seconds is None:
            return
        computing = self._request_seconds / self._requests
        if max_tokens is not None:
            computing *= min(1.0, max_tokens * self._requests / self._request_tokens)
        if timeout is not None and _MARGIN * (seconds + computing) > timeout:
            problem = f" and be computed for {computing:.1f} s: too long for its time of {timeout:.1f} s"
        elif seconds > self._limits.max_seconds:
            problem = f": expected at most {self._limits.max_seconds:g} s"
        else:
            return
        message = f"it would wait {seconds:.1f} s for an engine{problem}"
        raise Refused(Code.RESOURCE_EXHAUSTED, message, retry_after_ms(self._wait(tenant, 0)))

    def enter(self, ring_id: str, tenant: str, now: float) -> None:
        """A request was taken."""
        if not self._waiting:
            self._speed.begin(now)
        self._waiting[ring_id] = tenant
        self._places.take(tenant, 1)

    def leave(self, ring_id: str) -> None:
        """An engine has begun it, or it has ended. Idempotent."""
        if (tenant := self._waiting.pop(ring_id, None)) is not None:
            self._places.give_back(tenant, 1)
            self.on_leave(ring_id)

    def computed(self, tokens: int) -> None:
        """So many tokens, of prompts and outputs, came from engines."""
        self._fresh_tokens += tokens

    def ended(self, tokens: int, seconds: float) -> None:
        """A request has ended, with so many tokens in all, ``seconds`` after an engine had begun it."""
        self._request_tokens += tokens - _FORGOTTEN * self._request_tokens
        self._request_seconds += seconds - _FORGOTTEN * self._request_seconds
        self._requests += 1 - _FORGOTTEN * self._requests

    def tick(self, now: float) -> None:
        """Measure the speed. Call a few times a second."""
        if self._fresh_tokens:
            self._speed.add(self._fresh_tokens, now)
            self._fresh_tokens = 0

    def stay(self, tenant: str) -> float | None:
        """Seconds until what a tenant has under way has ended; None while that is not known."""
        if not self._requests:
            return None
        return (self._wait(tenant, 0) or 0.0) + self._request_seconds / self._requests

    def _wait(self, tenant: str, more: int) -> float | None:
        """Seconds until those of ``tenant`` that wait, and ``more``, have begun; None while that is not known."""
        speed = self._speed.per_second()
        if not self._waiting or not speed or not self._requests:
            return None
        requests = self._places.held(tenant) + more
        tenants = len(self._places) + (not self._places.held(tenant))
        return requests * tenants * self._request_tokens / self._requests / speed
