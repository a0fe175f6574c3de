"""How much of a GPU's memory is left for the KV cache: arithmetic on what was measured.

left = utilization · total − context − taken after loading − peak of the largest step − graphs, where what is taken is
the loss of free memory since the start: weights, libraries and compiled kernels. The CUDA context is there before free
memory can be asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine_core.errors import OutOfMemoryError
from engine_core.worker.memory import size

_LARGEST_CONTEXT = 1 << 30
"""Bytes. A context takes 0.3 to 0.7 GiB, by GPU and driver."""


@dataclass(frozen=True, slots=True)
class CudaMemoryProfile:
    """What was measured between loading and allocating; all in bytes."""

    total: int
    """The GPU's memory."""
    free_at_start: int
    """What of it nobody had when this process began, but for its CUDA context."""
    context: int
    """What that context takes at most."""
    taken: int
    """What this process takes after loading, beside it."""
    weights: int
    """The part of ``taken`` that is weights."""
    step_peak: int
    """What the largest step takes on top."""
    graphs: int
    """What captured graphs are expected to take."""

    @property
    def overhead_per_block(self) -> int:
        """None: the scheduler's share lives in the host's memory."""
        return 0

    def left(self, utilization: float) -> int:
        """What remains of a budget of that share of ``total``. Raises ``OutOfMemoryError`` where others have it."""
        budget = int(self.total * utilization)
        available = self.free_at_start + self.context
        if budget > available:
            raise OutOfMemoryError(
                f"--gpu-memory-utilization {utilization:g} asks for {size(budget)} of the GPU's {size(self.total)}, "
                f"but only {size(available)} were free at the start. Lower it to at most "
                f"{int(100 * available / self.total) / 100:g}, or end what else uses the GPU."
            )
        return budget - self.context - self.taken - self.step_peak - self.graphs

    def describe(self, utilization: float) -> str:
        """The numbers behind ``left``, for a person."""
        return (
            f"{utilization:g} of the GPU's {size(self.total)} is {size(self.total * utilization)}; weights take "
            f"{size(self.weights)}, the CUDA context up to {size(self.context)}, libraries "
            f"{size(self.taken - self.weights)}, the largest step {size(self.step_peak)}, CUDA graphs about "
            f"{size(self.graphs)}"
        )


def context_bytes(free: int, total: int) -> int:
    """What of a GPU's memory that is not free at the start may be this process's CUDA context: all, if nobody else is
    there, and never more than a context takes.
    """
    return min(max(0, total - free), _LARGEST_CONTEXT)


def graphs_estimate(first: int, first_two: int, *, count: int) -> int:
    """Bytes that ``count`` graphs will take, when the largest took ``first`` and with the next one ``first_two``.

    The pool's memory comes with the largest; each further one adds what the driver keeps of it.
    """
    return first + max(0, first_two - first) * (count - 1) if count else 0


def suggestion(budget: int, taken: int, cache_bytes: int) -> str:
    """What is left of ``budget`` when all is ready, and the option that uses it to the last block, for a person."""
    left = budget - taken
    told = f"{size(left)} of the budget are left" if left >= 0 else f"the budget is exceeded by {size(-left)}"
    return f"{told}: --kv-cache-memory-bytes {max(0, cache_bytes + left)} would use it exactly"


def difference(before: Sequence[int], after: Sequence[int]) -> int:
    """Loss of free memory between two of ``torch.cuda.mem_get_info``; never negative: others may give back."""
    return max(0, before[0] - after[0])
