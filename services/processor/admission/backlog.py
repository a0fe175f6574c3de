"""Requests that this processor took and no engine has begun to compute: how many, and how long one more would wait.

A request that would wait too long is refused here, before anything is done for it. The time is estimated from how fast
tokens flow while requests wait, and how many of them a tenant's requests have: tokens flow evenly, whereas requests
begin and end in bursts. It takes in whatever holds the engines up: full batches, a full KV cache, other processors'
requests.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from services.processor.admission.throughput import Throughput
from services.ring.dynamic_threshold import DynamicThreshold
from services.ring.errors import Code, Reason, Refused, retry_after_ms

_FORGOTTEN = 0.02
"""How much less the tokens of requests count with each one that has ended since."""
_MARGIN = 1.25
"""How much longer than estimated a request may take and still end within its time."""
_TENANTS_REMEMBERED = 1024
"""Whose requests were like what; others' are taken to be like all."""


@dataclass(frozen=True, slots=True)
class BacklogLimits:
    """What may wait."""

    max_requests: int
    max_seconds: float
    """Longest wait that a request is taken for."""


@dataclass(slots=True)
class _Ended:
    """Requests that ended: sums in which each counts less than the next."""

    tokens: float = 0.0
    seconds: float = 0.0
    requests: float = 0.0

    def add(self, tokens: int, seconds: float) -> None:
        self.tokens += tokens - _FORGOTTEN * self.tokens
        self.seconds += seconds - _FORGOTTEN * self.seconds
        self.requests += 1 - _FORGOTTEN * self.requests


class Backlog:
    """Counts who waits, by tenant: engines serve waiting tenants in turns, so each waits for its own requests."""

    def __init__(self, limits: BacklogLimits) -> None:
        self._limits = limits
        self._places = DynamicThreshold(limits.max_requests)
        self._waiting: dict[str, str] = {}
        """Tenants by ring id."""
        self.on_leave: Callable[[str], None] = lambda ring_id: None
        """Is told of each request that waits no longer."""
        self._speed = Throughput()
        self._fresh_tokens = 0
        """Computed since the last look."""
        self._all = _Ended()
        self._by_tenant: OrderedDict[str, _Ended] = OrderedDict()
        """Of the tenants whose requests ended last: who asks for little is not refused for what others ask for."""

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
        usual = self._usual(tenant)
        computing = usual.seconds / usual.requests
        if max_tokens is not None:
            computing *= min(1.0, max_tokens * usual.requests / usual.tokens)
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

    def ended(self, tenant: str, tokens: int, seconds: float) -> None:
        """A request has ended, with so many tokens in all, ``seconds`` after an engine had begun it."""
        of_tenant = self._by_tenant.setdefault(tenant, _Ended())
        self._by_tenant.move_to_end(tenant)
        if len(self._by_tenant) > _TENANTS_REMEMBERED:
            self._by_tenant.popitem(last=False)
        for ended in (self._all, of_tenant):
            ended.add(tokens, seconds)

    def tick(self, now: float) -> None:
        """Measure the speed. Call a few times a second."""
        if self._fresh_tokens:
            self._speed.add(self._fresh_tokens, now)
            self._fresh_tokens = 0

    def stay(self, tenant: str) -> float | None:
        """Seconds until what a tenant has under way has ended; None while that is not known."""
        usual = self._usual(tenant)
        return (self._wait(tenant, 0) or 0.0) + usual.seconds / usual.requests if usual.requests else None

    def _usual(self, tenant: str) -> _Ended:
        """What a tenant's requests were like."""
        return self._by_tenant.get(tenant, self._all)

    def _wait(self, tenant: str, more: int) -> float | None:
        """Seconds until those of ``tenant`` that wait, and ``more``, have begun; None while that is not known."""
        speed = self._speed.per_second()
        usual = self._usual(tenant)
        if not self._waiting or not speed or not usual.requests:
            return None
        requests = self._places.held(tenant) + more
        tenants = len(self._places) + (not self._places.held(tenant))
        return requests * tenants * usual.tokens / usual.requests / speed
