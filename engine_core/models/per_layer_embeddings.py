"""Per-layer embeddings: what every layer is given of a token besides hidden states (Gemma 3n and 4).

A second table has a short embedding of each token for every layer. To it a projection of the token's own embedding is
added, and after each layer the sum goes through a gate into the residual. Symbols in shapes: T rows of a step, R rows
that are wanted, H hidden size, L layers of the model, P numbers of a layer's embedding, padded.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engine_core.layers.part_factory import PartFactory
from engine_core.layers.parts import ColumnParallelLinear, RMSNorm
from engine_core.ops.activation import Activation
from engine_core.quantization.base import Features


@dataclass(frozen=True, slots=True)
class PerLayerShape:
    """Sizes of a model's embeddings."""

    vocab_size: int
    hidden_size: int
    num_layers: int
    size: int
    """P, without padding."""
    activation: Activation
    norm_eps: float


@dataclass(frozen=True, slots=True)
class _Gate:
    """How one layer takes its embedding."""

    gate: ColumnParallelLinear
    projection: ColumnParallelLinear
    norm: RMSNorm


class PerLayerEmbeddings:
    """The table, the projection, and the gates of all layers."""

    def __init__(self, shape: PerLayerShape, prefix: str, layers: PartFactory) -> None:
        """``prefix`` is that of all tensors of the model; each layer has a ``layer_scalar`` after its gate."""
        self._shape = shape
        self._layers = layers
        self._table = layers.vocab_parallel_embedding(
            f"{prefix}.embed_tokens_per_layer",
            shape.vocab_size,
            shape.size,
            scale=shape.size**0.5,
            groups=shape.num_layers,
        )
        self._projection = layers.linear(
            (f"{prefix}.per_layer_model_projection",),
            (shape.num_layers * shape.size,),
            Features(1, shape.hidden_size),
            Features(shape.num_layers, shape.size),
            bias=False,
        )
        self._norm = layers.rms_norm(
            f"{prefix}.per_layer_projection_norm", Features(1, shape.size), shape.norm_eps, scale=2**-0.5
        )
        self._gates = [self._gate(f"{prefix}.layers.{index}") for index in range(shape.num_layers)]

    def _gate(self, prefix: str) -> _Gate:
        shape, layers = self._shape, self._layers
        hidden, own = Features(1, shape.hidden_size), Features(1, shape.size)
        return _Gate(
            layers.column_parallel_linear(f"{prefix}.per_layer_input_gate", hidden, shape.size, bias=False),
            layers.column_parallel_linear(f"{prefix}.per_layer_projection", own, shape.hidden_size, bias=False),
            layers.rms_norm(
                f"{prefix}.post_per_layer_input_norm", hidden, shape.norm_eps, scale=f"{prefix}.layer_scalar"
            ),
        )

    def of_tokens(self, input_ids: torch.Tensor) -> torch.Tensor:
        """[T, L · P] of ``input_ids`` [T] int64: rows of the table, scaled."""
        return self._table(input_ids)

    def of_layers(self, of_tokens: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        """[T, L, P] of ``of_tokens`` [T, L · P] and the embeddings ``hidden`` [T, H] that the first layer takes."""
        of_layers = len(hidden), self._shape.num_layers, -1
        projected = self._projection(hidden, scale=self._shape.hidden_size**-0.5)
        return self._norm(projected.view(of_layers), of_tokens.view(of_layers))

    def add(self, index: int, hidden: torch.Tensor, given: torch.Tensor, rows: torch.Tensor | None) -> torch.Tensor:
        """What layer ``index`` puts out, from ``hidden`` and what ``of_layers`` made.

        ``hidden`` is [R, H], of the ``rows`` [R] of a step, or [T, H] of all.
        """
        gate, own = self._gates[index], given[:, index]
        own = own if rows is None else self._layers.select_rows(own, rows)
        gated = self._layers.activate(gate.gate(hidden), self._shape.activation, own)
        return gate.norm(gate.projection(gated), hidden)
