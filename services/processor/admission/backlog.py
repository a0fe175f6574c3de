"""The admission limit: how many requests may wait for an engine to begin them, and for how long.

A request that would wait too long is refused before any work is done for it. The wait is estimated from the token
throughput while requests wait, and the average tokens of a tenant's requests: the token rate is even, whereas requests
begin and end in bursts. The measured rate includes everything that slows engines: full batches, a full KV cache, other
processors' requests.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from services.processor.admission.throughput import Throughput
from services.ring.errors import Code, Reason, Refused, retry_after_ms
from services.ring.tenant_quota import TenantQuota

_DECAY = 0.02
"""Weight of the newest ended request in an average."""
_MARGIN = 1.25
"""A request is refused if this many times its estimated duration exceeds the time until its deadline."""
_TENANTS_REMEMBERED = 1024
"""Maximum tenants with their own averages; others use the averages over all tenants."""


@dataclass(frozen=True, slots=True)
class BacklogLimits:
    """Limits on waiting requests."""

    max_requests: int
    max_seconds: float
    """A request with a longer estimated wait is refused."""


@dataclass(slots=True)
class _Averages:
    """Exponentially decaying sums over ended requests."""

    tokens: float = 0.0
    seconds: float = 0.0
    requests: float = 0.0

    def add(self, tokens: int, seconds: float) -> None:
        self.tokens += tokens - _DECAY * self.tokens
        self.seconds += seconds - _DECAY * self.seconds
        self.requests += 1 - _DECAY * self.requests


class Backlog:
    """Counts waiting requests by tenant: engines serve tenants in turns, so a request queues behind its tenant's."""

    def __init__(self, limits: BacklogLimits) -> None:
        self._limits = limits
        self._places = TenantQuota(limits.max_requests)
        self._waiting: dict[str, str] = {}
        """Tenants of waiting requests, keyed by request id."""
        self._throughput = Throughput()
        self._fresh_tokens = 0
        """Tokens computed since the last tick."""
        self._all = _Averages()
        self._by_tenant: OrderedDict[str, _Averages] = OrderedDict()
        """Recently active tenants' averages, so that large requests of others do not get small ones refused."""

    @property
    def num_waiting(self) -> int:
        """Requests that no engine has begun."""
        return len(self._waiting)

    def check(self, tenant: str, timeout: float | None, max_tokens: int | None) -> None:
        """Raise ``Refused`` if one more request of ``tenant`` would exceed a limit, or wait beyond its deadline.

        ``timeout``: seconds until its deadline; ``max_tokens``: limit on its output; None: no limit.
        """
        if not self._places.has_room(tenant, 1):
            raise Refused(
                Code.RESOURCE_EXHAUSTED,
                f"this tenant has {self._places.held(tenant)} requests waiting; a tenant may have no more than the "
                f"queue has free places, now {self._limits.max_requests - self._places.total} of "
                f"{self._limits.max_requests}; retry later",
                retry_after_ms(self._wait(tenant, 0)),
                reason=Reason.QUOTA,
            )
        seconds = self._wait(tenant, 1)
        if seconds is None:
            return
        averages = self._averages(tenant)
        computing = averages.seconds / averages.requests
        if max_tokens is not None:
            computing *= min(1.0, max_tokens * averages.requests / averages.tokens)
        if timeout is not None and _MARGIN * (seconds + computing) > timeout:
            message = (
                f"too little time: {timeout:.1f} s until the deadline, for an estimated {seconds:.1f} s of waiting and "
                f"{computing:.1f} s of computing plus a margin of {_MARGIN - 1:.0%}; allow more time or retry later"
            )
        elif seconds > self._limits.max_seconds:
            limit = f"the limit of {self._limits.max_seconds:g} s"
            message = f"the estimated wait of {seconds:.1f} s for an engine exceeds {limit}; retry later"
        else:
            return
        raise Refused(Code.RESOURCE_EXHAUSTED, message, retry_after_ms(self._wait(tenant, 0)))

    def enter(self, request_id: str, tenant: str, now: float) -> None:
        if not self._waiting:
            self._throughput.begin(now)
        self._waiting[request_id] = tenant
        self._places.take(tenant, 1)

    def leave(self, request_id: str) -> None:
        """An engine has begun a request, or it has ended. Idempotent."""
        if (tenant := self._waiting.pop(request_id, None)) is not None:
            self._places.give_back(tenant, 1)

    def computed(self, tokens: int) -> None:
        """Count tokens of prompts and outputs that engines computed."""
        self._fresh_tokens += tokens

    def ended(self, tenant: str, tokens: int, seconds: float) -> None:
        """A request has ended, with ``tokens`` of prompt and output, ``seconds`` after an engine had begun it."""
        of_tenant = self._by_tenant.setdefault(tenant, _Averages())
        self._by_tenant.move_to_end(tenant)
        if len(self._by_tenant) > _TENANTS_REMEMBERED:
            self._by_tenant.popitem(last=False)
        for averages in (self._all, of_tenant):
            averages.add(tokens, seconds)

    def tick(self, now: float) -> None:
        """Measure the throughput. Call a few times a second."""
        if self._fresh_tokens:
            self._throughput.add(self._fresh_tokens, now)
            self._fresh_tokens = 0

    def stay(self, tenant: str) -> float | None:
        """Estimated seconds until a tenant's requests have all ended; None while there is no estimate."""
        averages = self._averages(tenant)
        if not averages.requests:
            return None
        return (self._wait(tenant, 0) or 0.0) + averages.seconds / averages.requests

    def _averages(self, tenant: str) -> _Averages:
        return self._by_tenant.get(tenant, self._all)

    def _wait(self, tenant: str, more: int) -> float | None:
        """Estimated seconds until a tenant's waiting requests and ``more`` have begun; None without an estimate."""
        speed = self._throughput.per_second()
        averages = self._averages(tenant)
        if not self._waiting or not speed or not averages.requests:
            return None
        requests = self._places.held(tenant) + more
        tenants = len(self._places) + (not self._places.held(tenant))
        return requests * tenants * averages.tokens / averages.requests / speed
