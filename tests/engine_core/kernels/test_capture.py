"""What is captured, what cannot be, and the memory for it."""

from __future__ import annotations

import weakref

import pytest
import torch

from engine_core.errors import RankFailedError
from engine_core.kernels.arguments import DONE, NO_MEMORY, RANK_FAILED, RANKS_DISAGREE
from engine_core.kernels.capture import BufferPool, Captured, NotCapturableError, capturing, check
from engine_core.kernels.library import load_kernels


@torch.inference_mode()
def test_a_capture_names_what_it_cannot_hold() -> None:
    x = torch.ones(2)
    captured = Captured(BufferPool(4), load_kernels().replay)
    with pytest.raises(NotCapturableError, match=r"aten\.mul"), capturing(captured):
        x * 2


def test_memory_is_used_anew_once_nobody_has_it() -> None:
    pool = BufferPool(8)
    first = pool.take(2, 16, torch.bfloat16)
    view = first.view(2, 4, 4)[1:, :2]
    second = pool.take(2, 16, torch.bfloat16)
    addresses = {first.data_ptr(), second.data_ptr()}
    assert len(addresses) == 2
    del first
    third = pool.take(2, 16, torch.bfloat16)
    assert third.data_ptr() not in addresses, "a view is left"
    del view
    assert pool.take(2, 16, torch.bfloat16).data_ptr() in addresses


@pytest.mark.parametrize(
    ("result", "error", "says"),
    [
        (NO_MEMORY, MemoryError, "no memory"),
        (RANK_FAILED, RankFailedError, "another rank of the engine has failed"),
        (RANKS_DISAGREE, RankFailedError, "do not make the same calls"),
    ],
)
def test_a_failed_call_is_an_error(result: int, error: type[Exception], says: str) -> None:
    check(DONE)
    with pytest.raises(error, match=says):
        check(result)
    with pytest.raises(error, match=says):
        Captured(BufferPool(4), lambda *_: result).replay(rows=1)


def test_what_calls_use_lives_as_long_as_they_do() -> None:
    class Memory:
        pass

    captured, memory = Captured(BufferPool(4), load_kernels().replay), Memory()
    alive = weakref.ref(memory)
    assert captured.keep(memory)
    assert not captured.keep(memory)
    assert captured.keep(Memory())
    del memory
    assert alive() is not None
    del captured
    assert alive() is None
