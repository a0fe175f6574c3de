"""The admission limit: how many requests may wait for an engine to begin them, and for how long.

A request that would wait too long is refused before any work is done for it. The wait is estimated from the token
throughput while requests wait, and the average tokens of a tenant's requests: the token rate is even, whereas requests
begin and end in bursts. The measured rate includes everything that slows engines: full batches, a full KV cache, other
processors' requests. Each model has engines of its own, so a flood for one says nothing about another.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass, field

from services.processor.admission.throughput import Throughput
from services.ring.errors import Code, Reason, Refused, retry_after_ms
from services.ring.tenant_quota import TenantQuota

_DECAY = 0.02
"""Weight of the newest ended request in an average."""
_MARGIN = 1.25
"""A request is refused if this many times its estimated duration exceeds the time until its deadline."""
_TENANTS_REMEMBERED = 1024
"""Maximum tenants with their own averages; others use the averages over all tenants."""
_MODELS_REMEMBERED = 64
"""Maximum models for which nothing waits."""


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


@dataclass(slots=True)
class _ModelQueue:
    """What waits for a model's engines, and how fast these compute."""

    waiting: Counter[str] = field(default_factory=Counter)
    """Requests that no engine has begun, by tenant; each at least 1."""
    admitted: int = 0
    """Those of them that are tokenized, and wait for an engine alone: without any, engines are not what is slow."""
    throughput: Throughput = field(default_factory=Throughput)
    fresh_tokens: int = 0
    """Tokens computed since the last tick."""
    all: _Averages = field(default_factory=_Averages)
    by_tenant: OrderedDict[str, _Averages] = field(default_factory=OrderedDict)
    """Recently active tenants' averages, so that large requests of others do not get small ones refused."""

    def averages(self, tenant: str) -> _Averages:
        return self.by_tenant.get(tenant, self.all)

    def wait(self, tenant: str, more: int) -> float | None:
        """Estimated seconds until a tenant's waiting requests and ``more`` have begun; None without an estimate."""
        speed = self.throughput.per_second()
        averages = self.averages(tenant)
        if not self.admitted or not speed or not averages.requests:
            return None
        own = self.waiting.get(tenant, 0)
        tenants = len(self.waiting) + (not own)
        return (own + more) * tenants * averages.tokens / averages.requests / speed

    def stay(self, tenant: str) -> float | None:
        """Estimated seconds until a tenant's requests have all ended; None while there is no estimate."""
        averages = self.averages(tenant)
        if not averages.requests:
            return None
        return (self.wait(tenant, 0) or 0.0) + averages.seconds / averages.requests

    def ended(self, tenant: str, tokens: int, seconds: float) -> None:
        of_tenant = self.by_tenant.setdefault(tenant, _Averages())
        self.by_tenant.move_to_end(tenant)
        if len(self.by_tenant) > _TENANTS_REMEMBERED:
            self.by_tenant.popitem(last=False)
        for averages in (self.all, of_tenant):
            averages.add(tokens, seconds)


@dataclass(slots=True)
class _Waiting:
    """A request that no engine has begun."""

    model: str
    tenant: str
    is_admitted: bool = False


