"""The parts of a run on a GPU, the most valuable first, and what each costs.

Imports only the standard library: where a package is missing, the parts that do without it still run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

_TERABYTES_PER_SECOND = 2.1
"""What steps are assumed to read on an H100: 70 % of the rate of a copy there, 3.0 TB/s."""
_PETAFLOPS_PER_SECOND = 0.4
"""What products are assumed to reach: half of the rate of a large bfloat16 product there, 0.8 PFLOP/s."""
_LEAST_BOUND = 60.0


@dataclass(frozen=True, slots=True)
class Cost:
    """What a part is expected to take on an H100."""

    fixed: float
    """Seconds of interpreters, compilers, weights and graphs that are captured."""
    terabytes: float = 0.0
    """Read from the GPU's memory, and written to it, by the work that is measured."""
    petaflops: float = 0.0
    """Operations of that work, in units of 10¹⁵."""

    @property
    def seconds(self) -> float:
        """All of it: bytes and operations take turns, as steps of decoding and of prompts do."""
        return self.fixed + self.terabytes / _TERABYTES_PER_SECOND + self.petaflops / _PETAFLOPS_PER_SECOND


@dataclass(frozen=True, slots=True)
class Part:
    """One part, which runs in a process of its own."""

    proves: str
    """What is known after it, for people."""
    runs: str
    """``module:function``: yields rows; or the file of tests below ``tests/gpu``."""
    cost: Cost
    slowest: float = 0.0
    """Seconds that it takes at worst, where that is more than three times what is expected."""

    @property
    def bound(self) -> float:
        """The longest that it may take, in seconds: then it hangs."""
        return max(_LEAST_BOUND, 3 * self.cost.seconds, self.slowest)


PARTS: Mapping[str, Part] = {
    "preflight": Part(
        "versions, memory, every import, a compiler that works, the rates of copies and products",
        "benchmarks.gpu.preflight:look",
        Cost(25),
        slowest=180,  # where the native kernels have to be compiled on few cores
    ),
    "first-tokens": Part(
        "the bundled model's greedy tokens in float32 equal the CPU engine's", "test_first_tokens.py", Cost(25)
    ),
    "kernels": Part("every kernel equals its torch form, at three shapes", "test_kernels.py", Cost(50)),
    "graphs": Part("captured steps equal eager ones, bit for bit", "test_graphs.py", Cost(25)),
    "families": Part("Llama, Qwen3, Qwen3-MoE and gpt-oss equal transformers", "test_families.py", Cost(45)),
    "speed": Part(
        "8B in bfloat16: decoding 1, 64 and 256 sequences, and prompts of 2k and 8k, beside the GPU's own rates",
        "benchmarks.gpu.speed:measure",
        Cost(30, terabytes=3.7, petaflops=5.8),
    ),
    "served": Part(
        "8B: 256 streams through the ring, beside the same work offline",
        "benchmarks.gpu.served:measure",
        Cost(40, terabytes=17, petaflops=3.1),
    ),
    "sampling": Part(
        "what sampled and penalized tokens cost, 256 sequences with 152k tokens to choose from",
        "benchmarks.gpu.sampling:measure",
        Cost(22, terabytes=0.7, petaflops=0.1),
    ),
    "quantized": Part(
        "linear layers whose weights stay quantized (W4A16, FP8) beside bfloat16",
        "benchmarks.gpu.layers:quantized",
        Cost(20, terabytes=0.1, petaflops=0.1),
    ),
    "deterministic": Part(
        "8B with --deterministic: the price of results that do not depend on the batch",
        "benchmarks.gpu.speed:deterministic",
        Cost(30, terabytes=1.6, petaflops=1.2),
    ),
    "memory": Part(
        "memory at full load stays in its budget, and nothing is allocated after the start",
        "benchmarks.gpu.memory:measure",
        Cost(20, terabytes=0.5, petaflops=0.2),
    ),
    "moves": Part(
        "streams survive the kill of a GPU engine on a CPU engine, and of that on a GPU engine, token for token",
        "benchmarks.gpu.moves:measure",
        Cost(40),
    ),
    "traces": Part(
        "where the time of a prompt's step and of decoding steps goes, kernel by kernel",
        "benchmarks.gpu.traces:measure",
        Cost(25, terabytes=0.3, petaflops=0.1),
    ),
    "peers": Part(
        "own attention beside FlashInfer and torch, own products beside cuBLAS",
        "benchmarks.gpu.layers:peers",
        Cost(20, terabytes=0.2, petaflops=0.2),
    ),
    "launches": Part(
        "Qwen3-0.6B, one sequence: a step beside the eager one and beside its kernels' own time",
        "benchmarks.gpu.speed:launches",
        Cost(35, terabytes=1),
    ),
    "generate": Part(
        "Qwen3-0.6B beside transformers' compiled generate: 1, 16 and 64 sequences",
        "benchmarks.gpu.speed:generate",
        Cost(240),
    ),
}
"""In order. The last two need not fit into eight minutes."""


def table() -> list[dict[str, object]]:
    """The parts with their seconds, row by row."""
    rows: list[dict[str, object]] = []
    taken = 0.0
    for name, part in PARTS.items():
        taken += part.cost.seconds
        cost = part.cost
        rows.append(
            {
                "part": name,
                "proves": part.proves,
                "fixed s": cost.fixed,
                "TB": cost.terabytes,
                "PFLOP": cost.petaflops,
                "s": round(cost.seconds),
                "so far, min": round(taken / 60, 1),
            }
        )
    return rows
