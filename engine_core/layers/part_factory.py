"""Makes the parts of one model: the one place that knows the device's backends and the quantization."""

from __future__ import annotations

from typing import TypeVar

import torch

from engine_core.attention.base import AttentionBackend, AttentionOptions
from engine_core.layers.fused_moe import ExpertTensors, FusedMoE, RouterTensors
from engine_core.layers.mla import MLAShape, MultiHeadLatentAttention
from engine_core.layers.parts import (
    Attention,
    AttentionSinks,
    ColumnParallelLinear,
    HeadNormNames,
    LayerNorm,
    MergedColumnParallelLinear,
    ParallelLMHead,
    Part,
    QKVParallelLinear,
    RMSNorm,
    RotaryEmbedding,
    RowGate,
    VocabParallelEmbedding,
)
from engine_core.ops.activation import Activation
from engine_core.ops.base import DecoderStack, ExpertsShape, HeadsShape, OpsBackend, Routing
from engine_core.quantization.base import Features, LinearShape, QuantMethod, Unquantized

AnyPart = TypeVar("AnyPart", bound=Part)


class PartFactory:
    """``prefix`` is where a part's tensors are in the checkpoint, such as ``model.layers.0.self_attn``."""

    def __init__(
        self,
        backend: OpsBackend,
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
        self,
        prefix: str,
        hidden_size: int,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        bias: bool,
        names: tuple[str, ...] = ("q_proj", "k_proj", "v_proj"),
    ) -> QKVParallelLinear:
        """Queries, keys and values as one projection; ``names`` has one entry where a checkpoint has one, too."""
        heads = (num_heads, num_kv_heads, num_kv_heads)
        rows = tuple(count * head_dim for count in heads) if len(names) == len(heads) else (sum(heads) * head_dim,)
        names = tuple(f"{prefix}.{name}" for name in names)
        shape = LinearShape(names, rows, Features(1, hidden_size), Features(sum(heads), head_dim), bias)
        return self._add(QKVParallelLinear(shape, self.backend, self._quant_method))

    def merged_column_parallel_linear(
        self, prefix: str, names: tuple[str, ...], in_features: int, out_features: int, bias: bool
    ) -> MergedColumnParallelLinear:
        """A gate and another projection, of ``out_features`` each, as one; ``names`` has one entry where a checkpoint
        has them as one, too.
        """
        shape = LinearShape(
            tuple(f"{prefix}.{name}" for name in names),
            (2 * out_features // len(names),) * len(names),
            Features(1, in_features),
            Features(2, out_features),
            bias,
        )
        return self._add(MergedColumnParallelLinear(shape, self.backend, self._quant_method))

    def column_parallel_linear(
        self, name: str, inputs: Features, out_features: int, bias: bool, *, fixed: bool = False
    ) -> ColumnParallelLinear:
        """One projection; ``inputs`` are heads, or one group. ``fixed``: its outputs are never padded."""
        shape = LinearShape((name,), (out_features,), inputs, Features(1, out_features, fixed), bias)
        return self._add(ColumnParallelLinear(shape, self.backend, self._quant_method))

    def parallel_lm_head(self, name: str, vocab_size: int, hidden_size: int, bias: bool = False) -> ParallelLMHead:
        """The output projection; ``name`` is that of the embedding where the two are tied."""
        outputs = Features(1, vocab_size, fixed=True)
        shape = LinearShape((name,), (vocab_size,), Features(1, hidden_size), outputs, bias)
        return self._add(ParallelLMHead(shape, self.backend, self._quant_method))

    def vocab_parallel_embedding(
        self,
        name: str,
        vocab_size: int,
        hidden_size: int,
        tied_to: ParallelLMHead | None = None,
        scale: float = 1.0,
        groups: int = 1,
    ) -> VocabParallelEmbedding:
        """A table of embeddings, times ``scale``; it is the weight of ``tied_to`` if given.

        An embedding has ``groups`` parts of ``hidden_size`` numbers.
        """
        features = Features(groups, hidden_size)
        return self._add(VocabParallelEmbedding(name, vocab_size, features, self.backend, self.dtype, tied_to, scale))

    def latent_attention(self, name: str, shape: MLAShape, scale: float) -> MultiHeadLatentAttention:
        """Attention over latents; ``name`` is that of the projection from latents to keys and values."""
        return self._add(MultiHeadLatentAttention(name, shape, scale, self.backend, self.attention_backend))

    def linear(
        self, names: tuple[str, ...], rows: tuple[int, ...], inputs: Features, outputs: Features, *, bias: bool
    ) -> ColumnParallelLinear:
        """Projections ``names`` of ``rows`` outputs each, as one; ``outputs`` says how the outputs are padded."""
        shape = LinearShape(names, rows, inputs, outputs, bias)
        return self._add(ColumnParallelLinear(shape, self.backend, self._quant_method))

    def fused_moe(
        self, shape: ExpertsShape, routing: Routing, router: RouterTensors, tensors: ExpertTensors
    ) -> FusedMoE:
        """A router and its experts."""
        return self._add(FusedMoE(shape, routing, router, tensors, self.backend, self._quant_method, self.dtype))

    def row_gate(self, name: str, inputs: Features) -> RowGate:
        """The projection to one logit per row, whose sigmoid another block's output is multiplied by."""
        return self._add(RowGate(name, inputs, self.backend))

    def rms_norm(
        self,
        name: str | None,
        features: Features,
        eps: float,
        offset: float = 0.0,
        *,
        tensor: str = "weight",
        scale: float | str = 1.0,
    ) -> RMSNorm:
        """Normalization over all ``features``; ``offset`` is added to the weights, which are ones without a name.

        ``tensor`` is what the checkpoint calls the weights of ``name``. ``scale`` is a factor of what is put out, the
        residual included: a number, or the name of a tensor [1].
        """
        return self._add(RMSNorm(name, features, eps, self.backend, self.device, offset, tensor, scale))

    def layer_norm(self, name: str | None, features: Features, eps: float) -> LayerNorm:
        """Normalization over all ``features`` by mean and deviation, with a bias; without a name, weights are ones and
        biases zeros.
        """
        return self._add(LayerNorm(name, features, eps, self.backend, self.device))

    def attention(
        self,
        shape: HeadsShape,
        sliding_window: int | None = None,
        norms: HeadNormNames | None = None,
        *,
        scale: float | None = None,
        logit_softcap: float | None = None,
        sinks: str | None = None,
    ) -> Attention:
        """Attention over heads that are normalized, where there are ``norms``, and rotated as ``shape`` says.

        ``scale`` is 1 / √head size unless given; ``sinks`` is the name of a tensor [Hq].
        """
        rotary = self._add(RotaryEmbedding(shape, norms, self.backend))
        options = AttentionOptions(scale or shape.head_dim**-0.5, sliding_window, logit_softcap)
        part = None if sinks is None else self._add(AttentionSinks(sinks, shape.num_heads))
        return Attention(rotary, options, part, self.attention_backend)

    def act_and_mul(self, gate_up: torch.Tensor, activation: Activation) -> torch.Tensor:
        """f(gate) · up [T, I] of ``gate_up`` [T, 2 · I]."""
        return self.backend.act_and_mul(gate_up, activation)

    def activate(self, x: torch.Tensor, activation: Activation, up: torch.Tensor | None = None) -> torch.Tensor:
        """f(x) [T, I] of ``x`` [T, I], times ``up`` [T, I] if given; the rows of both may lie apart."""
        return self.backend.activate(x, activation, up)

    def select_rows(self, x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """``rows`` [R] int64 of ``x`` [T, N], whose rows may lie apart."""
        return self.backend.select_rows(x, rows)

    def captured(self, stack: DecoderStack) -> DecoderStack:
        """A stack that computes the same as ``stack`` with less work in between."""
        return self.backend.captured(stack)

    def _add(self, part: AnyPart) -> AnyPart:
        self.parts.append(part)
        return part
