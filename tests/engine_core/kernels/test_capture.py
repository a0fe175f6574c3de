"""What is captured, what cannot be, and the memory for it."""

from __future__ import annotations

import pytest
import torch

from engine_core.kernels.capture import BufferPool, Captured, NotCapturableError, capturing
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
