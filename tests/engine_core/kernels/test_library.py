"""Which kernels the library hands out, and what it says where it has none."""

from __future__ import annotations

import pytest
import torch

from engine_core.kernels.library import KernelsUnavailableError, load_kernels, load_kernels_for


def test_which_sizes_are_supported() -> None:
    assert load_kernels_for(1024, torch.float16)
    assert load_kernels_for(38, torch.float16)
    with pytest.raises(KernelsUnavailableError, match="head_dim up to 1024; the model has float16 and head_dim 1040"):
        load_kernels_for(1040, torch.float16)
    with pytest.raises(KernelsUnavailableError, match="the model has float64"):
        load_kernels_for(64, torch.float64)


def test_an_instruction_set_that_nobody_knows_is_refused() -> None:
    assert load_kernels("portable").instruction_set == "portable"
    with pytest.raises(KernelsUnavailableError, match="no native kernels for avx3 on this processor"):
        load_kernels("avx3")
