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
from engine_core.quantization.int4 import Int4
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
    assert "int8 layers" in chosen.describe()
    for group_size, expected in ((None, 32), (128, 128)):
        chosen = choose_quantization("int4", group_size=group_size)
        assert chosen is not None
        method = chosen.method(("lm_head",))
        assert isinstance(method, Int4)
        assert method.format.group_size == expected
    none_built = KernelsUnavailableError("no library of native kernels was built")
    for quantization, load in (("int8", "load_int8_kernels"), ("int4", "load_kernels")):
        monkeypatch.setattr(selector, load, Mock(side_effect=none_built))
        with pytest.raises(ConfigError, match=rf"quantization='{quantization}'.*needs native kernels: no library"):
            choose_quantization(quantization)
