"""Ranks as threads of one process, each with its part of a model, and memory that they share."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TypeVar

import torch

from engine_core.attention.selector import choose_attention
from engine_core.distributed.ranks import Rank
from engine_core.distributed.shm import ShmCollectives
from engine_core.kernels.library import load_kernels
from engine_core.model_loader.checkpoint import Checkpoint
from engine_core.models.language_model import LanguageModel
from engine_core.ops.native import NativeBackend
from tests.engine_core.models.driver import build_model

Result = TypeVar("Result")


def shared(checkpoint: Checkpoint, size: int, *, expert_parallel: bool = False) -> Checkpoint:
    """The same, whose layers ``size`` ranks share."""
    return replace(checkpoint, config=checkpoint.config.for_ranks(size, expert_parallel=expert_parallel))


def on_ranks(
    checkpoint: Checkpoint,
    size: int,
    use: Callable[[LanguageModel], Result],
    layers: NativeBackend | None = None,
    *,
    expert_parallel: bool = False,
) -> list[Result]:
    """What each of ``size`` ranks makes of its part of the model, at the same time."""
    checkpoint, key = shared(checkpoint, size, expert_parallel=expert_parallel), secrets.token_hex(16)
    kernels = load_kernels()

    def run(number: int) -> Result:
        collectives = ShmCollectives.join(key, number, size, 30.0, kernels)
        try:
            rank = Rank(tp=number, tp_size=size, expert_parallel=expert_parallel)
            attention, _ = choose_attention(16, checkpoint.dtype)  # one of its own, as it is not for several threads
            return use(build_model(checkpoint, layers, attention, rank=rank, collectives=collectives))
        except BaseException:
            collectives.abort()
            raise

    with ThreadPoolExecutor(size) as threads:
        futures = [threads.submit(run, number) for number in range(size)]
        errors = [error for future in futures if (error := future.exception()) is not None]
        if errors:  # the first that is not about another's
            raise min(errors, key=lambda error: type(error).__name__ == "RankFailedError")
        return [future.result() for future in futures]


def assert_bits(found: Iterable[torch.Tensor], expected: Iterable[torch.Tensor]) -> None:
    """That all have the same ones, of zeros' signs, too."""
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one.view(torch.int32), other.view(torch.int32))
