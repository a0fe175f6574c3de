"""Embeddings: rows of a table, by token or by position."""

from __future__ import annotations

from dataclasses import replace

import torch

from engine_core.layers.linear import ParallelLMHead
from engine_core.layers.lora import LoRALayers
from engine_core.layers.part import Part
from engine_core.layers.shares import TokenShares
from engine_core.ops.base import LinearOp, OpsBackend
from engine_core.quantization.base import QuantMethod
from engine_core.weights.features import Features, LinearShape
from engine_core.weights.source import TensorRows, Weights


class VocabParallelEmbedding(Part):
    """Rows of a table or, if tied, of the output projection's weight, without a second copy."""

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
        quant_method: QuantMethod,
        lora: LoRALayers | None = None,
    ) -> None:
        """The table keeps its stored type if that has 16 bits or ``quant_method`` keeps it; results are ``dtype``.

        ``lora``: None if adapters cannot change it.
        """
        self._dtype = dtype
        self._rows = TensorRows(f"{name}.weight", vocab_size, shares.own)
        self._shares = shares
        self._features = features
        self._backend = backend
        self._tied_to = tied_to
        self._scale = scale
        self._table: torch.Tensor | None = None
        self._quant_method = quant_method
        self._quantized: LinearOp | None = None
        self._lora = lora
        if lora is not None:
            lora.embedding(self._rows, features, scale)

    def tensors(self) -> dict[str, tuple[int, ...]]:
        return {} if self._tied_to is not None else {self._rows.name: (self._rows.count, self._features.count)}

    def load(self, weights: Weights) -> None:
        if self._tied_to is not None:
            return
        if (shape := self._quantized_shape) is not None:
            self._quantized = self._quant_method.load(shape, weights, self._backend)
        else:
            table = weights.take_table(self._rows)
            padded = self._features.pad(table, 1, self._backend)
            self._table = table.clone() if padded is table else padded

    @property
    def _quantized_shape(self) -> LinearShape | None:
        """The linear layer whose weight is the table, if that stays quantized."""
        rows = replace(self._rows, name=self._rows.name.removesuffix(".weight"))
        outputs = Features(1, len(rows.rows), fixed=True)
        shape = LinearShape((rows,), self._features, outputs, bias=False)
        return shape if self._quant_method.keeps_table(shape) else None

    def weight_bytes(self, itemsize: int) -> int:
        if self._tied_to is not None or (shape := self._quantized_shape) is None:
            return super().weight_bytes(itemsize)
        return self._quant_method.weight_bytes(shape, itemsize)

    @property
    def num_weights(self) -> int:
        return 0 if self._tied_to is not None else len(self._rows.rows) * self._features.count

    @property
    def nbytes(self) -> int:
        kept = self._table if self._quantized is None else self._quantized
        return 0 if kept is None else kept.nbytes

    def __call__(self, indices: torch.Tensor) -> torch.Tensor:
        """[T, H] for ``indices`` [T] int64."""
        embedded = self._of_all(indices)
        return embedded if self._lora is None else self._lora.embed(indices, embedded)

    def _of_all(self, indices: torch.Tensor) -> torch.Tensor:
        if (others := self._shares.others) is None:
            return self._of_own(indices)
        own = self._shares.own
        rows = self._of_own((indices - own.start).clamp_(0, len(own) - 1))  # rows for other ranks' tokens are not used
        return others.gather_rows(rows, indices.to(torch.int32), self._shares.tokens)

    def _of_own(self, indices: torch.Tensor) -> torch.Tensor:
        """[T, H] for ``indices`` into this rank's rows."""
        if self._table is not None:
            rows = torch.nn.functional.embedding(indices, self._table).to(self._dtype)
        else:
            op = self._quantized if self._tied_to is None else self._tied_to.op
            assert op is not None
            rows = op.weight_rows(indices)
        # The scale is rounded to the rows' type, as in the models that have one.
        return rows if self._scale == 1.0 else rows.mul_(torch.tensor(self._scale, dtype=rows.dtype))
