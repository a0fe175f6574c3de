"""Gemma 3n's text model: several residual streams, learned residuals beside attention, sparse activations; and, as in
Gemma 4, caches shared between layers and per-layer embeddings.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from transformers import PretrainedConfig

from engine_core.errors import CheckpointError
from engine_core.forward_context import ForwardContext, IntermediateTensors, LayerContext, LayerPlace
from engine_core.kv_cache_interface import AttentionSpec
from engine_core.layers.altup import AltUpShape
from engine_core.layers.norm import RMSNorm
from engine_core.layers.part_factory import PartFactory
from engine_core.models.blocks import GatedMLP, SelfAttention
from engine_core.models.causal_lm import CausalLM
from engine_core.models.gemma4 import (
    Gemma4Config,
    Gemma4ForCausalLM,
    PerLayerEmbeddings,
    PerLayerShape,
    shared_cache_owners,
)
from engine_core.models.layered_model import DecoderLayer
from engine_core.models.model_config import (
    MOST_LAYERS,
    common_fields,
    layer_types,
    optional_number,
    positive,
    whole_number,
    windows_of_layers,
)
from engine_core.ops.base import DecoderStack
from engine_core.weights.features import Features

_MOST_STREAMS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Gemma3nConfig(Gemma4Config):
    """``intermediate_size`` is the largest of the layers'."""

    per_layer: PerLayerShape
    altup: AltUpShape
    laurel_rank: int
    intermediate_sizes: tuple[int, ...]
    sparsities: tuple[float, ...]
    """Per layer, the share of gates that is cut off, if they are distributed normally; 0: none."""

    def _shared_widths(self, expert_parallel: bool) -> dict[str, int]:
        widths = Gemma4Config._shared_widths(self, expert_parallel)
        return widths | {"intermediate_size": min(self.intermediate_sizes)}


