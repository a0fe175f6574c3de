"""How long the largest step takes, estimated from less: from one layer, and from few rows behind a long context."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import torch

from engine_core.attention.base import AttentionBackend, AttentionMetadata, KVCacheSpec
from engine_core.step import StepPlan
from engine_core.worker.batch import BatchLimits
from engine_core.worker.forward import TimedForward
from engine_core.worker.model_runner import ModelRunner

_LONGEST_CONTEXT = 8192
_PAIRS = 2**18
"""About how many pairs of a row and a token that it sees are computed at first: some milliseconds of a processor."""
_FEWEST_ROWS = 16
_LEAST_SECONDS = 0.02
"""A run that takes less says more of how it is launched than of what it computes."""
_RUNS = 3
_SECONDS = 0.05
"""After two runs there are no more of them than fit into that time."""


def step_seconds(
    runner: ModelRunner,
    plan: StepPlan,
    kv_caches: list[torch.Tensor],
    num_layers: int,
    synchronize: Callable[[], None] = lambda: None,
) -> float:
    """Run ``plan`` through the one layer, the head and the sampler of ``runner``: how long all of a model takes.

    All layers are alike. ``synchronize`` waits for the device.
    """
    forward = TimedForward(runner.forward, synchronize)
    runner.forward = forward
    start = time.perf_counter()
    runner.launch(plan, kv_caches).result()
    synchronize()
    return time.perf_counter() - start + (num_layers - 1) * forward.seconds


@torch.inference_mode()
def attention_seconds(
    attention: AttentionBackend, spec: KVCacheSpec, num_heads: int, limits: BatchLimits, device: torch.device
) -> float:
    """How long attention takes in a step of as many rows as there may be, all behind the longest context.

    A chunk of a prompt whose beginning is in the prefix cache is such a step, and no smaller one need come before it.
    The time grows with pairs of a row and a token that it sees: some of them tell that of all, as many as take long
    enough to be told apart from the launch.
    """
    context = min(limits.max_model_len, _LONGEST_CONTEXT)
    most_rows = min(limits.max_rows, context)
    rows = min(max(_FEWEST_ROWS, _PAIRS // context), most_rows)
    while (seconds := _quickest(attention, spec, num_heads, rows, context, device)) < _LEAST_SECONDS:
        if rows == most_rows:
            break
        rows = min(2 * rows, most_rows)
    pairs = rows * (2 * context - rows + 1) // 2
    return spec.num_layers * seconds * limits.max_rows * limits.max_model_len / pairs


def _quickest(
    attention: AttentionBackend, spec: KVCacheSpec, num_heads: int, rows: int, context: int, device: torch.device
) -> float:
    """Seconds that one layer's attention takes for the last ``rows`` of a context.

    The quickest of some runs counts, since the first one may compile kernels, and others may wait for the processor.
    """
    on_host = AttentionMetadata(
        query_starts=torch.tensor([0, rows], dtype=torch.int32),
        seq_lens=torch.tensor([context], dtype=torch.int32),
        block_tables=torch.zeros(1, -(-context // spec.block_size), dtype=torch.int32),
        slot_mapping=torch.arange(context - rows, context) % spec.block_size,
        max_query_len=rows,
        max_seq_len=context,
    )
    query = torch.zeros(rows, num_heads, spec.head_dim, dtype=spec.dtype, device=device)
    key = torch.zeros(rows, spec.num_kv_heads, spec.head_dim, dtype=spec.dtype, device=device)
    [cache] = attention.allocate(replace(spec, num_layers=1), 1, device)
    metadata = on_host.on(device)
    attention.plan(on_host)
    runs: list[float] = []
    while len(runs) < 2 or (len(runs) < _RUNS and sum(runs) < _SECONDS):
        start = time.perf_counter()
        attention.forward(query, key, key, cache, metadata, spec.head_dim**-0.5).cpu()  # waits for the device
        runs.append(time.perf_counter() - start)
    return min(runs)
