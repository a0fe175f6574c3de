"""Times of many requests, taken with little work per delivery: the client shares its cores with what it measures."""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(slots=True)
class _Flight:
    """A request under way; times in seconds of one clock."""

    begun: float
    first: float = 0.0
    last: float = 0.0
    tokens: int = 0
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Spread:
    """How a time is distributed, milliseconds."""

    mean: float
    p50: float
    p99: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Spread | None:
        """None of nothing. Percentiles are by nearest rank."""
        if not seconds:
            return None
        ordered = sorted(seconds)
        rank = {share: ordered[math.ceil(share * len(ordered)) - 1] for share in (0.5, 0.99)}
        return cls(*(1000 * value for value in (math.fsum(ordered) / len(ordered), rank[0.5], rank[0.99])))


@dataclass(frozen=True, slots=True)
class Report:
    """What was measured."""

    completed: int
    failures: dict[str, int]
    """How often each problem was met."""
    seconds: float
    """From the first request's begin to the last one's end."""
    output_tokens: int
    ttft: Spread | None
    """Begin of a request to its first token."""
    gap: Spread | None
    """Between deliveries of a request; a delivery of several tokens counts once."""
    tpot: Spread | None
    """Per output token after the first, averaged over each request."""
    latency: Spread | None
    """Begin of a request to its end."""

    @property
    def failed(self) -> int:
        """Requests that did not end as they should."""
        return sum(self.failures.values())


class Measurement:
    """Takes the times of requests, which are named by number."""

    def __init__(self, output_len: int) -> None:
        """A request that ends well has exactly ``output_len`` tokens, without a gap of positions."""
        self._output_len = output_len
        self._flights: dict[int, _Flight] = {}
        self._failures: Counter[str] = Counter()
        self._ttft, self._gap, self._tpot, self._latency = (array("d") for _ in range(4))
        self._start: float | None = None
        self._end = 0.0
        self.completed = 0
        self.output_tokens = 0

    @property
    def ended(self) -> int:
        """Requests that ended, well or not."""
        return self.completed + self._failures.total()

    def begin(self, number: int, now: float) -> None:
        """A request is sent."""
        if self._start is None:
            self._start = now
        self._flights[number] = _Flight(now)

    def deliver(self, number: int, position: int, count: int, now: float) -> None:
        """``count`` tokens came, the first of them at output position ``position``."""
        flight = self._flights.get(number)
        if flight is None or count == 0:
            return
        if position != flight.tokens:
            flight.problem = "positions with a gap or a repeat"
        if flight.tokens == 0:
            flight.first = now
        else:
            self._gap.append(now - flight.last)
        flight.last = now
        flight.tokens += count
        self.output_tokens += count

    def end(self, number: int, now: float, problem: str | None) -> bool:
        """A request ended; whether it was under way."""
        flight = self._flights.pop(number, None)
        if flight is None:
            return False
        self._end = now
        problem = problem or flight.problem
        if problem is None and flight.tokens != self._output_len:
            problem = f"{flight.tokens} tokens instead of {self._output_len}"
        if problem is not None:
            self._failures[problem] += 1
            return True
        self.completed += 1
        self._ttft.append(flight.first - flight.begun)
        self._latency.append(now - flight.begun)
        if flight.tokens > 1:
            self._tpot.append((flight.last - flight.first) / (flight.tokens - 1))
        return True

    def report(self) -> Report:
        """Of all that has ended."""
        return Report(
            completed=self.completed,
            failures=dict(self._failures),
            seconds=self._end - self._start if self._start is not None else 0.0,
            output_tokens=self.output_tokens,
            ttft=Spread.of(self._ttft),
            gap=Spread.of(self._gap),
            tpot=Spread.of(self._tpot),
            latency=Spread.of(self._latency),
        )
