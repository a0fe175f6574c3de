"""Linear layers: projections, the output projection, and a gate.

With several ranks, every projection, even ``o_proj`` and ``down_proj``, is split along its outputs, so that each output
is one chain of additions whatever the number of ranks.
"""

from __future__ import annotations

import torch

from engine_core.distributed.ranks import SAMPLING_RANK
from engine_core.layers.lora import LoRALayers
from engine_core.layers.part import Part
from engine_core.layers.shares import GatheredOutputs, TokenShares
from engine_core.ops.base import Greatest, LinearOp, OpsBackend, greatest_of
from engine_core.ops.lora import LoRAOp
from engine_core.quantization.base import QuantMethod
from engine_core.weights.features import LinearShape
from engine_core.weights.source import Weights


class ColumnParallelLinear(Part):
    """y = x · Wᵀ + b."""

    op: LinearOp
    outputs_of: GatheredOutputs | None = None
    """How to gather the outputs of all ranks; None: the result has only this rank's."""

    def __init__(
        self, shape: LinearShape, backend: OpsBackend, quant_method: QuantMethod, lora: LoRALayers | None = None
    ) -> None:
        """``lora``: None if adapters cannot add to its outputs."""
        self.shape = shape
        self._lora = None if lora is None else self._adapted(lora)
        self.outputs_per_row = shape.outputs.count
        self._backend = backend
        self._quant_method = quant_method

    def _adapted(self, lora: LoRALayers) -> LoRAOp:
        return lora.linear(self.shape)

    def tensors(self) -> dict[str, tuple[int, ...]]:
        return self._quant_method.tensors(self.shape)

    def load(self, weights: Weights) -> None:
        self.op = self._quant_method.load(self.shape, weights, self._backend)

    def weight_bytes(self, itemsize: int) -> int:
        return self._quant_method.weight_bytes(self.shape, itemsize)

    @property
    def num_weights(self) -> int:
        return self.shape.num_weights

    @property
    def nbytes(self) -> int:
        return self.op.nbytes

    def __call__(self, x: torch.Tensor, residual: torch.Tensor | None = None, scale: float = 1.0) -> torch.Tensor:
        """[M, N]: ``x`` [M, K] projected, times ``scale``, plus ``residual`` [M, N], which may be overwritten."""
        if (parts := self.outputs_of) is None:
            return self._with_adapters(x, self.op(x, residual=residual, scale=scale), scale)
        # Each rank adds its columns of the residual before rounding the sum, as a single rank does.
        own = None if residual is None else residual[:, parts.columns]
        return parts.gather(self._with_adapters(x, self.op(x, residual=own, scale=scale), scale))

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        """[M, N] float32 for ``x`` [M, K]."""
        return self._with_adapters(x, self.op(x, dtype=torch.float32))

    def _with_adapters(self, x: torch.Tensor, y: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        """``y``, the outputs for ``x``, with what the rows' adapters add."""
        if self._lora is not None:
            self._lora(x, y, scale)
        return y


class ParallelLMHead(ColumnParallelLinear):
    """The output projection, in float32."""

    def __init__(
        self,
        shape: LinearShape,
        backend: OpsBackend,
        quant_method: QuantMethod,
        shares: TokenShares,
        lora: LoRALayers | None = None,
    ) -> None:
        super().__init__(shape, backend, quant_method, lora)
        self.shares = shares
        self._layers = lora

    def _adapted(self, lora: LoRALayers) -> LoRAOp:
        return lora.head(self.shape)

    def _with_adapters(self, x: torch.Tensor, y: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        own = y if self._layers is None else self._layers.replace_logits(x, y)
        return super()._with_adapters(x, own, scale)

    def gathered(self, logits: torch.Tensor) -> torch.Tensor:
        """[R, V] from each rank's ``logits`` [R, its tokens]; only the rank that samples may read or change them."""
        if (others := self.shares.others) is None:
            return logits
        return others.all_gather(logits, [len(tokens) for tokens in self.shares.tokens], writer=SAMPLING_RANK)

    @property
    def masks_argmax(self) -> bool:
        """Whether ``greatest`` takes ``allowed``: if this rank has all tokens, and its kernel takes it."""
        return self.shares.others is None and self.op.masks_argmax

    def greatest(self, hidden: torch.Tensor, allowed: torch.Tensor | None = None) -> Greatest:
        """As ``LanguageModel.greatest``."""
        if (others := self.shares.others) is None:
            return self.op.greatest(hidden, allowed)
        assert allowed is None
        ids, values = self.op.greatest(hidden)
        bits = values.view(torch.int32).to(torch.int64)
        pairs = others.all_gather(torch.stack([ids + self.shares.own.start, bits], 1), [2] * len(self.shares.tokens))
        found = pairs.view(len(hidden), -1, 2)
        best, values = greatest_of(found[..., 1].to(torch.int32).view(torch.float32))
        return Greatest(found[torch.arange(len(hidden), device=found.device), best, 0], values)


class SigmoidGate(ColumnParallelLinear):
    """A projection to one logit per row, whose sigmoid scales another block's row."""

    def add_gated(self, x: torch.Tensor, gated: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """``residual`` + ``gated`` · σ(logit of each row of ``x``); all [T, H]."""
        return self._backend.add_gated(gated, self.logits(x), residual)
