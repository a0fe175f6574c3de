"""How much a ring can carry, by arithmetic: how many engines a load needs, what their memory holds, how fast they are;
what ``ringline plan`` prints.

An engine in a steady state computes, in each step, one token of each of B sequences and, on average, B × input ÷ output
tokens of new prompts: as many sequences begin as end. Its step takes what the roofline allows
(``engine_core.models.cost``), divided by the share of it that is reached. From B follow the tokens per second, and from
the load the B.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

CPU_TIER_SECONDS = 40e-6
"""Of a processor's, and of a detokenizer's, core per token. Measured with 64 streams of a tiny model on two cores, as
the difference between the ring and its engine alone (benchmarks/RESULTS.md, "Served")."""
CPU_TIER_SHARE = 0.6
"""Of a core that a CPU tier may be busy: each process has one for its Python code."""
MIN_CPU_TIERS = 2
"""Of each, so that one can be lost or replaced."""

Seconds = Callable[[float, float, float, float], float]
"""Of a step, by what ``engine_core.models.cost.StepCost.step`` takes: rows, sampled, seen, cached."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Of one engine, in bytes."""

    usable: float
    """What it may take in all."""
    weights: float
    activations: float
    """What the largest step takes."""
    runtime: float
    """Interpreter, libraries, captured graphs."""
    per_token: float
    """Keys and values of one token."""

    @property
    def cache(self) -> float:
        """What is left for the KV cache."""
        return max(0.0, self.usable - self.weights - self.activations - self.runtime)

    @property
    def tokens(self) -> int:
        """That the cache holds."""
        return int(self.cache // self.per_token)


@dataclass(frozen=True, slots=True)
class Demand:
    """What is asked of the ring."""

    rate: float
    """Requests per second."""
    input_len: int
    """Prompt tokens that no cache has."""
    output_len: int
    max_gap: float | None
    """Seconds between two tokens of a stream that may not be exceeded on average."""


@dataclass(frozen=True, slots=True)
class EnginePlan:
    """One engine under its share of the load."""

    sequences: int
    """Computed at a time."""
    gap: float
    """Seconds between two tokens of a stream."""
    tokens: float
    """Output tokens per second."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a load needs."""

    engines: int
    processors: int
    detokenizers: int
    capacity: EnginePlan
    """The most that one engine can do."""
    expected: EnginePlan
    """What one does under its share of the load."""
    bound: str
    """What keeps an engine from more sequences: memory, max_num_seqs or max_gap."""


class Impossible(Exception):
    """The load cannot be carried by any number of such engines; the text says why."""


def plan_ring(seconds: Seconds, memory: Memory, demand: Demand, *, max_num_seqs: int, headroom: float) -> Plan:
    """How many of what the demand needs, when an engine uses at most ``headroom`` of its capacity.

    Raises ``Impossible``.
    """
    whole = demand.input_len + demand.output_len
    fitting = memory.tokens // whole
    if fitting < 1:
        raise Impossible(f"the KV cache holds {memory.tokens} tokens, one request has {whole}")
    most, bound = min((fitting, "memory"), (max_num_seqs, "max_num_seqs"))
    limit = math.inf if demand.max_gap is None else demand.max_gap
    if step(seconds, demand, most) > limit:
        most, bound = _largest(lambda count: step(seconds, demand, count) <= limit, most), "max_gap"
        if most < 1:
            raise Impossible(f"one sequence alone takes {step(seconds, demand, 1) * 1e3:.3g} ms from token to token")
    capacity = _engine(seconds, demand, most)
    tokens = demand.rate * demand.output_len
    engines = max(1, math.ceil(tokens / (capacity.tokens * headroom)))
    enough = _largest(lambda count: _engine(seconds, demand, count).tokens < tokens / engines, most) + 1
    tiers = max(MIN_CPU_TIERS, math.ceil(tokens * CPU_TIER_SECONDS / CPU_TIER_SHARE))
    return Plan(engines, tiers, tiers, capacity, _engine(seconds, demand, min(enough, most)), bound)


def step(seconds: Seconds, demand: Demand, sequences: int) -> float:
    """Of an engine in a steady state with so many sequences, in seconds."""
    prompts = sequences * demand.input_len / demand.output_len
    seen = sequences * (demand.input_len + demand.output_len / 2)
    return seconds(sequences + prompts, sequences, seen + prompts * demand.input_len / 2, seen)


def _engine(seconds: Seconds, demand: Demand, sequences: int) -> EnginePlan:
    gap = step(seconds, demand, sequences)
    return EnginePlan(sequences, gap, sequences / gap)


def _largest(holds: Callable[[int], bool], most: int) -> int:
    """The largest of 1 … ``most`` for which it holds, as it does for every smaller one; 0 if for none."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if holds(middle) else (low, middle - 1)
    return low
