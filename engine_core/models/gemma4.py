"""Gemma 4's text model: attention of two shapes, caches shared between layers, per-layer embeddings, and experts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from transformers import PretrainedConfig

from engine_core.errors import CheckpointError, UnsupportedModelError
from engine_core.forward_context import ForwardContext, IntermediateTensors, LayerContext, LayerPlace, MediaRows
from engine_core.kv_cache_interface import AttentionSpec, LayerCacheSpec
from engine_core.layers.fused_moe import RouterTensors
from engine_core.layers.norm import RMSNorm
from engine_core.layers.part_factory import PartFactory
from engine_core.models.blocks import GatedMLP, SelfAttention
from engine_core.models.causal_lm import CausalLM
from engine_core.models.layered_model import DecoderLayer
from engine_core.models.model_config import (
    MOST_HEADS,
    MOST_LAYERS,
    ArchitectureConfig,
    Mixture,
    common_fields,
    layer_types,
    optional_number,
    positive,
    read_experts,
    whole_number,
    windows_of_layers,
)
from engine_core.ops.base import DecoderStack, Routing
from engine_core.weights.expert_tensors import StackedExperts
from engine_core.weights.features import Features


@dataclass(frozen=True, slots=True)
class PerLayerShape:
    """Sizes of the second embedding table."""

    vocab_size: int
    size: int
    """P: numbers per token and layer, without padding."""
    media_token: int = 0
    """The token whose embeddings all tokens of pictures have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gemma4Config(ArchitectureConfig):
    """Layers differ by type; the last ones may attend over the caches of earlier ones. With a ``mixture``, all layers
    have experts beside their dense blocks.
    """

    heads: tuple[AttentionSpec, ...]
    """Key/value heads of each layer."""
    owners: tuple[int, ...]
    keys_as_values: tuple[bool, ...]
    """Per layer, whether the projected keys are also its values."""
    double_wide_mlp: bool
    """Whether layers without their own cache have feed-forward blocks of twice the size."""
    per_layer: PerLayerShape | None

    @property
    def cache_specs(self) -> tuple[LayerCacheSpec, ...]:
        return self.heads

    @property
    def cache_owners(self) -> tuple[int, ...]:
        return self.owners


class Gemma4Layer:
    """Attention, then a feed-forward block, each between two norms and with a residual; in some models, then the
    per-layer embedding of each token.
    """

    def __init__(
        self, config: Gemma4Config, index: int, prefix: str, parts: PartFactory, gate: PerLayerGate | None
    ) -> None:
        def norm(name: str, scale: float | str = 1.0) -> RMSNorm:
            return parts.rms_norm(f"{prefix}.{name}", config.hidden_size, config.norm_eps, scale=scale)

        mixture, attention = config.mixture, f"{prefix}.self_attn"
        scale = f"{prefix}.layer_scalar" if gate is None else 1.0  # scales the layer's result
        self.input_layernorm = norm("input_layernorm")
        self.post_attention_layernorm = norm("post_attention_layernorm")
        # With experts, that name is the norm of the dense block alone.
        self.pre_feedforward_layernorm = norm("pre_feedforward_layernorm") if mixture is None else None
        self.post_feedforward_layernorm = norm("post_feedforward_layernorm", scale)
        is_wide = config.double_wide_mlp and config.owners[index] != index
        size = 2 * config.intermediate_size if is_wide else config.intermediate_size
        mlp = GatedMLP(config, f"{prefix}.mlp", parts, intermediate_size=size)
        self.mlp = mlp if mixture is None else DenseAndExperts(mlp, config, mixture, prefix, parts)
        names = ("q_proj", "k_proj", "k_proj" if config.keys_as_values[index] else "v_proj")
        self.self_attn = SelfAttention(config, index, attention, parts, qkv_names=names, normalize_values=True)
        self.per_layer_gate = gate
        self._select_rows = parts.backend.select_rows

    def __call__(self, hidden: torch.Tensor, context: LayerContext) -> torch.Tensor:
        attended = self.self_attn(self.input_layernorm(hidden), context)
        hidden = self.post_attention_layernorm(attended, residual=self._select_rows(hidden, context.rows))
        x = hidden if self.pre_feedforward_layernorm is None else self.pre_feedforward_layernorm(hidden)
        hidden = self.post_feedforward_layernorm(self.mlp(x), residual=hidden)
        return hidden if self.per_layer_gate is None else self.per_layer_gate(hidden, context)


