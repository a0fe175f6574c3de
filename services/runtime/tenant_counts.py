"""What each tenant had, as series of a bounded number: a label with a value for everybody who ever asks would grow
without end, in this process and in Prometheus.

The first tenants are counted by name, all others together. One that has not been heard of for an hour makes room;
should it come back, its series begin at zero, which Prometheus takes for the restart that it is.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from prometheus_client.metrics_core import CounterMetricFamily, Metric

MAX_TENANTS = 50
"""Counted by name."""
IDLE = 3600.0
"""Seconds after which a tenant makes room for another."""
OTHERS, NOBODY = "(others)", "(none)"
"""Labels of those that are counted together, and of requests that name no tenant."""


@dataclass(slots=True)
class _Counts:
    heard_at: float = 0.0
    requests: int = 0
    refused: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0


_SERIES = {
    "requests": ("ringline_tenant_requests", "Admitted requests that have ended, by tenant."),
    "refused": ("ringline_tenant_refused", "Requests refused before they had choices, by tenant."),
    "prompt_tokens": ("ringline_tenant_prompt_tokens", "Prompt tokens of ended requests, by tenant."),
    "generation_tokens": ("ringline_tenant_generation_tokens", "Output tokens of ended requests, by tenant."),
}


class TenantCounts:
    """Written on the event loop; read from another thread."""

    def __init__(self, most: int = MAX_TENANTS, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._clock = clock
        self._named: OrderedDict[str, _Counts] = OrderedDict()
        """The one that was not heard of for longest comes first."""
        self._others = _Counts()

    def ended(self, tenant: str, prompt_tokens: int, generation_tokens: int) -> None:
        """An admitted request has ended."""
        counts = self._of(tenant)
        counts.requests += 1
        counts.prompt_tokens += prompt_tokens
        counts.generation_tokens += generation_tokens

    def refused(self, tenant: str) -> None:
        """A request was refused before it had choices."""
        self._of(tenant).refused += 1

    def _of(self, tenant: str) -> _Counts:
        now = self._clock()
        counts = self._named.get(tenant)
        if counts is None:
            if len(self._named) >= self._most:
                first = next(iter(self._named))
                if now - self._named[first].heard_at < IDLE:
                    return self._others
                del self._named[first]
            counts = self._named[tenant] = _Counts()
        counts.heard_at = now
        self._named.move_to_end(tenant)
        return counts

    def families(self, model_name: str) -> Iterator[Metric]:
        """What was counted, for a collector."""
        named = [(tenant or NOBODY, counts) for tenant, counts in self._named.copy().items()]
        for field, (name, documentation) in _SERIES.items():
            family = CounterMetricFamily(name, documentation, labels=["model_name", "tenant"])
            for tenant, counts in (*named, (OTHERS, self._others)):
                family.add_metric([model_name, tenant], getattr(counts, field))
            yield family
