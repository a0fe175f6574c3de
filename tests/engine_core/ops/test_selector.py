"""Which backend computes, which quantization it is asked for, and why."""

from __future__ import annotations

from unittest.mock import Mock

import pytest
import torch

from engine_core.errors import ConfigError
from engine_core.kernels.library import KernelsUnavailableError
from engine_core.ops import selector
from engine_core.ops.selector import choose_ops, choose_quantization
from engine_core.ops.torch import TorchBackend
from engine_core.quantization.int8 import Int8


def test_heads_larger_than_the_kernel_has_room_for_are_left_to_torch() -> None:
    ops, why = choose_ops(1040, torch.bfloat16)
    assert isinstance(ops, TorchBackend)
    assert "head_dim up to 1024" in why


def test_the_option_chooses_the_method(monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose_quantization(None) is None
    chosen = choose_quantization("int8")
    assert chosen is not None
    assert isinstance(chosen.method(("lm_head",)), Int8)
    assert "8-bit linear layers" in chosen.describe()
    none_built = KernelsUnavailableError("no library of native kernels was built")
    monkeypatch.setattr(selector, "load_int8_kernels", Mock(side_effect=none_built))
    with pytest.raises(ConfigError, match=r"quantization='int8'.*needs native kernels: no library"):
        choose_quantization("int8")
