"""Activation functions, as configurations name them."""

from __future__ import annotations

import enum
from typing import Any

import torch

from engine_core.errors import UnsupportedModelError


class Activation(enum.IntEnum):
    """``RinglineActivationKind`` of kernels/cpu/interface.h."""

    SILU = 0
    GELU = 1
    GELU_TANH = 2
    """The approximation by tanh (Hendrycks and Gimpel, 2016, https://arxiv.org/abs/1606.08415)."""
    RELU = 3
    CLAMPED_SWIGLU = 4
    """(up + 1) · gate · σ(α · gate), with both clamped: only in experts (gpt-oss)."""
    SIGMOID = 5
    """The gate of an attention's output; no feed-forward block has it."""
    RELU2 = 6
    """relu(x)² (So et al., 2021, https://arxiv.org/abs/2109.08668)."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Apply to each element, with torch."""
        match self:
            case Activation.SILU:
                return torch.nn.functional.silu(x)
            case Activation.GELU:
                return torch.nn.functional.gelu(x)
            case Activation.GELU_TANH:
                return torch.nn.functional.gelu(x, approximate="tanh")
            case Activation.RELU:
                return torch.relu(x)
            case Activation.SIGMOID:
                return torch.sigmoid(x)
            case Activation.RELU2:
                return torch.relu(x).square()
        raise ValueError(f"{self.name} is not a function of one number")


NAMES = {
    "gelu": Activation.GELU,
    "gelu_new": Activation.GELU_TANH,
    "gelu_pytorch_tanh": Activation.GELU_TANH,
    "relu": Activation.RELU,
    "relu2": Activation.RELU2,
    "silu": Activation.SILU,
    "swish": Activation.SILU,
}
"""Names in configurations."""


def read_activation(field: str, name: Any) -> Activation:
    """The activation that a configuration's ``field`` names. Raises ``UnsupportedModelError``."""
    if not isinstance(name, str) or name not in NAMES:
        raise UnsupportedModelError(f"{field} {name!r} is not supported: expected one of {', '.join(NAMES)}")
    return NAMES[name]