class Laurel:
    """A learned augmented residual (LAuReL, https://arxiv.org/abs/2411.07501): a projection of low rank."""

    def __init__(self, config: Gemma3nConfig, prefix: str, parts: PartFactory) -> None:
        """The norm's scale is that of the sum with its residual."""
        hidden, rank = config.hidden_size, config.laurel_rank
        self.linear_left = parts.linear(f"{prefix}.linear_left", hidden, rank)
        self.linear_right = parts.linear(f"{prefix}.linear_right", rank, hidden)
        self.norm = parts.rms_norm(f"{prefix}.post_laurel_norm", hidden, config.norm_eps, scale=2**-0.5)

    def __call__(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        return self.norm(self.linear_right(self.linear_left(x)), residual=residual)


class Gemma3nLayer:
    """Attention beside a learned residual, then a feed-forward block, for the active stream; then the per-layer
    embedding of each token, for the others.
    """

    def __init__(self, config: Gemma3nConfig, index: int, prefix: str, parts: PartFactory, place: int) -> None:
        """``place``: the layer's index in ``context.per_layer``."""

        def norm(name: str, scale: float = 1.0) -> RMSNorm:
            return parts.rms_norm(f"{prefix}.{name}", hidden, config.norm_eps, scale=scale)

        hidden, per_layer = config.hidden_size, config.per_layer.size
        self.altup = parts.altup(f"{prefix}.altup", config.altup, norm("altup.router_norm", 1 / hidden))
        self.input_layernorm = norm("input_layernorm")
        self.post_attention_layernorm = norm("post_attention_layernorm")
        self.pre_feedforward_layernorm = norm("pre_feedforward_layernorm")
        self.post_feedforward_layernorm = norm("post_feedforward_layernorm")
        self.laurel = Laurel(config, f"{prefix}.laurel", parts)
        self.self_attn = SelfAttention(config, index, f"{prefix}.self_attn", parts, normalize_values=True)
        size, sparsity = config.intermediate_sizes[index], config.sparsities[index]
        self.mlp = GatedMLP(config, f"{prefix}.mlp", parts, intermediate_size=size, sparsity=sparsity)
        self.per_layer_input_gate = parts.linear(f"{prefix}.per_layer_input_gate", hidden, per_layer)
        self.per_layer_projection = parts.linear(f"{prefix}.per_layer_projection", per_layer, hidden)
        self.post_per_layer_input_norm = norm("post_per_layer_input_norm")
        self._num_streams = config.altup.num_streams
        self._place = place
        self._activation = config.activation
        self._activate, self._select_rows = parts.backend.activate, parts.backend.select_rows
        self._add_to_others = parts.backend.stream_ops().add_to_others

    def __call__(self, hidden: torch.Tensor, context: LayerContext) -> torch.Tensor:
        """``hidden`` [T, n · H]: the streams side by side."""
        predicted, active = self.altup.predict(hidden.view(len(hidden), self._num_streams, -1))
        x = self.input_layernorm(active)
        # The sum of both: the residual of attention, and that of the learned one.
        both = self.input_layernorm(active, residual=active)
        attended = self.self_attn(x, context)
        x, both, streams = (self._select_rows(each, context.rows) for each in (x, both, predicted.flatten(1)))
        predicted = streams.view(len(streams), *predicted.shape[1:])
        active = self.laurel(x, residual=self.post_attention_layernorm(attended, residual=both))
        computed = self.mlp(self.pre_feedforward_layernorm(active))
        computed = self.post_feedforward_layernorm(computed, residual=active)
        corrected, active = self.altup.correct(predicted, computed)
        return self._add_to_others(corrected, self._of_layer(active, context)).flatten(1)

    def _of_layer(self, x: torch.Tensor, context: LayerContext) -> torch.Tensor:
        """The per-layer embeddings through a gate, which ``x`` opens."""
        assert context.per_layer is not None
        given = self._select_rows(context.per_layer[:, self._place], context.rows)
        gated = self._activate(self.per_layer_input_gate(x), self._activation, given)
        return self.post_per_layer_input_norm(self.per_layer_projection(gated))


class SpreadStreams:
    """The first layer's streams [T, n · H] from the embedding [T, H]."""

    def __init__(self, config: Gemma3nConfig, prefix: str, parts: PartFactory) -> None:
        hidden, others = config.hidden_size, config.altup.num_streams - 1
        names = tuple(f"{prefix}.altup_projections.{index}" for index in range(others))
        self.projections = parts.linear(names, hidden, Features(others, hidden))
        self._shape = others, parts.backend.padded(hidden)
        self._width = hidden
        self._spread = parts.backend.stream_ops().spread

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        others = self.projections(hidden).view(len(hidden), *self._shape)
        return self._spread(hidden, others, self._width).flatten(1)


class JoinStreams:
    """The mean of the last layer's streams [R, n · H], all at the magnitude of the first; then the norm."""

    def __init__(self, config: Gemma3nConfig, prefix: str, parts: PartFactory, norm: RMSNorm) -> None:
        hidden, self._num_streams = config.hidden_size, config.altup.num_streams
        self.projections = [
            parts.linear(f"{prefix}.altup_unembed_projections.{index}", hidden, hidden)
            for index in range(self._num_streams - 1)
        ]
        self.norm = norm
        self._width = hidden
        self._ops = parts.backend.stream_ops()

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        first, *others = self._ops.apart(hidden.view(len(hidden), self._num_streams, -1))
        total, last = first, self.projections[-1]
        for projection, stream in zip(self.projections, others, strict=True):
            scale = 1 / self._num_streams if projection is last else 1.0
            total = self._ops.joined(projection(stream), first, total, self._width, scale)
        return self.norm(total)


class StackWithStreams:
    """Layers whose per-layer embeddings and streams are made within."""

    def __init__(self, embeddings: PerLayerEmbeddings, spread: SpreadStreams, stack: DecoderStack) -> None:
        self._embeddings = embeddings
        self._spread = spread
        self._stack = stack

    def __call__(self, hidden: torch.Tensor, context: ForwardContext) -> torch.Tensor:
        assert context.per_layer is not None
        context = replace(context, per_layer=self._embeddings(context.per_layer, hidden))
        return self._stack(self._spread(hidden), context)


class Gemma3nForCausalLM(Gemma4ForCausalLM):
    """Text only: no images, no sound."""

    model_type = "gemma3n_text"
    reads_per_layer_config = False
    gives_taps = False  # its layers take several streams
    config: Gemma3nConfig
    spread: SpreadStreams | None

    @classmethod
    def read_config(cls, config: PretrainedConfig) -> Gemma3nConfig:
        kinds = layer_types(config, positive(config, "num_hidden_layers", MOST_LAYERS))
        sizes = _intermediate_sizes(config)
        whole = copy.copy(config)
        whole.intermediate_size = max(sizes)
        fields = common_fields(whole, activation="hidden_activation", windows=windows_of_layers)
        biased = config.attention_bias
        heads = AttentionSpec(fields["num_kv_heads"], fields["head_dim"])
        per_layer = PerLayerShape(
            positive(config, "vocab_size_per_layer_input"), positive(config, "hidden_size_per_layer_input")
        )
        return Gemma3nConfig(
            **fields,
            softmax_scale=1.0,
            embedding_scale=fields["hidden_size"] ** 0.5,
            logit_softcap=optional_number(config, "final_logit_softcapping"),
            heads=(heads,) * len(kinds),
            owners=shared_cache_owners(config, kinds),
            keys_as_values=(False,) * len(kinds),
            qkv_bias=biased,
            o_bias=biased,
            qk_norm=True,
            double_wide_mlp=False,
            per_layer=per_layer,
            altup=_altup(config, fields),
            laurel_rank=positive(config, "laurel_rank"),
            intermediate_sizes=sizes,
            sparsities=_sparsities(config),
        )

    def make_layers(self, parts: PartFactory) -> list[DecoderLayer]:
        config = self.config
        self.per_layer = self.spread = None
        if self.is_first_stage:
            self.per_layer = PerLayerEmbeddings(config, config.per_layer, self.prefix, parts)
            self.spread = SpreadStreams(config, self.prefix, parts)
        return [
            Gemma3nLayer(config, index, f"{self.prefix}.layers.{index}", parts, place)
            for place, index in enumerate(self.stage_layers)
        ]

    def make_norm(self, parts: PartFactory) -> Callable[[torch.Tensor], torch.Tensor]:
        config = self.config
        norm = parts.rms_norm(f"{self.prefix}.norm", config.hidden_size, config.norm_eps)
        return JoinStreams(config, self.prefix, parts, norm)

    def make_stack(self, layers: Sequence[tuple[DecoderLayer, LayerPlace]]) -> DecoderStack:
        stack = CausalLM.make_stack(self, layers)
        if self.per_layer is None or self.spread is None or not self.has_head:
            return stack
        return StackWithStreams(self.per_layer, self.spread, stack)

    def first_input(
        self, input_ids: torch.Tensor, positions: torch.Tensor, context: ForwardContext | None = None
    ) -> IntermediateTensors:
        given = super().first_input(input_ids, positions, context)
        # With a single stage, streams are made within the stack.
        return given if self.spread is None or self.has_head else replace(given, hidden=self.spread(given.hidden))

    def received_shapes(self, rows: int) -> list[tuple[int, ...]]:
        (_, width), *others = super().received_shapes(rows)
        return [(rows, self.config.altup.num_streams * width), *others]

    def layer_kind(self, index: int) -> Hashable:
        config = self.config
        return super().layer_kind(index), config.intermediate_sizes[index], config.sparsities[index] > 0

    def is_of_layer(self, name: str) -> bool:
        return name.startswith(f"{self.prefix}.altup_") or super().is_of_layer(name)


def _altup(config: PretrainedConfig, fields: dict[str, Any]) -> AltUpShape:
    count, active = positive(config, "altup_num_inputs"), whole_number(config, "altup_active_idx")
    if not 2 <= count <= _MOST_STREAMS:
        raise CheckpointError(f"altup_num_inputs={count} is not usable: expected 2 to {_MOST_STREAMS}")
    if active >= count:
        raise CheckpointError(f"altup_active_idx={active} is not usable: expected less than altup_num_inputs={count}")
    return AltUpShape(count, active, fields["hidden_size"], bool(config.altup_correct_scale))


def _intermediate_sizes(config: PretrainedConfig) -> tuple[int, ...]:
    """Of each layer; transformers checks their number."""
    sizes = config.intermediate_size
    if not all(isinstance(size, int) and size > 0 for size in sizes):
        raise CheckpointError(f"intermediate_size={sizes!r} is not usable: expected positive whole numbers")
    return tuple(sizes)


def _sparsities(config: PretrainedConfig) -> tuple[float, ...]:
    """Of each layer; transformers checks their number."""
    shares = config.activation_sparsity_pattern
    if not all(isinstance(share, int | float) and 0 <= share < 1 for share in shares):
        raise CheckpointError(
            f"activation_sparsity_pattern={shares!r} is not usable: expected numbers from 0 to below 1"
        )
    return tuple(map(float, shares))
