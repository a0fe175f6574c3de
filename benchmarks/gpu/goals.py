"""The engine's targets on an NVIDIA GPU, and the table of results with a column for each card."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.report import Row


@dataclass(frozen=True, slots=True)
class Goal:
    """A figure that a part measures, and its target."""

    what: str
    of: str
    """The reference of which the figure is a share or a multiple."""
    bound: float | None = None
    """The target; None: no target."""
    at_most: bool = False
    """Whether the bound is an upper one; otherwise it is a lower one."""

    def reached(self, measured: float, **extra: Any) -> Row:
        """The row of the figure ``measured``."""
        row = {"what": self.what, "measured": measured, "target": self.bound, "of": self.of}
        return row | ({"at most": True} if self.at_most else {}) | extra

    @property
    def must_be(self) -> str:
        """The target, for people."""
        return "–" if self.bound is None else f"{'≤' if self.at_most else '≥'} {self.bound:g}"


NOT_MEASURED = "not measured"
_READ = "(weights + KV read) ÷ copy bandwidth"
_PRODUCTS = "measured rate of products"
_TESTS = "tests"
_GENERATE = "Qwen3-0.6B beside transformers generate (static cache, compiled), batch"
_SAMPLED = "Qwen3-0.6B, 256 sequences"
_SMALL = "Qwen3-0.6B, batch 1"


_SPEED = {
    "decode-1": Goal("decode, batch 1, 8B bf16", _READ, 0.80),
    "decode-64": Goal("decode, batch 64, context 1024, 8B", _READ, 0.70),
    "decode-256": Goal("decode, batch 256, context 1024, 8B", _READ, 0.65),
    "prefill-2048": Goal("a prompt of 2048, 8B", _PRODUCTS, 0.55),
    "prefill-8192": Goal("a prompt of 8192, 8B", _PRODUCTS, 0.60),
}
_PRICED = ("decode-1", "decode-64", "prefill-2048")
"""What is measured with ``--deterministic``, too."""
GOALS: Mapping[str, Goal] = {
    "first-tokens": Goal("the bundled model's tokens equal the CPU engine's", _TESTS, 1.0),
    "kernels": Goal("kernels equal their torch forms", _TESTS, 1.0),
    "graphs": Goal("captured steps equal eager ones, bit for bit", _TESTS, 1.0),
    "families": Goal("Llama, Qwen3, Qwen3-MoE, gpt-oss equal transformers", _TESTS, 1.0),
    **_SPEED,
    "served": Goal("served through the ring, 256 streams, 8B", "offline tokens/s", 0.95),
    "sampled": Goal(f"{_SAMPLED}: temperature, top-k, top-p, min-p", "greedy step", 1.25, at_most=True),
    "penalized": Goal(f"{_SAMPLED}: penalties", "greedy step", 1.5, at_most=True),
    "w4a16": Goal("W4A16 layers, 1 row, least", "bfloat16 by cuBLAS", 2.5),
    "fp8": Goal("FP8 layers, 1 row, least", "bfloat16 by cuBLAS", 1.6),
    **{f"deterministic-{name}": Goal(f"deterministic: {_SPEED[name].what}", _SPEED[name].of) for name in _PRICED},
    "memory": Goal("memory at full load, of the budget", "gpu_memory_utilization 0.9", 1.0, at_most=True),
    "allocated": Goal("memory allocated after the start", "MiB", 0.0, at_most=True),
    "moves": Goal("streams that went on token for token, GPU to CPU and back", "streams", 1.0),
    "attention-decode": Goal("own attention, decode 64 × 2048", "the fastest library's rate", 0.9),
    "attention-prompt": Goal("own attention, a prompt of 4096", "the fastest library's rate", 0.8),
    "products": Goal("own products beside cuBLAS, least", "cuBLAS's rate", 0.9),
    "eager": Goal(f"{_SMALL}: graphs beside eager", "eager step", 3.0),
    "busy": Goal(f"{_SMALL}: step beside its kernels' own time", "kernels' time", 1.25, at_most=True),
    "generate-1": Goal(f"{_GENERATE} 1", "its tokens/s", 1.5),
    "generate-16": Goal(f"{_GENERATE} 16", "its tokens/s", 2.0),
    "generate-64": Goal(f"{_GENERATE} 64", "its tokens/s", 3.0),
}
"""In the order of the parts."""


def verdict(row: Row) -> bool | None:
    """Whether a figure reaches its target; None if it has no target or was not measured."""
    target, measured = row.get("target"), row.get("measured")
    if target is None or measured is None:
        return None
    return bool(measured <= target) if row.get("at most") else bool(measured >= target)


def gpu_table(measured: Mapping[str, Sequence[Row]]) -> list[Row]:
    """A row for each goal; a column for each card, from the rows ``measured`` there."""
    rows: list[Row] = []
    for goal in GOALS.values():
        cells = {card: _cell(goal, found) for card, found in measured.items()}
        rows.append({"what": goal.what, "of": goal.of, "must be": goal.must_be} | (cells or {"is": NOT_MEASURED}))
    return rows


def _cell(goal: Goal, rows: Sequence[Row]) -> str:
    row = next((row for row in rows if row["what"] == goal.what and row.get("measured") is not None), None)
    if row is None:
        return NOT_MEASURED
    told = {True: "", False: ", short", None: ""}[verdict(row)]
    return f"{row['measured']:.3g}{told}"
