"""Makes the parts of one model: the one place that knows the device's backends and the quantization."""

from __future__ import annotations

from typing import TypeVar

import torch

from engine_core.attention.base import AttentionBackend, AttentionOptions
from engine_core.layers.attention import Attention, HeadNormNames
from engine_core.layers.embedding import VocabParallelEmbedding
from engine_core.layers.features import Features, LinearShape
from engine_core.layers.fused_moe import ExpertTensors, FusedMoE, RouterTensors
from engine_core.layers.linear import ColumnParallelLinear, ParallelLMHead, SigmoidGate
from engine_core.layers.mla import MLAShape, MultiHeadLatentAttention
from engine_core.layers.norm import LayerNorm, RMSNorm
from engine_core.layers.part import Part
from engine_core.ops.base import ExpertsShape, HeadsShape, OpsBackend, Routing
from engine_core.quantization.base import QuantMethod, Unquantized

AnyPart = TypeVar("AnyPart", bound=Part)


class PartFactory:
    """Parts are made with their tensors' names in the checkpoint, such as ``model.layers.0.self_attn.o_proj``."""

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

    def linear(
        self,
        names: str | tuple[str, ...],
        inputs: int | Features,
        outputs: int | Features,
        *,
        bias: bool = False,
        rows: tuple[int, ...] | None = None,
    ) -> ColumnParallelLinear:
        """One projection, or several ``names`` of the same inputs as one, with the ``outputs`` of all side by side.

        ``rows`` are the outputs of each; equal shares of all unless given.
        """
        names = (names,) if isinstance(names, str) else names
        outputs = _features(outputs)
        rows = rows or (outputs.count // len(names),) * len(names)
        shape = LinearShape(names, rows, _features(inputs), outputs, bias)
        return self._add(ColumnParallelLinear(shape, self.backend, self._quant_method))

    def parallel_lm_head(self, name: str, vocab_size: int, hidden_size: int, bias: bool = False) -> ParallelLMHead:
        """The output projection; ``name`` is that of the embedding where the two are tied."""
        outputs = Features(1, vocab_size, fixed=True)
        shape = LinearShape((name,), (vocab_size,), Features(1, hidden_size), outputs, bias)
        return self._add(ParallelLMHead(shape, self.backend, self._quant_method))

    def sigmoid_gate(self, name: str, hidden_size: int) -> SigmoidGate:
        """The projection to one logit per row, whose sigmoid another block's output is multiplied by; it is never
        quantized.
        """
        shape = LinearShape((name,), (1,), Features(1, hidden_size), Features(1, 1, fixed=True), bias=False)
        return self._add(SigmoidGate(shape, self.backend, Unquantized()))

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

    def rms_norm(
        self,
        name: str | None,
        features: int | Features,
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
        features = _features(features)
        return self._add(RMSNorm(name, features, eps, self.backend, self.device, offset, tensor, scale))

    def layer_norm(self, name: str | None, features: int | Features, eps: float) -> LayerNorm:
        """Normalization over all ``features`` by mean and deviation, with a bias; without a name, weights are ones and
        biases zeros.
        """
        return self._add(LayerNorm(name, _features(features), eps, self.backend, self.device))

    def attention(
        self,
        shape: HeadsShape,
        options: AttentionOptions,
        norms: HeadNormNames | None = None,
        sinks: str | None = None,
    ) -> Attention:
        """Attention over heads that are normalized, where there are ``norms``, and rotated as ``shape`` says.

        ``sinks`` is the name of a tensor [Hq].
        """
        return self._add(Attention(shape, options, norms, sinks, self.backend, self.attention_backend))

    def latent_attention(self, name: str, shape: MLAShape, scale: float) -> MultiHeadLatentAttention:
        """Attention over latents; ``name`` is that of the projection from latents to keys and values."""
        return self._add(MultiHeadLatentAttention(name, shape, scale, self.backend, self.attention_backend))

    def fused_moe(
        self, shape: ExpertsShape, routing: Routing, router: RouterTensors, tensors: ExpertTensors
    ) -> FusedMoE:
        """A router and its experts."""
        return self._add(FusedMoE(shape, routing, router, tensors, self.backend, self._quant_method, self.dtype))

    def _add(self, part: AnyPart) -> AnyPart:
        self.parts.append(part)
        return part


def _features(features: int | Features) -> Features:
    """``features``, or one group of as many."""
    return Features(1, features) if isinstance(features, int) else features
