"""Gemma 4, its text model: attention of two shapes, caches that layers share, embeddings per layer, and experts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PretrainedConfig

from engine_core.errors import CheckpointError, UnsupportedModelError
from engine_core.kv_cache_interface import AttentionSpec, LayerCacheSpec
from engine_core.layers.fused_moe import RouterTensors, StackedExperts
from engine_core.layers.part_factory import PartFactory
from engine_core.layers.parts import HeadNormNames, Norm
from engine_core.models.blocks import (
    AttentionVariant,
    FeedForward,
    GatedMLP,
    LayerNorms,
    SelfAttention,
    TransformerLayer,
)
from engine_core.models.causal_lm import CausalLM, DecoderLayer
from engine_core.models.mixture import Mixture, read_experts
from engine_core.models.model_config import (
    MOST_LAYERS,
    ArchitectureConfig,
    common_fields,
    layer_types,
    optional_number,
    positive,
    whole_number,
    windows_of_layers,
)
from engine_core.models.per_layer_embeddings import PerLayerEmbeddings, PerLayerShape
from engine_core.ops.base import Routing
from engine_core.quantization.base import Features


@dataclass(frozen=True, slots=True, kw_only=True)
class Gemma4Config(ArchitectureConfig):
    """Layers differ by their type; the last ones may attend over the caches of earlier ones."""

    heads: tuple[AttentionSpec, ...]
    """Key/value heads of each layer."""
    owners: tuple[int, ...]
    keys_as_values: tuple[bool, ...]
    """Which layers project keys alone, and take them as values, too."""
    attention_bias: bool
    double_wide_mlp: bool
    """Whether layers without a cache of their own have feed-forward blocks of twice the size."""
    per_layer: PerLayerShape | None
    mixture: Mixture | None
    """Experts beside the dense blocks of all layers."""

    @property
    def cache_specs(self) -> tuple[LayerCacheSpec, ...]:
        return self.heads

    @property
    def cache_owners(self) -> tuple[int, ...]:
        return self.owners


class Gemma4ForCausalLM(CausalLM):
    """Only text is read: no images, no sound."""

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
            owners=_owners(config, kinds),
            keys_as_values=tuple(config.attention_k_eq_v and kind == "full_attention" for kind in kinds),
            attention_bias=config.attention_bias,
            double_wide_mlp=config.use_double_wide_mlp,
            per_layer=_per_layer(config, fields),
            mixture=_mixture(config, fields),
        )

    def make_per_layer_embeddings(self, layers: PartFactory) -> PerLayerEmbeddings | None:
        shape = self.config.per_layer
        return None if shape is None else PerLayerEmbeddings(shape, self.prefix, layers)

    def make_layer(self, index: int, prefix: str, layers: PartFactory) -> DecoderLayer:
        config, attention = self.config, f"{prefix}.self_attn"
        keys = f"{attention}.k_norm" if config.owners[index] == index else None
        variant = AttentionVariant(
            qkv_bias=config.attention_bias,
            o_bias=config.attention_bias,
            head_norms=HeadNormNames(f"{attention}.q_norm", keys, config.norm_eps, of_values=True),
            qkv_names=("q_proj", "k_proj", "k_proj" if config.keys_as_values[index] else "v_proj"),
        )
        scale = f"{prefix}.layer_scalar" if config.per_layer is None else 1.0  # it is applied to a layer's result
        norms = LayerNorms(
            before_attention=self._norm_named(f"{prefix}.input_layernorm", layers),
            after_attention=self._norm_named(f"{prefix}.post_attention_layernorm", layers),
            before_mlp=None if config.mixture else self._norm_named(f"{prefix}.pre_feedforward_layernorm", layers),
            after_mlp=self._norm_named(f"{prefix}.post_feedforward_layernorm", layers, scale),
        )
        wide = config.double_wide_mlp and keys is None
        size = 2 * config.intermediate_size if wide else config.intermediate_size
        mlp: FeedForward = GatedMLP(config, f"{prefix}.mlp", layers, intermediate_size=size)
        if config.mixture is not None:
            mlp = ExpertsBeside(mlp, config.mixture, prefix, layers, config)
        return TransformerLayer(SelfAttention(config, index, attention, layers, variant), mlp, norms, layers)

    def is_redundant(self, name: str) -> bool:
        """True also for keys and values of layers that attend over another layer's."""
        found = re.fullmatch(rf"{self.prefix}\.layers\.(\d+)\.self_attn\.[kv]_(proj|norm)\.\w+", name)
        owners = self.config.owners
        shares = found is not None and (index := int(found[1])) < len(owners) and owners[index] != index
        return shares or super().is_redundant(name)

    def is_of_layer(self, name: str) -> bool:
        return name.startswith(f"{self.prefix}.per_layer_") or super().is_of_layer(name)

    def _norm_named(self, name: str, layers: PartFactory, scale: float | str = 1.0) -> Norm:
        return layers.rms_norm(name, Features(1, self.config.hidden_size), self.config.norm_eps, scale=scale)


