"""What adapters add to small layers of float32: each adapter has their weights once more, with what it adds."""

from __future__ import annotations

import torch

from engine_core.lora.adapter import LoRAMatrices
from engine_core.lora.targets import LinearTarget
from engine_core.ops.lora import MergedLoRA


class LoRAMerged:
    """Adds to one layer's weight."""

    def __init__(self, name: str, target: LinearTarget, op: MergedLoRA, dtype: torch.dtype) -> None:
        """``dtype``: the model's, to which adapters are rounded."""
        self.name = name
        self.target = target
        self.op = op
        self._dtype = dtype
        self._weight: torch.Tensor | None = None

    @property
    def nbytes(self) -> int:
        """Of an adapter's weight."""
        return self.target.outputs * self.target.inputs * torch.float32.itemsize

    def load(self, weight: torch.Tensor) -> None:
        """The model's ``weight`` [N, K] float32."""
        self._weight = weight

    def merged(self, matrices: LoRAMatrices) -> torch.Tensor:
        """[N, K] float32: the weight with what an adapter of these ``matrices`` adds."""
        assert self._weight is not None
        a, b = (each.to(self._dtype).float() for each in (matrices.a, matrices.b))
        return (self._weight + matrices.scaling * (b @ a)).contiguous()
