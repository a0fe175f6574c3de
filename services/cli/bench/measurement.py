"""Measures the times of many requests, with little work per delivery: the client shares its cores with the server."""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(slots=True)
class _InFlight:
    """Times of one request, in seconds of the caller's clock."""

    sent_at: float
    first_token_at: float = 0.0
    last_token_at: float = 0.0
    tokens: int = 0
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class LatencySummary:
    """Mean and percentiles in milliseconds."""

    mean: float
    p50: float
    p99: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> LatencySummary | None:
        """The values' summary, None without values. Percentiles are by nearest rank."""
        if not seconds:
            return None
        ordered = sorted(seconds)
        rank = {share: ordered[math.ceil(share * len(ordered)) - 1] for share in (0.5, 0.99)}
        return cls(*(1000 * value for value in (math.fsum(ordered) / len(ordered), rank[0.5], rank[0.99])))


@dataclass(frozen=True, slots=True)
class Report:
    """The result of a measurement. Latencies cover completed requests only, except ``itl``, which covers all."""

    completed: int
    failures: dict[str, int]
    """Number of failed requests, keyed by problem."""
    seconds: float
    """Seconds from sending the first request to the end of the last."""
    output_tokens: int
    ttft: LatencySummary | None
    """Time to first token."""
    itl: LatencySummary | None
    """Inter-token latency: between deliveries of a request. A delivery of several tokens counts once."""
    tpot: LatencySummary | None
    """Time per output token after the first, averaged over each request."""
    latency: LatencySummary | None
    """From sending a request to its end."""

    @property
    def failed(self) -> int:
        return sum(self.failures.values())


class Measurement:
    """Records the times of requests, which are identified by number."""

    def __init__(self, output_len: int) -> None:
        """A successful request has exactly ``output_len`` tokens, without gaps in positions."""
        self._output_len = output_len
        self._in_flight: dict[int, _InFlight] = {}
        self._failures: Counter[str] = Counter()
        self._ttft, self._itl, self._tpot, self._latency = (array("d") for _ in range(4))
        self._start: float | None = None
        self._end = 0.0
        self.completed = 0
        self.output_tokens = 0

    @property
    def ended(self) -> int:
        """Requests that completed or failed."""
        return self.completed + self._failures.total()

    def record_sent(self, number: int, now: float) -> None:
        if self._start is None:
            self._start = now
        self._in_flight[number] = _InFlight(now)

    def record_tokens(self, number: int, position: int, count: int, now: float) -> None:
        """``count`` tokens arrived, the first of them at output position ``position``."""
        request = self._in_flight.get(number)
        if request is None or count == 0:
            return
        if position != request.tokens:
            request.problem = "positions with a gap or a repeat"
        if request.tokens == 0:
            request.first_token_at = now
        else:
            self._itl.append(now - request.last_token_at)
        request.last_token_at = now
        request.tokens += count
        self.output_tokens += count

    def record_end(self, number: int, now: float, problem: str | None) -> bool:
        """A request ended; ``problem``: why it failed, if it did. Returns whether the request was in flight."""
        request = self._in_flight.pop(number, None)
        if request is None:
            return False
        self._end = now
        problem = problem or request.problem
        if problem is None and request.tokens != self._output_len:
            problem = f"{request.tokens} tokens instead of {self._output_len}"
        if problem is not None:
            self._failures[problem] += 1
            return True
        self.completed += 1
        self._ttft.append(request.first_token_at - request.sent_at)
        self._latency.append(now - request.sent_at)
        if request.tokens > 1:
            self._tpot.append((request.last_token_at - request.first_token_at) / (request.tokens - 1))
        return True

    def report(self) -> Report:
        """Counts only requests that have ended, except in ``output_tokens`` and ``itl``."""
        return Report(
            completed=self.completed,
            failures=dict(self._failures),
            seconds=self._end - self._start if self._start is not None else 0.0,
            output_tokens=self.output_tokens,
            ttft=LatencySummary.of(self._ttft),
            itl=LatencySummary.of(self._itl),
            tpot=LatencySummary.of(self._tpot),
            latency=LatencySummary.of(self._latency),
        )
