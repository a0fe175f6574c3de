"""Weights are packed wherever they lie in a file."""

from __future__ import annotations

import torch

from engine_core.ops.native_packing import pack_rows, packed_shape


def test_a_weight_behind_an_odd_number_of_others_is_packed_as_any_other() -> None:
    stored = torch.randn(1 + 37 * 32).to(torch.bfloat16)
    weight = stored[1:].view(37, 32)
    apart, alone = (torch.zeros(packed_shape(37, 32, torch.bfloat16), dtype=torch.bfloat16) for _ in range(2))
    pack_rows(weight, apart)
    pack_rows(weight.clone(), alone)
    assert torch.equal(apart, alone)
