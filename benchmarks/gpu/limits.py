"""A GPU's present limits: the rate of a copy, and that of a large matrix product.

python -m benchmarks.gpu.limits
"""

from __future__ import annotations

import statistics
from collections.abc import Callable

import torch

from benchmarks.limits import Limits

_COPIED_BYTES = 1 << 32
_PRODUCT = 8192
_ROUNDS = 10
_AHEAD_CYCLES = 1_000_000
"""Half a millisecond: longer than a launch takes, of a large graph too."""


def seconds_of(run: Callable[[], object], rounds: int = _ROUNDS) -> float:
    """Median time by the GPU's own clock, after a few warm-up rounds.

    The GPU is kept waiting before each, or a short ``run`` would seem to take as long as its launch from the host.
    """
    taken: list[float] = []
    for number in range(rounds + 3):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        torch.cuda._sleep(_AHEAD_CYCLES)  # type: ignore[no-untyped-call]
        begin.record()
        run()
        end.record()
        torch.cuda.synchronize()
        if number >= 3:
            taken.append(begin.elapsed_time(end) / 1e3)
    return statistics.median(taken)


def gpu_limits() -> Limits:
    """Bytes per second read and written by a copy of 4 GiB; operations per second of a bfloat16 product of 8192³.

    Of random numbers, as weights are: zeros take less power, and so may be faster.
    """
    limits = Limits(_copy_rate(), _product_rate())
    torch.cuda.empty_cache()
    return limits


def _copy_rate() -> float:
    source = torch.empty(_COPIED_BYTES, dtype=torch.uint8, device="cuda").random_()
    target = torch.empty_like(source)
    return 2 * _COPIED_BYTES / seconds_of(lambda: target.copy_(source))


def _product_rate() -> float:
    a, b = (torch.randn(_PRODUCT, _PRODUCT, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    return 2 * _PRODUCT**3 / seconds_of(lambda: a @ b)


def main() -> None:
    """Print the limits."""
    limits = gpu_limits()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    print(f"copy {limits.bandwidth / 1e12:.2f} TB/s, bf16 product {limits.flops / 1e12:.0f} TFLOP/s")


if __name__ == "__main__":
    main()
