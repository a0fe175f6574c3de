"""Makes the parts of one model: the one place that knows the device's backends and the quantization."""

from __future__ import annotations

from typing import TypeVar

import torch

from engine_core.attention.base import AttentionBackend
from engine_core.layers.base import DecoderStack, LayerBackend
from engine_core.layers.parts import (
    Attention,
    ColumnParallelLinear,
    MergedColumnParallelLinear,
    ParallelLMHead,
    Part,
    QKVParallelLinear,
    RMSNorm,
    RotaryEmbedding,
    VocabParallelEmbedding,
)
from engine_core.quantization.base import Features, LinearShape, QuantMethod, Unquantized

AnyPart = TypeVar("AnyPart", bound=Part)


class LayerFactory:
    """``prefix`` is where a part's tensors are in the checkpoint, such as ``model.layers.0.self_attn``."""

    def __init__(
        self,
        backend: LayerBackend,
        attention: AttentionBackend,
        dtype: torch.dtype,
        device: torch.device,
        quant_method: QuantMethod | None = None,
    ) -> None:
        """``quant_method`` of all linear layers; None: they keep the model's type."""
        self.backend = backend
        self.dtype = dtype
        self.device = device
        self.parts: list[Part] = []
        """In the order in which they were made, and will be loaded."""
        self.attention_backend = attention
        self._quant_method = quant_method or Unquantized()

    def qkv_parallel_linear(
        self, prefix: str, hidden_size: int, num_heads: int, num_kv_heads: int, head_dim: int, bias: bool
    ) -> QKVParallelLinear:
        """``q_proj``, ``k_proj`` and ``v_proj`` as one."""
        names = tuple(f"{prefix}.{name}" for name in ("q_proj", "k_proj", "v_proj"))
        heads = (num_heads, num_kv_heads, num_kv_heads)
        rows = tuple(count * head_dim for count in heads)
        shape = LinearShape(names, rows, Features(1, hidden_size), Features(sum(heads), head_dim), bias)
        return self._add(QKVParallelLinear(shape, self.backend, self._quant_method))

    def merged_column_parallel_linear(
        self, prefix: str, names: tuple[str, ...], in_features: int, out_features: int, bias: bool
    ) -> MergedColumnParallelLinear:
        """Projections ``names`` of ``out_features`` each, as one."""
        shape = LinearShape(
            tuple(f"{prefix}.{name}" for name in names),
            (out_features,) * len(names),
            Features(1, in_features),
            Features(len(names), out_features),
            bias,
        )
        return self._add(MergedColumnParallelLinear(shape, self.backend, self._quant_method))

    def column_parallel_linear(
        self, name: str, inputs: Features, out_features: int, bias: bool
    ) -> ColumnParallelLinear:
        """One projection; ``inputs`` are heads, or one group."""
        shape = LinearShape((name,), (out_features,), inputs, Features(1, out_features), bias)
        return self._add(ColumnParallelLinear(shape, self.backend, self._quant_method))

    def parallel_lm_head(self, name: str, vocab_size: int, hidden_size: int) -> ParallelLMHead:
        """The output projection; ``name`` is that of the embedding where the two are tied."""
        outputs = Features(1, vocab_size, fixed=True)
        shape = LinearShape((name,), (vocab_size,), Features(1, hidden_size), outputs, bias=False)
        return self._add(ParallelLMHead(shape, self.backend, self._quant_method))

    def vocab_parallel_embedding(
        self, name: str, vocab_size: int, hidden_size: int, tied_to: ParallelLMHead | None
    ) -> VocabParallelEmbedding:
        """The token embedding, which uses the weight of ``tied_to`` if given."""
        return self._add(VocabParallelEmbedding(name, vocab_size, hidden_size, self.backend, tied_to))

    def rms_norm(self, name: str, features: Features, eps: float) -> RMSNorm:
        """Normalization over all ``features``."""
        return self._add(RMSNorm(name, features, eps, self.backend))

    def attention(
        self,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        sliding_window: int | None = None,
        norms: tuple[str, str] | None = None,
        eps: float = 0.0,
    ) -> Attention:
        """Rotary attention; ``norms`` are the names of the norms of queries and keys per head."""
        rotary = self._add(RotaryEmbedding(num_heads, num_kv_heads, head_dim, norms, eps, self.backend))
        return Attention(rotary, head_dim, sliding_window, self.attention_backend)

    def silu_and_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        """silu(gate) · up [T, I] of ``gate_up`` [T, 2 · I]."""
        return self.backend.silu_and_mul(gate_up)

    def select_rows(self, x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """``rows`` [R] int64 of ``x`` [T, N]."""
        return self.backend.select_rows(x, rows)

    def captured(self, stack: DecoderStack) -> DecoderStack:
        """A stack that computes the same as ``stack`` with less work in between."""
        return self.backend.captured(stack)

    def _add(self, part: AnyPart) -> AnyPart:
        self.parts.append(part)
        return part
