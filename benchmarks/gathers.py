"""What each gather of a step costs: bytes, and time with the wait for the slower rank, as a share of the step.

Two or more ranks, threads of this process, make the captured calls of one step one by one, so each can be timed.
"""

from __future__ import annotations

import ctypes
import secrets
import statistics
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.report import Row
from engine_core.attention.base import AttentionMetadata
from engine_core.attention.selector import choose_attention
from engine_core.config import LoadConfig, ModelConfig, ParallelConfig
from engine_core.distributed.ranks import Rank
from engine_core.distributed.shm import ShmCollectives
from engine_core.forward_context import ForwardContext
from engine_core.kernels.arguments import INT8_KERNELS, KERNELS, listed, structures
from engine_core.kernels.capture import Captured
from engine_core.kernels.library import load_kernels
from engine_core.model_loader.checkpoint import Checkpoint, open_checkpoint
from engine_core.model_loader.loader import load_weights, make_model
from engine_core.models.language_model import LanguageModel
from engine_core.ops.kernel_graph import KernelGraph
from engine_core.ops.native import NativeBackend

_BLOCK = 16
_CPU = torch.device("cpu")
_REPEATS = 7
_NAMES = [*listed(KERNELS), *listed(INT8_KERNELS)]


@dataclass(frozen=True, slots=True)
class TimedCall:
    """One call of a kernel in a step."""

    kernel: str
    row_bytes: int
    """That a gather puts out for a row, over all ranks; 0 for other kernels."""
    seconds: float


def gather_rows(directory: Path, ranks: int, rows: Sequence[int]) -> list[Row]:
    """For steps of so many ``rows``, the gathers of each size."""
    parallel = ParallelConfig(tensor_parallel_size=ranks)
    checkpoint = open_checkpoint(ModelConfig(str(directory)), LoadConfig(), parallel)
    key = secrets.token_hex(16)
    with ThreadPoolExecutor(ranks) as threads:
        models = list(threads.map(lambda tp: _part(checkpoint, key, tp, ranks), range(ranks)))
        found = []
        for count in rows:
            timed = list(threads.map(lambda model, count=count: _timed_step(model, count), models))
            found += _table(count, checkpoint.config.num_layers, timed[0])
    return found


def _table(rows: int, layers: int, calls: Sequence[TimedCall]) -> list[Row]:
    step, sizes = sum(call.seconds for call in calls), sorted({c.row_bytes for c in calls if c.row_bytes})
    table: list[Row] = []
    for size in sizes:
        same = [call.seconds for call in calls if call.row_bytes == size]
        table.append(
            {
                "rows": rows,
                "bytes per row": size,
                "per layer": len(same) / layers,
                "µs each": 1e6 * statistics.median(same),
                "ms of a step": 1e3 * sum(same),
                "% of a step": 100 * sum(same) / step,
            }
        )
    return table


def _part(checkpoint: Checkpoint, key: str, tp: int, ranks: int) -> LanguageModel:
    torch.set_num_threads(1)
    kernels = load_kernels()
    collectives = ShmCollectives.join(key, tp, ranks, 60.0, kernels)
    attention, _ = choose_attention(checkpoint.config.largest_head_dim, checkpoint.dtype)
    rank = Rank(tp, ranks)
    model = make_model(checkpoint, attention, NativeBackend(kernels), _CPU, None, rank, collectives)
    load_weights(model, checkpoint, _CPU)
    return model


@torch.inference_mode()
def _timed_step(model: LanguageModel, rows: int) -> list[TimedCall]:
    """A step of a prompt of ``rows`` tokens, call by call; medians of some repetitions."""
    groups, blocks = len(model.kv_cache_groups), -(-rows // _BLOCK)
    caches = model._factory.attention_backend.allocate(model.kv_cache_spec(_BLOCK), groups * blocks, _CPU)
    tables = torch.arange(groups * blocks, dtype=torch.int32).view(groups, 1, blocks)
    metadata = [
        AttentionMetadata.of_sequences([rows], [rows], table, _BLOCK, group) for group, table in enumerate(tables)
    ]
    last = torch.tensor([rows - 1])
    ids, positions = torch.arange(rows) % model.vocab_size, torch.arange(rows)
    model.forward(ids, positions, ForwardContext(caches, metadata, last))
    stack = model._run_layers  # type: ignore[attr-defined]
    assert isinstance(stack, KernelGraph)
    assert stack._graph is not None
    captured = stack._graph.captured
    times = [_call_by_call(captured, metadata, rows, last) for _ in range(_REPEATS)]
    calls = []
    for place, (operation, arguments) in enumerate(zip(captured._operations, captured._arguments, strict=True)):
        name = _NAMES[operation.kind]
        size = arguments.groups * arguments.output_stride if name == "gather" else 0
        calls.append(TimedCall(name, size, statistics.median(each[place] for each in times)))
    return calls


def _call_by_call(
    captured: Captured, metadata: Sequence[AttentionMetadata], rows: int, last: torch.Tensor
) -> list[float]:
    group = metadata[0]
    tables = (ctypes.c_void_p * len(metadata))(*(each.block_tables.data_ptr() for each in metadata))
    seconds = []
    for operation in captured._operations:
        step = structures()["RinglineStep"](
            query_starts=group.query_starts.data_ptr(),
            seq_lens=group.seq_lens.data_ptr(),
            block_tables=ctypes.addressof(tables),
            block_table_stride=group.block_tables.stride(0),
            rows=rows,
            selected=last.data_ptr(),
            num_selected=len(last),
            num_seqs=1,
            num_threads=1,
        )
        call = (structures()["RinglineOperation"] * 1)(operation)
        began = time.perf_counter()
        captured._replay(call, 1, ctypes.byref(step))
        seconds.append(time.perf_counter() - began)
        if _NAMES[operation.kind] == "select_rows":
            rows = len(last)
    return seconds