class Backlog:
    """Counts waiting requests by model and tenant: engines serve tenants in turns, so a request queues behind its
    tenant's.

    A model is known by its name, which is empty while it is not known which one will be asked. Its requests with
    adapters, which also wait for these, count as those of a model of their own.
    """

    def __init__(self, limits: BacklogLimits) -> None:
        self._limits = limits
        self._places = TenantQuota(limits.max_requests)
        self._waiting: dict[str, _Waiting] = {}
        """Requests that no engine has begun, keyed by request id."""
        self._queues: OrderedDict[str, _ModelQueue] = OrderedDict()
        """By model, those that were asked for last at the end."""

    @property
    def num_waiting(self) -> int:
        """Requests that no engine has begun."""
        return len(self._waiting)

    def check(self, model: str, tenant: str, timeout: float | None, max_tokens: int | None) -> None:
        """Raise ``Refused`` if one more request of ``tenant`` would exceed a limit, or wait beyond its deadline.

        ``timeout``: seconds until its deadline; ``max_tokens``: limit on its output; None: no limit. A tenant of which
        nothing waits has its turn, however many others have theirs before: only a deadline can be too soon for it.
        """
        queue = self._queue(model)
        if not self._places.has_room(tenant, 1):
            raise Refused(
                Code.RESOURCE_EXHAUSTED,
                f"this tenant has {self._places.held(tenant)} requests waiting; a tenant may have no more than the "
                f"queue has free places, now {self._limits.max_requests - self._places.total} of "
                f"{self._limits.max_requests}; retry later",
                retry_after_ms(queue.wait(tenant, 0)),
                reason=Reason.QUOTA,
            )
        seconds = queue.wait(tenant, 1)
        if seconds is None:
            return
        averages = queue.averages(tenant)
        computing = averages.seconds / averages.requests
        if max_tokens is not None:
            computing *= min(1.0, max_tokens * averages.requests / averages.tokens)
        if timeout is not None and _MARGIN * (seconds + computing) > timeout:
            message = (
                f"too little time: {timeout:.1f} s until the deadline, for an estimated {seconds:.1f} s of waiting and "
                f"{computing:.1f} s of computing plus a margin of {_MARGIN - 1:.0%}; allow more time or retry later"
            )
        elif seconds > self._limits.max_seconds and tenant in queue.waiting:
            limit = f"the limit of {self._limits.max_seconds:g} s"
            message = f"the estimated wait of {seconds:.1f} s for an engine exceeds {limit}; retry later"
        else:
            return
        raise Refused(Code.RESOURCE_EXHAUSTED, message, retry_after_ms(queue.wait(tenant, 0)))

    def enter(self, request_id: str, model: str, tenant: str) -> None:
        self._queue(model).waiting[tenant] += 1
        self._waiting[request_id] = _Waiting(model, tenant)
        self._places.take(tenant, 1)

    def admit(self, request_id: str, now: float) -> None:
        """A waiting request is tokenized. Idempotent."""
        if (found := self._waiting.get(request_id)) is not None and not found.is_admitted:
            found.is_admitted = True
            queue = self._queue(found.model)
            if not queue.admitted:
                queue.throughput.begin(now)
            queue.admitted += 1

    def leave(self, request_id: str) -> None:
        """An engine has begun a request, or it has ended. Idempotent."""
        if (found := self._waiting.pop(request_id, None)) is not None:
            queue = self._queue(found.model)
            queue.admitted -= found.is_admitted
            queue.waiting[found.tenant] -= 1
            if not queue.waiting[found.tenant]:
                del queue.waiting[found.tenant]
            self._places.give_back(found.tenant, 1)

    def computed(self, model: str, tokens: int) -> None:
        """Count tokens of prompts and outputs that a model's engines computed."""
        self._queue(model).fresh_tokens += tokens

    def ended(self, model: str, tenant: str, tokens: int, seconds: float) -> None:
        """A request has ended, with ``tokens`` of prompt and output, ``seconds`` after an engine had begun it."""
        self._queue(model).ended(tenant, tokens, seconds)

    def tick(self, now: float) -> None:
        """Measure the throughput. Call a few times a second."""
        for queue in self._queues.values():
            if queue.fresh_tokens:
                queue.throughput.add(queue.fresh_tokens, now)
                queue.fresh_tokens = 0

    def stay(self, tenant: str) -> float | None:
        """Estimated seconds until a tenant's requests have all ended; None while there is no estimate."""
        stays = [stay for queue in self._queues.values() if (stay := queue.stay(tenant)) is not None]
        return max(stays, default=None)

    def _queue(self, model: str) -> _ModelQueue:
        """The queue of a model; those of models that nobody has asked for lately are forgotten."""
        if (queue := self._queues.get(model)) is None:
            queue = self._queues[model] = _ModelQueue()
            idle = [name for name, each in self._queues.items() if not each.waiting and name != model]
            for name in idle[: max(0, len(idle) - _MODELS_REMEMBERED)]:
                del self._queues[name]
        self._queues.move_to_end(model)
        return queue
