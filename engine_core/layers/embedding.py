"""Embeddings: rows of a table, by token or by position."""

from __future__ import annotations

import torch

from engine_core.layers.features import Features
from engine_core.layers.linear import ParallelLMHead
from engine_core.layers.part import Part
from engine_core.layers.shares import TokenShares
from engine_core.layers.weights import TensorRows, Weights
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
        tied_to: ParallelLMHead | None,
        scale: float,
        shares: TokenShares,
    ) -> None:
        """A table is kept in the type in which it is stored, if that has 16 bits; its rows are of type ``dtype``."""
        self._dtype = dtype
        self._rows = TensorRows(f"{name}.weight", vocab_size, shares.own)
        self._shares = shares
        self._features = features
        self._backend = backend
        self._tied_to = tied_to
        self._scale = scale
        self._table: torch.Tensor | None = None

    def tensors(self) -> dict[str, tuple[int, ...]]:
        return {} if self._tied_to is not None else {self._rows.name: (self._rows.count, self._features.count)}

    def load(self, weights: Weights) -> None:
        if self._tied_to is None:
            table = weights.take_table(self._rows)
            padded = self._features.pad(table, 1, self._backend)
            self._table = table.clone() if padded is table else padded

    @property
    def num_weights(self) -> int:
        return 0 if self._tied_to is not None else len(self._rows.rows) * self._features.count

    @property
    def nbytes(self) -> int:
        return 0 if self._table is None else self._table.nbytes

    def __call__(self, indices: torch.Tensor) -> torch.Tensor:
        """[T, H] of ``indices`` [T] int64."""
        if (others := self._shares.others) is None:
            return self._of_own(indices)
        own = self._shares.own
        rows = self._of_own((indices - own.start).clamp_(0, len(own) - 1))  # those of other ranks' tokens are not used
        return others.gather_rows(rows, indices.to(torch.int32), self._shares.tokens)

    def _of_own(self, indices: torch.Tensor) -> torch.Tensor:
        """[T, H] of ``indices`` among this rank's rows."""
        if self._table is not None:
            rows = torch.nn.functional.embedding(indices, self._table).to(self._dtype)
        else:
            assert self._tied_to is not None
            rows = self._tied_to.op.weight_rows(indices)
        # The factor is rounded like the rows, as in the models that have one.
        return rows if self._scale == 1.0 else rows.mul_(torch.tensor(self._scale, dtype=rows.dtype))
