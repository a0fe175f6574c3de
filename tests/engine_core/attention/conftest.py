"""The backends that run on every machine."""

from __future__ import annotations

import pytest

from engine_core.attention.base import AttentionBackend
from engine_core.attention.native import NativeAttention
from engine_core.attention.torch_reference import TorchAttention
from engine_core.kernels.library import INSTRUCTION_SETS, load_kernels
from tests.engine_core.conftest import kernels_or_skip


@pytest.fixture(params=[*INSTRUCTION_SETS, "torch"])
def backend(request: pytest.FixtureRequest) -> AttentionBackend:
    """Native, for every instruction set of this machine; and torch."""
    if request.param == "torch":
        return TorchAttention()
    return NativeAttention(kernels_or_skip(load_kernels, request.param))
