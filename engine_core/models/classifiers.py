"""The classifiers of encoders: a linear layer, its activation, perhaps a norm, then numbers of labels, in float32.

Symbols in shapes: R rows, H hidden size, L labels.
"""

from __future__ import annotations

import numpy as np
import torch

from engine_core.layers.float32_linear import Float32Linear
from engine_core.layers.norm import LayerNorm
from engine_core.layers.part_factory import PartFactory
from engine_core.pooling.pooler import ACTIVATIONS
from engine_core.weights.features import Features


class DenseClassifier:
    """A row's bits do not depend on the other rows."""

    def __init__(
        self,
        parts: PartFactory,
        dense: Float32Linear,
        activation: str,
        output: Float32Linear,
        norm: LayerNorm | None = None,
    ) -> None:
        """``activation``: a name in ``ACTIVATIONS``, of what follows ``dense``."""
        self._dense = dense
        self._activation = ACTIVATIONS[activation]
        self._norm = norm
        self._output = output
        self._backend = parts.backend

    def __call__(self, pooled: torch.Tensor) -> torch.Tensor:
        """[R, L] float32 of ``pooled`` [R, H] float32."""
        wide = self._dense(pooled).cpu().numpy().astype(np.float64)
        inner = torch.from_numpy(self._activation(wide).astype(np.float32)).to(pooled.device)
        if self._norm is not None:
            width = inner.shape[1]
            inner = self._norm(Features(1, width).pad(inner, 1, self._backend))[:, :width]
        return self._output(inner.contiguous())
