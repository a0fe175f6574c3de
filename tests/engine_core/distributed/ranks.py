"""Ranks as threads of one process, each with its part of a model, and memory that they share."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TypeVar

import torch

from engine_core.attention.selector import choose_attention
from engine_core.distributed.ranks import Rank
from engine_core.distributed.shm import ShmCollectives
from engine_core.model_loader.checkpoint import Checkpoint
from engine_core.models.language_model import LanguageModel
from engine_core.ops.native import NativeBackend
from tests.engine_core.distributed import rank_threads
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
    checkpoint = shared(checkpoint, size, expert_parallel=expert_parallel)

    def work(collectives: ShmCollectives) -> Result:
        rank = Rank(tp=collectives.rank, tp_size=size, expert_parallel=expert_parallel)
        attention, _ = choose_attention(16, checkpoint.dtype)  # one of its own, as it is not for several threads
        return use(build_model(checkpoint, layers, attention, rank=rank, collectives=collectives))

    return rank_threads.on_ranks(size, work)


def assert_bits(found: Iterable[torch.Tensor], expected: Iterable[torch.Tensor]) -> None:
    """That all have the same ones, of zeros' signs, too."""
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one.view(torch.int32), other.view(torch.int32))
