"""What benchmarks of others count, beside what the ring counted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tests.doors.door import Door
from tests.ring import metric_values

REQUESTS, PROMPT_TOKENS, OUTPUT_TOKENS, STREAMS = 20, 40, 16, 4
"""What every benchmark is asked to send."""


@dataclass
class Counted:
    """Of requests that ended between two moments, by the processor."""

    requests: float = 0
    prompt_tokens: float = 0
    output_tokens: float = 0


@contextmanager
def counting(door: Door) -> Iterator[Counted]:
    """What the ring counts within; known at the end."""
    counted = Counted()
    before = _counters(door)
    yield counted
    after = _counters(door)
    counted.requests, counted.prompt_tokens, counted.output_tokens = (b - a for a, b in zip(before, after, strict=True))


def _counters(door: Door) -> tuple[float, float, float]:
    values = metric_values(door.ring.state.services["processor"].metrics or "")
    names = ("vllm:request_prompt_tokens_count", "vllm:prompt_tokens_total", "vllm:generation_tokens_total")
    requests, prompts, outputs = (values[name] for name in names)
    return requests, prompts, outputs
