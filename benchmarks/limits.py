"""The machine's present limits: stream read bandwidth, and the peak rate of matrix products.

    python -m benchmarks.limits

Other users share the machine's memory bandwidth, so an engine's figures are meaningful only together with limits
measured in the same minute: every benchmark here measures them between its rounds (``Gauge``).
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # read when torch is imported

import argparse
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from benchmarks.report import emit, output_options, print_table

_BUFFER_BYTES = 1 << 29
"""Many times the size of any cache."""
_PASSES = 3
_GEMM_ROWS = 1024
_GEMM_WEIGHT = (4096, 4096)
_GEMM_CALLS = 3


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits at one moment."""

    bandwidth: float
    """Bytes read from memory per second, all threads together."""
    flops: float
    """Operations per second of a bfloat16 product of 1024 × 4096 × 4096, two for each multiply-add."""


def best_seconds(run: Callable[[], object], times: int) -> float:
    """The shortest of ``times`` runs: the others were disturbed."""
    best = float("inf")
    for _ in range(times):
        begun = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - begun)
    return best


@contextmanager
def threads_of_torch(threads: int | None) -> Iterator[int]:
    """Have torch use ``threads`` threads (None: all) in the body; yields their number."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads or len(os.sched_getaffinity(0)))
    try:
        yield torch.get_num_threads()
    finally:
        torch.set_num_threads(before)


class Gauge:
    """Measures limits in a few tenths of a second. Holds half a GiB."""

    def __init__(self, threads: int | None = None) -> None:
        """``threads``: number of threads; None for all."""
        self._threads = threads
        self._integers = torch.ones(_BUFFER_BYTES // 8, dtype=torch.int64)
        halves = self._integers.view(torch.float32).chunk(2)
        # torch's fastest ways to read memory; which one is the fastest depends on the machine.
        self._readers: tuple[Callable[[], object], ...] = (
            self._integers.max,
            lambda: torch.dot(halves[0], halves[1]),
        )
        self._products = {dtype: _product(dtype) for dtype in (torch.bfloat16, torch.float32)}

    def take(self) -> Limits:
        """Measure both limits."""
        return Limits(self.bandwidth(), self.flops(torch.bfloat16))

    def bandwidth(self) -> float:
        """Bytes per second that reading memory reaches."""
        with threads_of_torch(self._threads):
            return _BUFFER_BYTES / min(best_seconds(read, _PASSES) for read in self._readers)

    def flops(self, dtype: torch.dtype) -> float:
        """Operations per second that a large matrix product reaches."""
        operations = 2 * _GEMM_ROWS * _GEMM_WEIGHT[0] * _GEMM_WEIGHT[1]
        with threads_of_torch(self._threads):
            return operations / best_seconds(self._products[dtype], _GEMM_CALLS)


def _product(dtype: torch.dtype) -> Callable[[], object]:
    """A product with a weight that is reordered for oneDNN in advance, if oneDNN has this type."""
    x, weight = torch.randn(_GEMM_ROWS, _GEMM_WEIGHT[1]).to(dtype), torch.randn(_GEMM_WEIGHT).to(dtype)
    try:
        packed = torch.ops.mkldnn._reorder_linear_weight(weight, None)
        torch.ops.mkldnn._linear_pointwise(x, packed, None, "none", [], "")  # compiles the kernel
    except (AttributeError, RuntimeError):
        return lambda: torch.nn.functional.linear(x, weight)
    return lambda: torch.ops.mkldnn._linear_pointwise(x, packed, None, "none", [], "")


def main() -> None:
    """Print the limits for one thread and for all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    output_options(parser)
    arguments = parser.parse_args()
    rows = []
    for threads in dict.fromkeys((1, len(os.sched_getaffinity(0)))):
        gauge = Gauge(threads)
        rows.append(
            {
                "threads": threads,
                "stream GB/s": gauge.bandwidth() / 1e9,
                "bf16 GFLOP/s": gauge.flops(torch.bfloat16) / 1e9,
                "fp32 GFLOP/s": gauge.flops(torch.float32) / 1e9,
            }
        )
    print_table(rows)
    emit(arguments, "limits", rows)


if __name__ == "__main__":
    main()
