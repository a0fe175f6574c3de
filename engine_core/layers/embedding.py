"""Embeddings: rows of a table, by token or by position."""

from __future__ import annotations

import torch

from engine_core.layers.features import Features
from engine_core.layers.linear import ParallelLMHead
from engine_core.layers.part import Part
from engine_core.layers.weights import Weights
from engine_core.ops.base import OpsBackend


class VocabParallelEmbedding(Part):
    """Rows of a table, or of the output projection's weight where the two are tied, without a second copy."""

    def __init__(
        self,
        name: str,
        vocab_size: int,
        features: Features,
        backend: OpsBackend,
        dtype: torch.dtype,
        tied_to: ParallelLMHead | None = None,
        scale: float = 1.0,
    ) -> None:
        """A table is kept in the type in which it is stored, if that has 16 bits; its rows are of type ``dtype``."""
        self._dtype = dtype
        self._name = f"{name}.weight"
        self._shape = (vocab_size, features.count)
        self._features = features
        self._backend = backend
        self._tied_to = tied_to
        self._scale = scale
        self._table: torch.Tensor | None = None

    def tensors(self) -> dict[str, tuple[int, ...]]:
        return {} if self._tied_to is not None else {self._name: self._shape}

    def load(self, weights: Weights) -> None:
        if self._tied_to is None:
            table = weights.take_table(self._name)
            padded = self._features.pad(table, 1, self._backend)
            self._table = table.clone() if padded is table else padded

    @property
    def nbytes(self) -> int:
        return 0 if self._table is None else self._table.nbytes

    def __call__(self, indices: torch.Tensor) -> torch.Tensor:
        """[T, H] of ``indices`` [T] int64."""
        if self._table is not None:
            rows = torch.nn.functional.embedding(indices, self._table).to(self._dtype)
        else:
            assert self._tied_to is not None
            rows = self._tied_to.op.weight_rows(indices)
        # The factor is rounded like the rows, as in the models that have one.
        return rows if self._scale == 1.0 else rows.mul_(torch.tensor(self._scale, dtype=rows.dtype))
