"""Memory that is taken at once is there, and holds what it held."""

from __future__ import annotations

import platform

import pytest
import torch

from engine_core.kernels.memory import empty_for_streaming, take_now
from engine_core.worker.host import resident_memory

MIB = 1 << 20


@pytest.mark.skipif(tuple(map(int, platform.release().split(".")[:2])) < (5, 14), reason="this system cannot do it")
def test_memory_is_taken_before_it_is_written() -> None:
    before = resident_memory()
    tensor = empty_for_streaming((64, MIB), torch.uint8)[:, : MIB - 1]
    tensor[1, 3] = 7
    assert resident_memory() < before + 8 * MIB
    take_now(tensor)
    assert resident_memory() > before + 60 * MIB
    assert tensor[1, 3] == 7
    assert tensor[40].count_nonzero() == 0
