"""Multi-head latent attention (DeepSeek-AI, 2024, https://arxiv.org/abs/2405.04434), computed on the latents.

A token's keys and values are linear functions of one latent. The cache holds only it, and a rotated part that all heads
share. The projection from latents to keys is applied to the queries instead (it is *absorbed*), and that to values, to
the weighted sum of latents. Prompts are computed the same way: otherwise their bits would differ from those of the same
tokens decoded one by one. What adapters add to the projection is absorbed, too (``layers/lora_latents.py``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from engine_core.attention.base import AttentionBackend, AttentionOptions, RotaryOp
from engine_core.forward_context import LayerContext
from engine_core.layers.lora import LoRALayers
from engine_core.layers.lora_latents import LatentsShape
from engine_core.layers.part import Part
from engine_core.ops.base import GroupedLinearOp, HeadsShape, OpsBackend
from engine_core.quantization.base import QuantMethod
from engine_core.weights.features import Features
from engine_core.weights.source import TensorRows, Weights


@dataclass(frozen=True, slots=True)
class MLAShape:
    """Sizes of a layer's heads and latents."""

    num_heads: int
    kv_lora_rank: int
    """R: width of a latent."""
    qk_nope_head_dim: int
    """Width of the part of a head's key made from the latent."""
    qk_rope_head_dim: int
    """P: width of the rotated part of a key, which all heads share."""
    v_head_dim: int
    interleaved: bool

    @property
    def queries(self) -> Features:
        """Outputs of the query projection."""
        parts = (self.qk_nope_head_dim, self.qk_rope_head_dim)
        return Features(self.num_heads, sum(parts), parts=parts)


class MultiHeadLatentAttention(Part):
    """Attention of one layer over its latents; loads ``kv_b_proj``, expanded to the model's type."""

    def __init__(
        self,
        name: str,
        shape: MLAShape,
        heads: range,
        scale: float,
        ops: OpsBackend,
        attention: AttentionBackend,
        quant_method: QuantMethod,
        lora: LoRALayers | None = None,
    ) -> None:
        """``heads``: those that this rank has, of the heads of ``shape``. ``lora``: None: adapters add nothing."""
        of_head = shape.qk_nope_head_dim + shape.v_head_dim
        rows = range(heads.start * of_head, heads.stop * of_head)
        self._rows = TensorRows(name, shape.num_heads * of_head, rows)
        self._quant_method = quant_method
        shape = replace(shape, num_heads=len(heads))
        self.outputs_per_row = shape.num_heads * (2 * shape.kv_lora_rank + shape.qk_rope_head_dim)
        self._shape = shape
        self._options = AttentionOptions(scale)
        self._ops = ops
        self._attention = attention
        self._keys: GroupedLinearOp
        self._values: GroupedLinearOp
        self._lora = None if lora is None else lora.latents(self._latents)
        self._rotate_queries = self._rotation(shape.num_heads)
        self._rotate_keys = self._rotation(1)

    @property
    def _latents(self) -> LatentsShape:
        shape = self._shape
        return LatentsShape(self._rows, shape.kv_lora_rank, shape.qk_nope_head_dim, shape.v_head_dim)

    def _rotation(self, num_heads: int) -> RotaryOp:
        width = self._shape.qk_rope_head_dim
        return self._ops.rotary(HeadsShape(num_heads, 0, width, width, self._shape.interleaved), None)

    def tensors(self) -> dict[str, tuple[int, ...]]:
        return self._quant_method.tensors_of(self._rows, self._shape.kv_lora_rank)

    def load(self, weights: Weights) -> None:
        shape = self._shape
        taken = self._quant_method.take_expanded(self._rows, shape.kv_lora_rank, weights)
        of_heads = taken.view(shape.num_heads, -1, shape.kv_lora_rank)
        keys, values = torch.split(of_heads, [shape.qk_nope_head_dim, shape.v_head_dim], dim=1)
        self._keys = self._ops.grouped_linear(self._padded(keys).transpose(1, 2))
        self._values = self._ops.grouped_linear(self._padded(values))

    def _padded(self, weight: torch.Tensor) -> torch.Tensor:
        """``weight`` [Hq, N, R], padded with zeros along N and R."""
        _, rows, columns = weight.shape
        padded = self._ops.padded
        return torch.nn.functional.pad(weight, (0, padded(columns) - columns, 0, padded(rows) - rows))

    @property
    def num_weights(self) -> int:
        return len(self._rows.rows) * self._shape.kv_lora_rank

    @property
    def nbytes(self) -> int:
        return self._keys.nbytes + self._values.nbytes

    def __call__(
        self, queries: torch.Tensor, latent: torch.Tensor, rope: torch.Tensor, context: LayerContext
    ) -> torch.Tensor:
        """[T, Hq · V] for ``queries`` [T, Hq, nope + P]; writes ``latent`` [T, R] and ``rope`` [T, P] to the cache.

        Queries and ``rope`` come unrotated, and may be overwritten. All sizes are padded.
        """
        nope = self._ops.padded(self._shape.qk_nope_head_dim)
        absorbed = self._keys(queries[..., :nope])
        if self._lora is not None:
            self._lora.keys(queries[..., :nope], absorbed)
        query_rope, _, _ = self._rotate_queries(queries[..., nope:], context.angles)
        key_rope, _, _ = self._rotate_keys(rope.unsqueeze(1), context.angles)
        assert context.kv_cache is not None
        assert context.metadata is not None
        attended = self._attention.forward_latents(
            absorbed, query_rope, latent, key_rope.squeeze(1), context.kv_cache, context.metadata, self._options
        )
        values = self._values(attended)
        if self._lora is not None:
            self._lora.values(attended, values)
        return values.flatten(1)