class DenseAndExperts:
    """A dense block and experts side by side, each with its own norms. The router has its own norm of the input."""

    def __init__(
        self, dense: GatedMLP, config: Gemma4Config, mixture: Mixture, prefix: str, parts: PartFactory
    ) -> None:
        def norm(name: str) -> RMSNorm:
            return parts.rms_norm(f"{prefix}.{name}", hidden, eps)

        hidden, eps, router = config.hidden_size, config.norm_eps, f"{prefix}.router"
        self.dense = dense
        self.before_dense, self.after_dense = norm("pre_feedforward_layernorm"), norm("post_feedforward_layernorm_1")
        self.before_experts = norm("pre_feedforward_layernorm_2")
        self.after_experts = norm("post_feedforward_layernorm_2")
        self.before_router = parts.rms_norm(router, hidden, eps, tensor="scale", scale=hidden**-0.5)
        tensors = RouterTensors(f"{router}.proj", expert_scales=f"{router}.per_expert_scale")
        self.experts = parts.fused_moe(mixture.shape, mixture.routing, tensors, StackedExperts(f"{prefix}.experts"))

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        dense = self.after_dense(self.dense(self.before_dense(x)))
        experts = self.experts(self.before_experts(x), None, router_input=self.before_router(x))
        return self.after_experts(experts, residual=dense)