class ExpertsBeside:
    """A dense block and experts side by side, each with norms of its own. The router sees what neither norm has."""

    def __init__(
        self, dense: FeedForward, mixture: Mixture, prefix: str, layers: PartFactory, config: ArchitectureConfig
    ) -> None:
        hidden = Features(1, config.hidden_size)

        def norm(name: str) -> Norm:
            return layers.rms_norm(f"{prefix}.{name}", hidden, config.norm_eps)

        self._dense = dense
        self._before_dense, self._after_dense = norm("pre_feedforward_layernorm"), norm("post_feedforward_layernorm_1")
        self._before_experts = norm("pre_feedforward_layernorm_2")
        self._after_experts = norm("post_feedforward_layernorm_2")
        router = f"{prefix}.router"
        self._before_router = layers.rms_norm(
            router, hidden, config.norm_eps, tensor="scale", scale=config.hidden_size**-0.5
        )
        tensors = RouterTensors(f"{router}.proj", expert_scales=f"{router}.per_expert_scale")
        self._experts = layers.fused_moe(mixture.shape, mixture.routing, tensors, StackedExperts(f"{prefix}.experts"))

    def __call__(self, x: torch.Tensor, residual: torch.Tensor | None) -> torch.Tensor:
        """``residual`` is None, because a norm follows."""
        dense = self._after_dense(self._dense(self._before_dense(x), residual))
        experts = self._experts(self._before_experts(x), None, self._before_router(x))
        return self._after_experts(experts, dense)


def _heads(config: PretrainedConfig, kinds: Sequence[str]) -> tuple[AttentionSpec, ...]:
    """Raises ``CheckpointError`` for impossible sizes, or where layers of one type differ."""
    if unknown := (config.per_layer_attributes or set()) - {"head_dim", "num_key_value_heads"}:
        raise UnsupportedModelError(
            f"per_layer_config: {', '.join(sorted(unknown))} may not differ between layers; only head_dim and "
            "num_key_value_heads may"
        )
    count, by_kind = positive(config, "num_attention_heads"), dict[str, AttentionSpec]()
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
    """Refuse a rotation of a part of each head, but for the type that has it."""
    config.standardize_rope_params()  # gives every type what stands beside them all
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


def _owners(config: PretrainedConfig, kinds: Sequence[str]) -> tuple[int, ...]:
    """The last ``num_kv_shared_layers`` attend over what the last layer of their type before them keeps."""
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
    return PerLayerShape(
        rows, fields["hidden_size"], fields["num_layers"], size, fields["activation"], fields["norm_eps"]
    )


def _mixture(config: PretrainedConfig, fields: dict[str, Any]) -> Mixture | None:
    if not config.enable_moe_block:
        return None
    shape = read_experts(
        config, fields, num_experts="num_experts", intermediate_size="moe_intermediate_size", top_k="top_k_experts"
    )
    routing = Routing(shape.top_k, renormalize=True)
    return Mixture(shape, routing, (True,) * fields["num_layers"], fields["intermediate_size"])
