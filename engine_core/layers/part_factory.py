"""Makes the parts of one model: the one place that knows the device's backends and the quantization."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import accumulate
from typing import TypeVar

import torch

from engine_core.attention.base import AttentionBackend, AttentionOptions
from engine_core.distributed.collectives import TensorCollectives
from engine_core.distributed.ranks import Rank
from engine_core.kv_cache_interface import RecurrentSpec
from engine_core.layers.altup import AltUp, AltUpShape
from engine_core.layers.attention import Attention, HeadNormNames
from engine_core.layers.convolution import Convolution, ConvolutionShape, LearnedTensors
from engine_core.layers.embedding import VocabParallelEmbedding
from engine_core.layers.float32_linear import Float32Linear, TokenRowsLinear
from engine_core.layers.fused_moe import FusedMoE, RoutedExperts, RouterTensors
from engine_core.layers.linear import ColumnParallelLinear, ParallelLMHead, SigmoidGate
from engine_core.layers.lora import LoRALayers
from engine_core.layers.mla import MLAShape, MultiHeadLatentAttention
from engine_core.layers.norm import HeadsRMSNorm, LayerNorm, RMSNorm
from engine_core.layers.part import Part
from engine_core.layers.shares import Shares
from engine_core.layers.states import (
    Channels,
    GatedRMSNorm,
    Recurrence,
    RecurrenceTensors,
    RecurrentHeads,
    ShortConvolution,
)
from engine_core.ops.base import HeadsShape, OpsBackend, Routing
from engine_core.quantization.base import OneMethod, QuantizationConfig, Unquantized
from engine_core.weights.expert_tensors import ExpertTensors
from engine_core.weights.experts import ExpertsShape
from engine_core.weights.features import Features, LinearShape, rows_of
from engine_core.weights.source import TensorRows

AnyPart = TypeVar("AnyPart", bound=Part)


class PartFactory:
    """Parts are made with their tensors' names in the checkpoint, such as ``model.layers.0.self_attn.o_proj``."""

    def __init__(
        self,
        backend: OpsBackend,
        attention: AttentionBackend,
        dtype: torch.dtype,
        device: torch.device,
        quantization: QuantizationConfig | None = None,
        rank: Rank | None = None,
        collectives: TensorCollectives | None = None,
        *,
        enable_lora: bool = False,
    ) -> None:
        """``quantization``: of the linear layers; None: they keep the model's type. ``enable_lora``: whether
        adapters may add to their outputs.

        Makes the parts of ``rank``, if given; computing with them then needs ``collectives``.
        """
        self.rank = rank or Rank()
        self.shares = Shares(self.rank, collectives, backend)
        self.backend = backend
        self.dtype = dtype
        self.device = device
        self.parts: list[Part] = []
        """In the order of creation, which is that of loading."""
        self.attention_backend = attention
        self.lora = LoRALayers(backend, dtype) if enable_lora else None
        """What adapters may add to; None: nothing."""
        self._quantization = quantization or OneMethod(Unquantized())

    def replicated(self, quantization: QuantizationConfig | None) -> PartFactory:
        """Makes parts of the same model that every rank has as a whole; ``quantization``: of their linear layers."""
        factory = PartFactory(self.backend, self.attention_backend, self.dtype, self.device, quantization)
        factory.parts = self.parts
        return factory

    def linear(
        self,
        names: str | tuple[str, ...],
        inputs: int | Features,
        outputs: int | Features,
        *,
        bias: bool = False,
        rows: tuple[int, ...] | None = None,
    ) -> ColumnParallelLinear:
        """One projection, or several ``names`` with the same inputs as one, with ``outputs`` side by side.

        ``rows``: outputs of each name; by default equal shares. Every rank computes its part of the outputs, and
        returns all.
        """
        outputs = _features(outputs)
        taken, own, widths = self.shares.of_outputs(outputs)
        linear = self._linear(names, inputs, outputs.count, own, [taken], bias, rows)
        linear.outputs_of = self.shares.gather(widths)
        return linear

    def replicated_linear(
        self, names: tuple[str, ...], inputs: int, outputs: Features, *, bias: bool = False, rows: tuple[int, ...]
    ) -> ColumnParallelLinear:
        """Like ``linear``, but every rank computes all outputs."""
        return self._linear(names, inputs, outputs.count, outputs, [range(outputs.count)], bias, rows)

    def qkv_linear(
        self,
        names: tuple[str, ...],
        inputs: int | Features,
        shape: HeadsShape,
        *,
        bias: bool = False,
        gated: bool = False,
    ) -> ColumnParallelLinear:
        """Queries, keys and values of this rank's heads, from three tensors or one. ``gated``: each query is followed
        by a gate of the same width; gates come last.
        """
        own, width = self.shares.of_heads(shape), shape.head_dim
        counts = (shape.num_heads, shape.num_kv_heads, shape.num_kv_heads)[: 3 if shape.num_kv_heads else 1]
        queries = self.shares.query_heads(shape)
        heads = (queries, *[self.shares.kv_heads(shape)] * 2)
        if gated:
            counts = (2 * counts[0], *counts[1:])
        taken = [
            range((before + each.start) * width, (before + each.stop) * width)
            for before, each in zip(accumulate(counts, initial=0), heads[: len(counts)], strict=False)
        ]
        if gated:
            firsts = [2 * head * width for head in queries]
            taken[:1] = [range(first, first + width) for first in firsts]
            taken += [range(first + width, first + 2 * width) for first in firsts]
        rows = tuple(count * width for count in counts) if len(names) == len(counts) else None
        outputs = Features(own.num_heads * (2 if gated else 1) + 2 * own.num_kv_heads, width)
        return self._linear(names, inputs, sum(counts) * width, outputs, taken, bias, rows)

    def heads_linear(self, name: str, inputs: int, outputs: Features) -> ColumnParallelLinear:
        """The outputs of this rank's heads; the groups of ``outputs`` are all heads."""
        heads = self.shares.groups(outputs.groups)
        taken = range(heads.start * outputs.size, heads.stop * outputs.size)
        return self._linear(name, inputs, outputs.count, replace(outputs, groups=len(heads)), [taken], False, None)

    def merged_linear(
        self, names: tuple[str, ...], inputs: int, size: int, *, bias: bool = False
    ) -> ColumnParallelLinear:
        """Gate and up, ``size`` outputs each, from two tensors or one: this rank's part of both."""
        own = self.shares.columns(size)
        taken = [range(before + own.start, before + own.stop) for before in (0, size)]
        return self._linear(names, inputs, 2 * size, Features(2, len(own)), taken, bias, None)

    def _linear(
        self,
        names: str | tuple[str, ...],
        inputs: int | Features,
        count: int,
        outputs: Features,
        taken: list[range],
        bias: bool,
        rows: tuple[int, ...] | None,
    ) -> ColumnParallelLinear:
        """``outputs`` are the rows ``taken`` from the ``count`` rows of all tensors."""
        names = (names,) if isinstance(names, str) else names
        pieces = rows_of(names, rows or (count // len(names),) * len(names), taken)
        shape = LinearShape(pieces, _features(inputs), outputs, bias)
        return self._add(ColumnParallelLinear(shape, self.backend, self._quantization.method(names), self.lora))

    def parallel_lm_head(self, name: str, vocab_size: int, hidden_size: int, bias: bool = False) -> ParallelLMHead:
        """The output projection; ``name`` is that of the embedding if the two are tied."""
        tokens = self.shares.columns(vocab_size)
        shape = LinearShape(
            (TensorRows(name, vocab_size, tokens),),
            Features(1, hidden_size),
            Features(1, len(tokens), fixed=True),
            bias,
        )
        method = self._quantization.method((name,))
        shares = self.shares.of_tokens(vocab_size)
        return self._add(ParallelLMHead(shape, self.backend, method, shares, self.lora))

    def float32_linear(self, name: str, inputs: int, outputs: int, *, bias: bool = False) -> Float32Linear:
        """A layer of few rows behind the model, in float32: whole on every rank, and never quantized."""
        return self._add(Float32Linear(name, inputs, outputs, self.backend, bias=bias))

    def token_rows_linear(
        self, tensor: str, vocab_size: int, inputs: int, token_ids: tuple[int, ...]
    ) -> TokenRowsLinear:
        """As ``TokenRowsLinear``."""
        return self._add(TokenRowsLinear(tensor, vocab_size, inputs, token_ids, self.backend))

    def sigmoid_gate(self, name: str, hidden_size: int) -> SigmoidGate:
        """A projection to one logit per row, whose sigmoid multiplies another block's output; never quantized."""
        shape = LinearShape.of(name, Features(1, hidden_size), Features(1, 1, fixed=True))
        return self._add(SigmoidGate(shape, self.backend, self._quantization.method((name,)).expanding, self.lora))

    def vocab_parallel_embedding(
        self,
        name: str,
        vocab_size: int,
        hidden_size: int,
        tied_to: ParallelLMHead | None = None,
        scale: float = 1.0,
        groups: int = 1,
        *,
        of_tokens: bool = True,
    ) -> VocabParallelEmbedding:
        """A table of embeddings, times ``scale``; the weight of ``tied_to`` if given.

        An embedding has ``groups`` parts of width ``hidden_size``. ``of_tokens``: it is the model's input, which
        adapters may change.
        """
        features, shares = Features(groups, hidden_size), self.shares.of_tokens(vocab_size)
        lora = self.lora if of_tokens else None
        method = self._quantization.method((name,))
        return self._add(
            VocabParallelEmbedding(
                name, vocab_size, features, self.backend, self.dtype, tied_to, scale, shares, method, lora
            )
        )

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
        """RMS norm over all ``features``; ``offset`` is added to the weights, which are ones without a name.

        ``tensor``: the name of the weights below ``name``. ``scale``: factor for the output, residual included; a
        number, or the name of a tensor [1].
        """
        features = _features(features)
        return self._add(RMSNorm(name, features, eps, self.backend, self.device, offset, tensor, scale))

    def heads_rms_norm(self, name: str, features: Features, eps: float) -> HeadsRMSNorm:
        """RMS norm over all ``features``, the queries or keys of a row; normalizes this rank's."""
        own = self.shares.own_heads(features)
        return self._add(HeadsRMSNorm(name, features, eps, self.backend, self.device, own))

    def layer_norm(self, name: str | None, features: int | Features, eps: float, *, bias: bool = True) -> LayerNorm:
        """Layer norm over all ``features``; without a name, weights are ones, and without a ``bias``, biases zeros."""
        return self._add(LayerNorm(name, _features(features), eps, self.backend, self.device, bias=bias))

    def convolution(self, name: str, shape: ConvolutionShape) -> Convolution:
        return self._add(Convolution(name, shape, self.backend))

    def learned(self, shapes: Mapping[str, tuple[int, ...]]) -> LearnedTensors:
        """Tensors of those ``shapes``, by name, whose last dimension is padded."""
        return self._add(LearnedTensors(shapes, self.backend))

    def altup(self, name: str, shape: AltUpShape, norm: RMSNorm) -> AltUp:
        """The coefficients of a layer's streams; ``norm`` is of the router's input."""
        method = self._quantization.method((f"{name}.modality_router",))
        return self._add(AltUp(name, shape, norm, self.backend, method, self.lora))

    def attention(
        self,
        shape: HeadsShape,
        options: AttentionOptions,
        norms: HeadNormNames | None = None,
        sinks: str | None = None,
    ) -> Attention:
        """Attention over this rank's heads, normalized by ``norms``, if any, and rotated as in ``shape``.

        ``shape``: of all heads. ``sinks``: the name of a tensor [Hq].
        """
        own = self.shares.of_heads(shape)
        of_heads = None if sinks is None else TensorRows(sinks, shape.num_heads, self.shares.query_heads(shape))
        return self._add(Attention(own, options, norms, of_heads, self.backend, self.attention_backend, self.device))

    def latent_attention(self, name: str, shape: MLAShape, scale: float) -> MultiHeadLatentAttention:
        """Attention of this rank's heads over latents. ``name``: the projection from latents to keys and values.
        ``shape``: of all heads.
        """
        heads, method = self.shares.groups(shape.num_heads), self._quantization.method((name,))
        return self._add(
            MultiHeadLatentAttention(name, shape, heads, scale, self.backend, self.attention_backend, method, self.lora)
        )

    def rows_linear(
        self,
        names: tuple[str, ...],
        inputs: int | Features,
        outputs: Features,
        taken: list[range],
        *,
        rows: tuple[int, ...],
        bias: bool = False,
    ) -> ColumnParallelLinear:
        """The ``outputs`` of this rank: the rows ``taken``, in that order, of ``names`` with so many ``rows`` each.

        Ranks do not gather them.
        """
        return self._linear(names, inputs, sum(rows), outputs, taken, bias, rows)

    def short_convolution(
        self, name: str, channels: Channels, taps: int, *, bias: bool = False, silu: bool = False
    ) -> ShortConvolution:
        return self._add(ShortConvolution(name, channels, taps, self.backend, bias=bias, silu=silu))

    def recurrent_heads(self, spec: RecurrentSpec) -> RecurrentHeads:
        """The heads of a layer with the state ``spec``, which is that of all ranks."""
        heads = HeadsShape(spec.num_heads, spec.num_key_heads, spec.value_dim, rotary_dim=0)
        return RecurrentHeads(
            spec.num_key_heads,
            spec.num_heads,
            spec.key_dim,
            spec.value_dim,
            self.shares.kv_heads(heads),
            self.shares.query_heads(heads),
            self.shares.gather_heads(spec.num_heads, spec.value_dim),
        )

    def recurrence(
        self,
        tensors: RecurrenceTensors,
        heads: RecurrentHeads,
        *,
        query_scale: float = 1.0,
        normalize_eps: float | None = None,
        step_limits: tuple[float, float] = (0.0, float("inf")),
    ) -> Recurrence:
        """Options as in ``RecurrenceParameters``."""
        return self._add(
            Recurrence(
                tensors,
                heads.num_heads,
                heads.own_heads,
                self.backend,
                query_scale=query_scale,
                normalize_eps=normalize_eps,
                step_limits=step_limits,
            )
        )

    def gated_rms_norm(
        self,
        name: str,
        groups: int,
        features: Features,
        own: range,
        eps: float,
        *,
        norm_before_gate: bool,
        shared_weight: bool = False,
    ) -> GatedRMSNorm:
        """As ``GatedRMSNorm``."""
        return self._add(
            GatedRMSNorm(
                name,
                groups,
                features,
                own,
                eps,
                self.backend,
                norm_before_gate=norm_before_gate,
                shared_weight=shared_weight,
            )
        )

    def fused_moe(
        self, shape: ExpertsShape, routing: Routing, router: RouterTensors, tensors: ExpertTensors
    ) -> FusedMoE:
        """A router and its experts."""
        of_router, of_experts = (self._quantization.method((name,)) for name in (router.gate, tensors.prefix))
        return self._add(
            FusedMoE(shape, routing, router, tensors, self.backend, of_experts, self.shares, of_router, self.lora)
        )

    def routed_experts(self, shape: ExpertsShape, tensors: ExpertTensors) -> RoutedExperts:
        """Experts without a router."""
        method = self._quantization.method((tensors.prefix,))
        return self._add(RoutedExperts(shape, tensors, self.backend, method, self.shares, self.lora))

    def _add(self, part: AnyPart) -> AnyPart:
        self.parts.append(part)
        return part


def _features(features: int | Features) -> Features:
    """``features``; a number becomes one group."""
    return Features(1, features) if isinstance(features, int) else features
