"""Root mean square normalization (Zhang and Sennrich, 2019, https://arxiv.org/abs/1910.07467).

torch reduces each row on its own as long as a row has less than 32768 elements, so results are stable by row.
"""

from __future__ import annotations

import torch


class RMSNorm:
    """x / √(mean(x²) + ε) · w over the last dimension, computed in float32."""

    def __init__(self, weight: torch.Tensor, eps: float) -> None:
        """Keep a copy of ``weight`` [H]."""
        self.weight = weight.clone()
        self.eps = eps

    @property
    def nbytes(self) -> int:
        """Memory of the weight."""
        return self.weight.nbytes

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[…, H] in the type of ``x``."""
        return torch.nn.functional.rms_norm(x, self.weight.shape, self.weight, self.eps)


class HeadNorm:
    """``RMSNorm`` over each head of queries and keys at once, each kind with its own weight."""

    def __init__(
        self, query_weight: torch.Tensor, num_heads: int, key_weight: torch.Tensor, num_kv_heads: int, eps: float
    ) -> None:
        """Lay out the weights [D] of queries and keys as they lie in a fused projection."""
        self.weight = torch.cat([query_weight.expand(num_heads, -1), key_weight.expand(num_kv_heads, -1)]).float()
        self.eps = eps

    @property
    def nbytes(self) -> int:
        """Memory of the weights."""
        return self.weight.nbytes

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[T, query heads + key heads, D] float32."""
        return torch.nn.functional.rms_norm(x.float(), x.shape[-1:], None, self.eps) * self.weight
