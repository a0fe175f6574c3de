"""The scheduler's load and counters at one moment, for load reports and metrics."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Counters:
    """Counted since the start."""

    steps: int = 0
    computed_tokens: int = 0
    generated_tokens: int = 0
    preemptions: int = 0
    prefix_query_tokens: int = 0
    prefix_hit_tokens: int = 0


@dataclass(frozen=True, slots=True)
class SchedulerStats:
    """Gauges now, counters since the start."""

    running_seqs: int
    waiting_reqs: int
    """Requests never admitted yet."""
    returning_reqs: int
    """Requests that were admitted and have choices in the queue: preempted, or not begun for want of room."""
    waiting_seqs: int
    """Choices not running: of waiting requests, preempted, or waiting for their prompt."""
    queued_tokens: int
    """Tokens to compute before every sequence in the queue samples its next token; prefix hits are not foreseen."""
    kv_blocks: int
    kv_blocks_used: int
    """Blocks that have holders; cached blocks without any count as free."""
    steps: int
    computed_tokens: int
    """Rows of all completed forward passes."""
    generated_tokens: int
    """Tokens sampled and delivered."""
    preemptions: int
    prefix_query_tokens: int
    """Tokens of requests at their first admission, where the prefix cache was searched."""
    prefix_hit_tokens: int
    """Those of them that were found."""

    @property
    def kv_usage(self) -> float:
        """Share of the KV blocks in use."""
        return self.kv_blocks_used / self.kv_blocks
