"""How an architecture of llama.cpp is described: which fields of config.json its files have, and its tensors' names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from engine_core.model_loader.gguf.metadata import MOST_LAYERS, Metadata


@dataclass(frozen=True, slots=True)
class TensorNames:
    """How the names and tensors of an architecture differ from Llama's, in transformers' format."""

    layer: Mapping[str, str] = field(default_factory=dict)
    """Additional and overriding names within a layer."""
    outer: Mapping[str, str] = field(default_factory=dict)
    """Likewise of tensors that are of no layer."""
    rows: Mapping[str, str] = field(default_factory=dict)
    """Names of the rows of tensors within a layer, without their indices, where each row is a tensor."""
    joined: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Names within a layer of what several tensors are the rows of, in that order."""
    is_paired: bool = False
    """Whether rows of queries and keys were reordered into pairs."""
    is_halved: bool = False
    """Whether those that are rotated were reordered from pairs into halves."""
    norms_added: float = 0.0
    """The converter added this to norms' weights."""
    norms_kept: tuple[str, ...] = ()
    """Names within a layer of norms to which it added nothing."""
    layers: str = "model.layers"
    """The prefix of layers' names."""
    experts: str = "mlp.experts"
    projections: Mapping[str, str] = field(
        default_factory=lambda: {"gate": "gate_proj", "up": "up_proj", "down": "down_proj"}
    )


@dataclass(frozen=True, slots=True)
class RecurrentOrder:
    """The heads of a gated delta rule. Value heads are stored tiled: the first ones of all key heads, then the second
    ones. A checkpoint has those of a key head side by side.
    """

    keys: int
    """Key heads."""
    values_per_key: int
    key_dim: int
    value_dim: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """What a value of ``general.architecture`` stands for."""

    name: str
    """The class of transformers."""
    model_type: str
    models: str
    """For people."""
    fields: Callable[[Metadata], dict[str, Any]] = lambda metadata: {}
    """The fields of config.json beside those of all architectures, which they override."""
    names: TensorNames = field(default_factory=TensorNames)
    rope_fields: frozenset[str] = frozenset()
    """Further fields below ``rope.``."""
    is_partial: bool = False
    """Whether the class rotates a part of each head, unless config.json has another share."""
    unlike_layers: frozenset[str] = frozenset()
    """Fields that may differ from layer to layer."""
    layer_norm: str | None = None
    """config.json's name for the epsilon of layer norms; None: they are RMS norms."""
    separates_experts: bool = False
    """Whether a checkpoint in transformers' format has experts in another layout than by themselves."""
    recurrence: Callable[[Metadata], RecurrentOrder] | None = None
    """How the converter reordered what belongs to a recurrence's heads; None: it did not."""
    variants: tuple[tuple[Callable[[Metadata], bool], Architecture], ...] = ()
    """Other architectures with this value, and how their files are recognized."""

    def of(self, metadata: Metadata) -> Architecture:
        """The variant that a file is, or else this one."""
        return next((variant for applies, variant in self.variants if applies(metadata)), self)


def windows(layers: int, every: int) -> list[str]:
    """``layer_types`` in which every ``every``-th layer has full attention."""
    if not 0 <= layers < MOST_LAYERS or every < 1:
        return []
    return ["sliding_attention" if layer % every else "full_attention" for layer in range(1, layers + 1)]


def num_layers(metadata: Metadata) -> int:
    """Without those that predict further tokens, which come last."""
    return metadata.integer("block_count") - metadata.integer("nextn_predict_layers", 0)


def layer_types(metadata: Metadata, every: int) -> list[str]:
    """``layer_types`` that the file lists; or as ``windows`` has them, where it lists none."""
    layers = num_layers(metadata)
    if not metadata.is_list("attention.sliding_window_pattern"):
        return windows(layers, metadata.integer("attention.sliding_window_pattern", every))
    slides = metadata.of_layers("attention.sliding_window_pattern", layers)
    return ["sliding_attention" if each else "full_attention" for each in slides]


def windows_or_none(metadata: Metadata, every: int) -> dict[str, Any]:
    """The window and ``layer_types``, of a family whose files may have none."""
    window = metadata.integer("attention.sliding_window", 0)
    kinds = layer_types(metadata, every) if window else windows(num_layers(metadata), 1)
    return {"sliding_window": window or None, "layer_types": kinds}


SIGMOID = 2
"""A value of ``expert_gating_func``."""
EXPERTS = {"ffn_gate_inp": "mlp.gate"}
SHARED_EXPERTS = {f"ffn_{each}_shexp": f"mlp.shared_experts.{each}_proj" for each in ("gate", "up", "down")}
CORRECTED = {"exp_probs_b": "mlp.gate.e_score_correction_bias"}
FUSED_GATE_UP = {"ffn_up": "mlp.gate_up_proj"}


def routed_experts(metadata: Metadata) -> dict[str, Any]:
    """DeepSeek's experts; one group if the file names none, as in llama.cpp."""
    return {
        "n_routed_experts": metadata.integer("expert_count"),
        "num_experts_per_tok": metadata.integer("expert_used_count"),
        "moe_intermediate_size": metadata.integer("expert_feed_forward_length"),
        "n_shared_experts": metadata.integer("expert_shared_count", 0),
        "first_k_dense_replace": metadata.integer("leading_dense_block_count", 0),
        "routed_scaling_factor": metadata.number("expert_weights_scale", 1.0),
        "norm_topk_prob": metadata.flag("expert_weights_norm", False),
        "n_group": metadata.integer("expert_group_count", 1),
        "topk_group": metadata.integer("expert_group_used_count", 1),
    }
