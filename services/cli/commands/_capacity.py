"""The arithmetic of ``ringline plan``: how many processes a load needs, from step times and memory."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal

from engine_core.config import CacheConfig, SchedulerConfig
from engine_core.kv_cache_interface import SPARE_SLOTS, spare_slots

CPU_TIER_SECONDS = 40e-6
"""CPU seconds per token in a processor, and as many in a detokenizer. Measured with 64 streams of a tiny model on two
cores, as the difference between the ring and its engine alone (benchmarks/RESULTS.md, "Served")."""
CPU_TIER_SHARE = 0.6
"""Share of a core that a CPU tier may be busy: each process has one core for its Python code."""
MIN_CPU_TIERS = 2
"""Minimum processors and detokenizers, so that one can be lost or replaced."""

Seconds = Callable[[float, float, float, float], float]
"""A step's, from the arguments of ``engine_core.models.roofline.StepCost.step``: rows, sampled, seen, cached."""
_UNITS = (("GB", 1e9), ("MB", 1e6), ("kB", 1e3))


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory of an engine or one of its ranks: bytes, and numbers of KV blocks."""

    usable: float
    """The whole budget."""
    weights: float
    angles: float
    """RoPE tables of all positions."""
    activations: float
    """Of the largest step."""
    runtime: float
    """Interpreter, libraries, captured graphs, and memory reserved for requests."""
    block: int
    """One KV block: keys and values of ``block_size`` tokens in one group of layers; 0: no layer attends."""
    sequence_blocks: int
    """Blocks of a sequence once its prompt is computed."""
    prompt_blocks: int
    """Blocks until then, if more: sliding windows leave a prompt's blocks only as it is computed."""
    block_size: int = CacheConfig().block_size
    """Tokens of a block."""
    step_tokens: int = SchedulerConfig().max_num_batched_tokens
    """Tokens of the largest step."""
    state: int = 0
    """One sequence's states; 0: no layer keeps any."""
    states: int = 0
    """Slots for states, of sequences and snapshots."""
    tower: float = 0.0
    """The part of ``weights`` that encodes pictures."""
    pictures: float = 0.0
    """Embeddings of pictures that are kept."""
    drafts: float = 0.0
    """What computes drafts; ``block`` includes its cache."""
    adapters: float = 0.0
    """The most that stay loaded."""

    @property
    def cache(self) -> float:
        """Left for the KV cache."""
        return max(0.0, self.usable - self.taken)

    @property
    def taken(self) -> float:
        """Everything but the KV cache."""
        return (
            self.weights + self.angles + self.activations + self.runtime + self.pictures + self.drafts + self.adapters
        )

    @property
    def blocks(self) -> int:
        """Blocks that fit into the KV cache beside the states; 0 if no layer attends."""
        return int((self.cache - self.states * self.state) // self.block) if self.block else 0

    def holds(self, blocks: int) -> bool:
        """Whether so many blocks fit."""
        return not self.block or blocks <= self.blocks

    @property
    def sequences(self) -> float:
        """The most that have slots for their states at a time."""
        return max(0, self.states - spare_slots(self.states)) if self.state else math.inf


@dataclass(frozen=True, slots=True)
class Demand:
    """The load on the ring."""

    rate: float
    """Requests per second."""
    input_len: int
    """Prompt tokens that are not cached."""
    output_len: int
    max_gap: float | None
    """Largest average time between two tokens of a stream, in seconds; None: no limit."""


@dataclass(frozen=True, slots=True)
class EnginePlan:
    """One engine under its share of the load."""

    sequences: int
    """Running at a time."""
    gap: float
    """Seconds between two tokens of a stream."""
    tokens: float
    """Output tokens per second."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How many processes a load needs."""

    engines: int
    processors: int
    detokenizers: int
    capacity: EnginePlan
    """One engine's maximum."""
    expected: EnginePlan
    """One engine under its share of the load."""
    bound: str
    """What limits the sequences of an engine: memory, max_num_seqs or max_gap."""


class Impossible(Exception):
    """No number of these engines can carry the load; the text says why."""


def plan_ring(
    seconds: Seconds,
    memory: Memory,
    demand: Demand,
    *,
    max_num_seqs: int,
    headroom: float,
    rank: str | None = None,
) -> Plan:
    """The processes that ``demand`` needs, if engines use at most ``headroom`` of their capacity.

    ``rank``: name of the rank with ``memory``; None if the engine has only one. Raises ``Impossible``.
    """
    fitting = int(min(memory.sequences, max_num_seqs))
    most = _largest(lambda count: memory.holds(blocks_of(memory, demand, count)), fitting)
    if most < 1:
        raise Impossible(_shortage(memory, rank))
    bound = "max_num_seqs" if most == max_num_seqs else "memory"
    limit = math.inf if demand.max_gap is None else demand.max_gap
    if step(seconds, demand, most) > limit:
        most, bound = _largest(lambda count: step(seconds, demand, count) <= limit, most), "max_gap"
        if most < 1:
            gap = figure(step(seconds, demand, 1) * 1e3)
            raise Impossible(f"one sequence alone takes {gap} ms from token to token: raise --max-gap-ms")
    capacity = _engine(seconds, demand, most)
    tokens = demand.rate * demand.output_len
    engines = max(1, math.ceil(tokens / (capacity.tokens * headroom)))
    enough = _largest(lambda count: _engine(seconds, demand, count).tokens < tokens / engines, most) + 1
    tiers = max(MIN_CPU_TIERS, math.ceil(tokens * CPU_TIER_SECONDS / CPU_TIER_SHARE))
    return Plan(engines, tiers, tiers, capacity, _engine(seconds, demand, min(enough, most)), bound)


def blocks_of(memory: Memory, demand: Demand, sequences: int) -> int:
    """KV blocks of ``sequences`` running sequences in a steady state, where some compute their prompts."""
    steps = math.ceil(demand.input_len / memory.step_tokens)
    prompts = min(sequences, math.ceil(sequences * steps / demand.output_len))
    return prompts * memory.prompt_blocks + (sequences - prompts) * memory.sequence_blocks


def _shortage(memory: Memory, rank: str | None) -> str:
    """Why not even one sequence fits, and what to change."""
    where, holder, ranks = ("", "an engine", "ranks") if rank is None else (f"on rank {rank}, ", "it", "more ranks")
    divide = f"divide the model among {ranks} (--tensor-parallel-size, --pipeline-parallel-size)"
    if memory.state and memory.sequences < 1 and memory.cache > 0:
        fewest = f"{SPARE_SLOTS + 1} states of {size(memory.state)}"
        beside = f" beside the {size(memory.prompt_blocks * memory.block)} of its KV cache" if memory.block else ""
        return (
            f"{where}a request needs room for {fewest}{beside}, and {size(memory.cache)} are left: {divide}, or raise "
            "--memory-gb or --memory-share"
        )
    if not memory.holds(1) or memory.cache <= 0:
        pictures = f", embeddings of pictures ({size(memory.pictures)})" if memory.pictures else ""
        return (
            f"{where}weights ({size(memory.weights)}), angles ({size(memory.angles)}), largest step "
            f"({size(memory.activations)}){pictures} and runtime ({size(memory.runtime)}) take "
            f"{size(memory.taken)}, and {holder} gets {size(memory.usable)}: {divide}, or raise --memory-gb or "
            "--memory-share"
        )
    return (
        f"{where}one request takes {size(memory.prompt_blocks * memory.block)} of KV cache, and {size(memory.cache)} "
        f"are left for it: {divide}, raise --memory-gb or --memory-share, or lower --input-len or --output-len"
    )


def step(seconds: Seconds, demand: Demand, sequences: int) -> float:
    """Seconds per step in a steady state of ``sequences`` running sequences."""
    prompts = sequences * demand.input_len / demand.output_len
    seen = sequences * (demand.input_len + demand.output_len / 2)
    return seconds(sequences + prompts, sequences, seen + prompts * demand.input_len / 2, seen)


def _engine(seconds: Seconds, demand: Demand, sequences: int) -> EnginePlan:
    gap = step(seconds, demand, sequences)
    return EnginePlan(sequences, gap, sequences / gap)


def _largest(holds: Callable[[int], bool], most: int) -> int:
    """Binary search for the largest of 1 … ``most`` for which ``holds``; 0 if there is none."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if holds(middle) else (low, middle - 1)
    return low


def figure(value: float, digits: int = 3) -> str:
    """``value`` with ``digits`` significant digits, without an exponent: 37,400 or 0.00285."""
    return f"{Decimal(f'{value:.{digits}g}'):,f}"


def size(count: float) -> str:
    """Bytes in powers of 1000, as in ``--memory-gb`` and data sheets: 5.41 MB."""
    unit, scale = next((pair for pair in _UNITS if count >= pair[1]), ("bytes", 1))
    return f"{figure(count / scale)} {unit}"