class PerLayerEmbeddings:
    """Every layer's second input, as in Gemma 3n: per token, a short embedding from a second table, plus a projection
    of the token's own embedding. L is the number of layers, P the padded numbers per layer.
    """

    def __init__(self, config: Gemma4Config, shape: PerLayerShape, prefix: str, parts: PartFactory) -> None:
        count, hidden = config.num_layers, config.hidden_size
        self.embed_tokens = parts.vocab_parallel_embedding(
            f"{prefix}.embed_tokens_per_layer",
            shape.vocab_size,
            shape.size,
            scale=shape.size**0.5,
            groups=count,
            of_tokens=False,
        )
        self.projection = parts.linear(f"{prefix}.per_layer_model_projection", hidden, Features(count, shape.size))
        self.norm = parts.rms_norm(f"{prefix}.per_layer_projection_norm", shape.size, config.norm_eps, scale=2**-0.5)
        self._num_layers = count
        self._media_token = shape.media_token
        self._scale = hidden**-0.5
        self._missing_from = shape.vocab_size if shape.vocab_size < config.vocab_size else None

    def of_tokens(self, input_ids: torch.Tensor, media: MediaRows | None = None) -> torch.Tensor:
        """Rows of the table [T, L · P]; its first one for tokens that it lacks."""
        if media is not None:
            input_ids = input_ids.index_fill(0, media.rows, self._media_token)
        if self._missing_from is not None:
            input_ids = torch.where(input_ids < self._missing_from, input_ids, 0)
        return self.embed_tokens(input_ids)

    def __call__(self, of_tokens: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        """[T, L, P] from rows of the table [T, L · P] and the first layer's input ``hidden`` [T, H]."""
        of_layers = len(hidden), self._num_layers, -1
        projected = self.projection(hidden, scale=self._scale)
        return self.norm(projected.view(of_layers), residual=of_tokens.view(of_layers))


class PerLayerGate:
    """Adds a layer's per-layer embeddings through a gate."""

    def __init__(self, config: Gemma4Config, shape: PerLayerShape, place: int, prefix: str, parts: PartFactory) -> None:
        """``place``: the layer's index in ``context.per_layer``. ``layer_scalar`` scales the sum."""
        hidden, eps = config.hidden_size, config.norm_eps
        self.gate = parts.linear(f"{prefix}.per_layer_input_gate", hidden, shape.size)
        self.projection = parts.linear(f"{prefix}.per_layer_projection", shape.size, hidden)
        self.norm = parts.rms_norm(f"{prefix}.post_per_layer_input_norm", hidden, eps, scale=f"{prefix}.layer_scalar")
        self._place = place
        self._activation = config.activation
        self._activate, self._select_rows = parts.backend.activate, parts.backend.select_rows

    def __call__(self, hidden: torch.Tensor, context: LayerContext) -> torch.Tensor:
        """``hidden`` has only the wanted rows."""
        assert context.per_layer is not None
        given = self._select_rows(context.per_layer[:, self._place], context.rows)
        gated = self._activate(self.gate(hidden), self._activation, given)
        return self.norm(self.projection(gated), residual=hidden)


class StackWithEmbeddings:
    """Layers with per-layer embeddings."""

    def __init__(self, embeddings: PerLayerEmbeddings, stack: DecoderStack) -> None:
        self._embeddings = embeddings
        self._stack = stack

    def __call__(self, hidden: torch.Tensor, context: ForwardContext) -> torch.Tensor:
        assert context.per_layer is not None
        return self._stack(hidden, replace(context, per_layer=self._embeddings(context.per_layer, hidden)))


class Gemma4ForCausalLM(CausalLM):
    """Pictures are rows as others here: ``engine_core.vision.gemma4`` encodes them. No sound."""

    model_type = "gemma4_text"
    reads_per_layer_config = True
    config: Gemma4Config

    @classmethod
    def read_config(cls, config: PretrainedConfig) -> Gemma4Config:
        if config.use_bidirectional_attention == "all":  # "vision" is about images
            raise UnsupportedModelError(
                "use_bidirectional_attention='all' is not supported: no token may attend to later ones"
            )
        kinds = layer_types(config, positive(config, "num_hidden_layers", MOST_LAYERS))
        heads = _heads(config, kinds)
        windows = windows_of_layers(config, len(kinds))
        _check_ropes(config, kinds)
        fields = common_fields(
            config.per_layer_config[0],
            activation="hidden_activation",
            partial_rotary=True,
            head_dims=[spec.head_dim for spec in heads],
        )
        return Gemma4Config(
            **fields | {"sliding_windows": windows},
            softmax_scale=1.0,
            embedding_scale=fields["hidden_size"] ** 0.5,
            logit_softcap=optional_number(config, "final_logit_softcapping"),
            heads=heads,
            owners=shared_cache_owners(config, kinds),
            keys_as_values=tuple(config.attention_k_eq_v and kind == "full_attention" for kind in kinds),
            qkv_bias=config.attention_bias,
            o_bias=config.attention_bias,
            qk_norm=True,
            double_wide_mlp=config.use_double_wide_mlp,
            per_layer=_per_layer(config, fields),
            mixture=_mixture(config, fields),
        )

    def make_layers(self, parts: PartFactory) -> list[DecoderLayer]:
        config, shape = self.config, self.config.per_layer
        prefixes = [f"{self.prefix}.layers.{index}" for index in self.stage_layers]
        gates: list[PerLayerGate | None] = [None] * len(prefixes)
        self.per_layer = None
        if shape is not None:
            if self.is_first_stage:
                self.per_layer = PerLayerEmbeddings(config, shape, self.prefix, parts)
            gates = [PerLayerGate(config, shape, place, prefix, parts) for place, prefix in enumerate(prefixes)]
        return [
            Gemma4Layer(config, index, prefix, parts, gate)
            for index, prefix, gate in zip(self.stage_layers, prefixes, gates, strict=True)
        ]

    def make_stack(self, layers: Sequence[tuple[DecoderLayer, LayerPlace]]) -> DecoderStack:
        stack = super().make_stack(layers)
        # With other stages, the embeddings are made before the stack, to be passed on to them.
        return stack if self.per_layer is None or not self.has_head else StackWithEmbeddings(self.per_layer, stack)

    def first_input(
        self, input_ids: torch.Tensor, positions: torch.Tensor, context: ForwardContext | None = None
    ) -> IntermediateTensors:
        given = super().first_input(input_ids, positions, context)
        if self.per_layer is None:
            return given
        of_tokens = self.per_layer.of_tokens(input_ids, None if context is None else context.media)
        return replace(given, per_layer=of_tokens if self.has_head else self.per_layer(of_tokens, given.hidden))

    def received_shapes(self, rows: int) -> list[tuple[int, ...]]:
        shapes, shape = super().received_shapes(rows), self.config.per_layer
        if shape is not None:
            left = self.config.num_layers - self.stage_layers.start
            shapes.append((rows, left, self._factory.backend.padded(shape.size)))
        return shapes

    def for_next_stage(self, given: IntermediateTensors, hidden: torch.Tensor) -> IntermediateTensors:
        left = None if given.per_layer is None else given.per_layer[:, len(self.stage_layers) :]
        return IntermediateTensors(hidden, left)

    def is_redundant(self, name: str) -> bool:
        """True also for keys and values of layers that attend over another layer's cache."""
        found = re.fullmatch(rf"{self.prefix}\.layers\.(\d+)\.self_attn\.[kv]_(proj|norm)\.\w+", name)
        owners = self.config.owners
        shares = found is not None and (index := int(found[1])) < len(owners) and owners[index] != index
        return shares or super().is_redundant(name)

    def is_of_layer(self, name: str) -> bool:
        return name.startswith(f"{self.prefix}.per_layer_") or super().is_of_layer(name)


def _heads(config: PretrainedConfig, kinds: Sequence[str]) -> tuple[AttentionSpec, ...]:
    """The cache of each layer. Raises ``CheckpointError`` for impossible sizes, or if layers of one type differ."""
    if unknown := (config.per_layer_attributes or set()) - {"head_dim", "num_key_value_heads"}:
        raise UnsupportedModelError(
            f"per_layer_config: {', '.join(sorted(unknown))} may not differ between layers; only head_dim and "
            "num_key_value_heads may"
        )
    count, by_kind = positive(config, "num_attention_heads", MOST_HEADS), dict[str, AttentionSpec]()
    for index, kind in enumerate(kinds):
        layer = config.per_layer_config[index]
        if skipped := getattr(layer, "skip", None):
            raise UnsupportedModelError(
                f"per_layer_config: skip={', '.join(skipped)} is not supported: expected layers with all of their parts"
            )
        spec = AttentionSpec(positive(layer, "num_key_value_heads"), positive(layer, "head_dim"))
        if count % spec.num_kv_heads:
            raise CheckpointError(
                f"num_attention_heads={count} is not a multiple of {spec.num_kv_heads}, the key/value heads of "
                f"{kind} layers (num_key_value_heads, num_global_key_value_heads)"
            )
        if spec.head_dim % 2:
            raise CheckpointError(
                f"head_dim={spec.head_dim} of {kind} layers is not usable: expected an even number (head_dim, "
                "global_head_dim)"
            )
        if by_kind.setdefault(kind, spec) != spec:
            raise CheckpointError(
                f"per_layer_config: {kind} layers differ in head_dim or num_key_value_heads: expected the same in all"
            )
    return tuple(by_kind[kind] for kind in kinds)


def _check_ropes(config: PretrainedConfig, kinds: Sequence[str]) -> None:
    """Refuse partial rotation, except for rope type ``proportional``."""
    config.standardize_rope_params()  # copies the shared parameters to every type
    for kind in dict.fromkeys(kinds):
        parameters = (config.rope_parameters or {}).get(kind)
        if not isinstance(parameters, dict):
            raise CheckpointError(f"rope_parameters has no entry for {kind} layers")
        rope_type, share = parameters.get("rope_type", "default"), parameters.get("partial_rotary_factor", 1.0)
        if rope_type != "proportional" and share != 1.0:
            raise UnsupportedModelError(
                f"rope_parameters: partial_rotary_factor={share!r} is not supported with rope type {rope_type!r}, only "
                "with 'proportional'"
            )


def shared_cache_owners(config: PretrainedConfig, kinds: Sequence[str]) -> tuple[int, ...]:
    """Each layer's cache owner: for the last ``num_kv_shared_layers``, the last layer of their type before them."""
    shared = whole_number(config, "num_kv_shared_layers")
    if shared >= len(kinds):
        raise CheckpointError(
            f"num_kv_shared_layers={shared} is not usable: expected less than num_hidden_layers={len(kinds)}"
        )
    first = len(kinds) - shared
    last = {kind: index for index, kind in enumerate(kinds[:first])}
    if missing := sorted(set(kinds) - set(last)):
        raise CheckpointError(
            f"num_kv_shared_layers={shared} is not usable: expected less, as the first {first} layers keep the KV "
            f"caches, and none of them is of type {', '.join(missing)} (layer_types)"
        )
    return (*range(first), *(last[kind] for kind in kinds[first:]))


def _per_layer(config: PretrainedConfig, fields: dict[str, Any]) -> PerLayerShape | None:
    size = whole_number(config, "hidden_size_per_layer_input")
    if size == 0:
        return None
    rows, vocab_size = positive(config, "vocab_size_per_layer_input"), fields["vocab_size"]
    if rows < vocab_size:
        raise CheckpointError(
            f"vocab_size_per_layer_input={rows} is not usable: expected at least vocab_size={vocab_size}"
        )
    pad = config.pad_token_id  # transformers looks pictures up as padding
    return PerLayerShape(rows, size, pad if isinstance(pad, int) and 0 <= pad < rows else 0)


def _mixture(config: PretrainedConfig, fields: dict[str, Any]) -> Mixture | None:
    if not config.enable_moe_block:
        return None
    shape = read_experts(
        config, fields, num_experts="num_experts", intermediate_size="moe_intermediate_size", top_k="top_k_experts"
    )
    routing = Routing(shape.top_k, renormalize=True)
    return Mixture(shape, routing, (True,) * fields["num_layers"], fields["intermediate_size"])
