"""The engine's targets on an NVIDIA GPU, part by part, and the table of results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.report import Row


@dataclass(frozen=True, slots=True)
class Goal:
    """The figure that a part of ``gpu_parts`` measures, and its target."""

    what: str
    of: str
    """The reference of which the figure is a share or a multiple."""
    bound: float | None = None
    """The target; None: no target."""
    at_most: bool = False
    """Whether the bound is an upper one; otherwise it is a lower one."""

    def reached(self, measured: float, **extra: Any) -> Row:
        """The part's row, with the figure ``measured``."""
        row = {"what": self.what, "measured": measured, "target": self.bound, "of": self.of}
        return row | ({"at most": True} if self.at_most else {}) | extra


_READ = "(weights + KV read) ÷ copy bandwidth"
_PRODUCTS = "measured rate of products"
_DECODE_1 = "decode, batch 1, 8B bf16"
_DECODE_256 = "decode, batch 256, context 1024, 8B"
_PREFILL = "prefill 8 × 1024, 8B"
_GENERATE = "Qwen3-0.6B beside transformers generate (static cache, compiled), batch"
GOALS: Mapping[str, Goal] = {
    "decode-1": Goal(_DECODE_1, _READ, 0.80),
    "decode-256": Goal(_DECODE_256, _READ, 0.65),
    "prefill": Goal(_PREFILL, _PRODUCTS, 0.60),
    "graphs": Goal("Qwen3-0.6B, batch 1: graphs beside eager", "eager step", 3.0),
    "kernels": Goal("Qwen3-0.6B, batch 1: step beside its kernels' own time", "kernels' time", 1.25, at_most=True),
    "memory": Goal("memory at full load, of the budget", "gpu_memory_utilization 0.9", 1.0, at_most=True),
    "products": Goal("own products beside cuBLAS, least", "cuBLAS's rate", 0.9),
    "deterministic-decode-1": Goal(f"deterministic: {_DECODE_1}", _READ),
    "deterministic-decode-256": Goal(f"deterministic: {_DECODE_256}", _READ),
    "deterministic-prefill": Goal(f"deterministic: {_PREFILL}", _PRODUCTS),
    "transformers-1": Goal(f"{_GENERATE} 1", "its tokens/s", 1.5),
    "transformers-16": Goal(f"{_GENERATE} 16", "its tokens/s", 2.0),
    "transformers-64": Goal(f"{_GENERATE} 64", "its tokens/s", 3.0),
    "served": Goal("served through the ring, 256 streams, 8B", "offline tokens/s", 0.95),
}
"""Goals keyed by part, the most important first: a GPU may be available for minutes only."""


def verdict(row: Row) -> bool | None:
    """Whether a figure reaches its target; None if it has no target or was not measured."""
    target, measured = row.get("target"), row.get("measured")
    if target is None or measured is None:
        return None
    return bool(measured <= target) if row.get("at most") else bool(measured >= target)


def gpu_table(measured: Sequence[Row]) -> list[Row]:
    """A row for each goal, with its ``measured`` figure."""
    known = {row["what"]: row for row in measured if row.get("measured") is not None}
    rows: list[Row] = []
    for goal in GOALS.values():
        row = known.get(goal.what)
        bound = "–" if goal.bound is None else f"{'≤' if goal.at_most else '≥'} {goal.bound:g}"
        told = "not measured" if row is None else {True: "reached", False: "short", None: "–"}[verdict(row)]
        value = None if row is None else float(row["measured"])
        rows.append({"what": goal.what, "of": goal.of, "must be": bound, "is": value, "verdict": told})
    return rows
