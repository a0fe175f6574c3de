"""Which backend computes, and why."""

from __future__ import annotations

import torch

from engine_core.ops.selector import choose_ops
from engine_core.ops.torch import TorchBackend


def test_heads_larger_than_the_kernel_has_room_for_are_left_to_torch() -> None:
    ops, why = choose_ops(1040, torch.bfloat16)
    assert isinstance(ops, TorchBackend)
    assert "head_dim up to 1024" in why
