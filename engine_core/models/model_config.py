"""The shape and options of a decoder, read from a checkpoint's configuration."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from transformers import PretrainedConfig

from engine_core.activation import Activation, read_activation
from engine_core.distributed.ranks import UNIT, cut_layers
from engine_core.errors import CheckpointError, ConfigError, UnsupportedModelError
from engine_core.kv_cache_interface import (
    AttentionSpec,
    KVCacheGroup,
    LayerCacheSpec,
    ShortConvSpec,
    StateSpec,
    group_layers,
)
from engine_core.layers.rotary import MOST_POSITIONS, RopeParameters
from engine_core.media import VisionShape
from engine_core.models.stage_work import work_of_head, work_of_layers
from engine_core.ops.base import Routing
from engine_core.weights.expert_tensors import ExpertTensors, SeparateExperts
from engine_core.weights.experts import ExpertsShape

MOST, MOST_LAYERS = 2**24, 4096
"""Upper limits of any size, and of layers."""
MOST_HEADS = 4096
"""The most heads of a layer; lists have an entry for each."""
MOST_EXPERTS = 4096
"""The most experts of a layer; each has its own tensors."""
_MOST_EXPERTS_IN_ALL = 2**17


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """The sizes that the engine needs of any model."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position_embeddings: int
    sliding_windows: tuple[int | None, ...]
    """Tokens that a token sees in each layer, itself included; None: all before it."""
    chunked_attention: bool = False
    """Whether windows are chunks: ``kv_cache_interface.first_seen``."""
    tensor_parallel_size: int = 1
    """Ranks that share each layer."""
    both_ways: frozenset[int] = frozenset()
    """Layers in which the tokens of a picture see all of it."""

    def seeing(self, vision: VisionShape) -> Self:
        """The same with pictures, which ``vision`` describes; call before ``within``."""
        if not vision.attends_both_ways:
            return self
        windows, in_full = self.sliding_windows, vision.both_ways_in_full
        return replace(self, both_ways=frozenset(i for i, size in enumerate(windows) if in_full or size is not None))

    def for_ranks(self, tensor_parallel_size: int, *, expert_parallel: bool = False) -> Self:
        """The same, with each layer shared by that many ranks. Raises ``ConfigError`` if impossible."""
        size = tensor_parallel_size
        if size > 1:
            self._require_shares(size, expert_parallel)
        return replace(self, tensor_parallel_size=size)

    def _require_shares(self, size: int, expert_parallel: bool) -> None:
        def refuse(accepted: str) -> ConfigError:
            return ConfigError("tensor_parallel_size", size, accepted)

        if self.caching_layers and self.num_heads % size:
            raise refuse(f"a divisor of num_attention_heads={self.num_heads}")
        for heads in {spec.num_kv_heads for spec in self.cache_specs if isinstance(spec, AttentionSpec)}:
            if heads % size and size % heads:
                raise refuse(f"a divisor or a multiple of num_key_value_heads={heads}")
        for spec in dict.fromkeys(spec for spec in self.state_specs if spec is not None):
            if (accepted := _accepted_ranks(spec, size, self.state_fields)) is not None:
                raise refuse(accepted)
        for name, count in self._shared_widths(expert_parallel).items():
            if -(-count // UNIT) < size:
                raise refuse(f"at most {-(-count // UNIT)}, as {name}={count} is cut in units of {UNIT}")

    def _shared_widths(self, expert_parallel: bool) -> dict[str, int]:
        """Numbers of outputs that ranks share, by their names in config.json."""
        widths = {"vocab_size": self.vocab_size, "hidden_size": self.hidden_size}
        # Without it no layer has a dense block.
        return widths | ({"intermediate_size": self.intermediate_size} if self.intermediate_size else {})

    def stage_layers(self, stages: int) -> list[range]:
        """The layers of each stage, balanced by time. Raises ``ConfigError`` if there are too few layers."""
        ranges = cut_layers(self.cache_owners, stages, self.layer_work, work_of_head(self))
        if ranges is None:
            most = next(count for count in reversed(range(stages)) if cut_layers(self.cache_owners, count))
            shared = sum(owner != layer for layer, owner in enumerate(self.cache_owners))
            reason = f", {shared} of which attend over the caches of earlier ones and stay with them" if shared else ""
            raise ConfigError(
                "pipeline_parallel_size", stages, f"at most {most}: the model has {self.num_layers} layers{reason}"
            )
        return ranges

    @property
    def layer_work(self) -> list[int]:
        """About how much of its memory a layer reads and writes in a step. A family whose layers have other parts than
        ``work_of_layers`` assumes overrides it.
        """
        return work_of_layers(self)

    def within(self, max_model_len: int) -> Self:
        """The same without windows that have no effect on sequences of up to ``max_model_len``."""
        windows = (None if window is None or window >= max_model_len else window for window in self.sliding_windows)
        return replace(self, sliding_windows=tuple(windows))

    @property
    def cache_specs(self) -> tuple[LayerCacheSpec | None, ...]:
        """What each layer's cache holds per token, without padding; None: the layer does not attend.

        A family with unlike layers overrides it.
        """
        return (AttentionSpec(self.num_kv_heads, self.head_dim),) * self.num_layers

    @property
    def state_specs(self) -> tuple[StateSpec | None, ...]:
        """The state that each layer keeps per sequence, without padding; None: none.

        A family with states overrides it.
        """
        return (None,) * self.num_layers

    @property
    def state_fields(self) -> Mapping[str, str]:
        """The names in config.json of ``channels``, ``num_heads`` and ``num_key_heads`` of ``state_specs``.

        A family with states overrides it.
        """
        return {}

    @property
    def attends_both_ways(self) -> bool:
        """Whether a token sees those after it, too, so that all of an input is in one step, and nothing is read later.

        An encoder overrides it.
        """
        return False

    @property
    def cache_owners(self) -> tuple[int, ...]:
        """Each layer's cache owner: itself, or an earlier layer with the same cache size and window.

        A family whose layers share caches overrides it.
        """
        return tuple(range(self.num_layers))

    @property
    def caching_layers(self) -> tuple[int, ...]:
        """The layers with their own KV cache, in ascending order."""
        specs = self.cache_specs
        return tuple(owner for owner in sorted(set(self.cache_owners)) if specs[owner] is not None)

    @property
    def rank_cache_specs(self) -> tuple[LayerCacheSpec | None, ...]:
        """One rank's share of ``cache_specs``."""
        return tuple(None if spec is None else spec.of_rank(self.tensor_parallel_size) for spec in self.cache_specs)

    @property
    def rank_state_specs(self) -> tuple[StateSpec | None, ...]:
        """One rank's share of ``state_specs``."""
        return tuple(None if spec is None else spec.of_rank(self.tensor_parallel_size) for spec in self.state_specs)

    @property
    def keeps_states(self) -> bool:
        """Whether any layer keeps a state."""
        return any(spec is not None for spec in self.state_specs)

    def groups_of(self, layers: Sequence[int]) -> tuple[KVCacheGroup, ...]:
        """The groups of a rank's cache for these layers, which attend; groups contain indices into ``layers``."""
        windows, specs = self.sliding_windows, self.rank_cache_specs
        return group_layers(
            [windows[layer] for layer in layers],
            [spec for layer in layers if (spec := specs[layer]) is not None],
            chunked=self.chunked_attention,
        )

    @property
    def largest_head_dim(self) -> int:
        """Of the layers that attend; 0 if none does."""
        if not self.caching_layers:
            return 0
        return max(
            (spec.head_dim for spec in self.cache_specs if isinstance(spec, AttentionSpec)), default=self.head_dim
        )

    @property
    def has_plain_layers(self) -> bool:
        """Whether layers attend, and all that do see all earlier tokens alone, and have their own, equal caches."""
        attending = [layer for layer, spec in enumerate(self.cache_specs) if spec is not None]
        alike = {self.cache_specs[layer] for layer in attending} == {AttentionSpec(self.num_kv_heads, self.head_dim)}
        return (
            alike
            and not self.both_ways
            and len(self.caching_layers) == len(attending)
            and all(self.sliding_windows[layer] is None for layer in attending)
        )

    @property
    def is_plainly_attending(self) -> bool:
        """Whether attention in all layers is a plain softmax of scores / √head_dim over all tokens."""
        return self.has_plain_layers

    @property
    def distinct_ropes(self) -> tuple[RopeParameters, ...]:
        """The distinct rotations, whose angles are computed at the start, in order of first occurrence."""
        return ()

    @property
    def longest_sequence(self) -> int:
        """In tokens."""
        return self.max_position_embeddings

    @property
    def default_length(self) -> int:
        """The longest sequence unless options name another."""
        return self.longest_sequence


def _accepted_ranks(spec: StateSpec, ranks: int, names: Mapping[str, str]) -> str | None:
    """The numbers of ranks that can share such states, for an error; None if ``ranks`` can."""

    def named(field: str) -> str:
        return f"{names.get(field, field)}={getattr(spec, field)}"

    if isinstance(spec, ShortConvSpec):
        most = -(-spec.channels // UNIT)
        return None if ranks <= most else f"at most {most}, as {named('channels')} is cut in units of {UNIT}"
    if spec.num_heads % ranks:
        return f"a divisor of {named('num_heads')}"
    if spec.num_key_heads % ranks and ranks % spec.num_key_heads:
        return f"a divisor or a multiple of {named('num_key_heads')}"
    return None


@dataclass(frozen=True, slots=True)
class Mixture:
    """The experts of a model."""

    shape: ExpertsShape
    routing: Routing
    is_sparse: tuple[bool, ...]
    """Which layers have experts; the others have a dense feed-forward block."""
    shared_size: int | None = None
    """Inner size of the shared expert, if any."""
    correction_bias: bool = False
    """Whether experts have biases that are added to scores only for choosing experts."""
    tensors: Callable[[str], ExpertTensors] = SeparateExperts
    """The layout in a checkpoint of the experts with a prefix."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchitectureConfig(ModelShape):
    """The options that families share. A family that needs more extends it in its own file."""

    activation: Activation
    norm_eps: float
    tie_word_embeddings: bool
    ropes: tuple[RopeParameters | None, ...]
    """Each layer's rotation of queries and keys; None: it has none."""
    qkv_names: tuple[str, ...] = ("q_proj", "k_proj", "v_proj")
    """The projections' names in a checkpoint; one name if they are fused. ``gate_up_names`` likewise."""
    gate_up_names: tuple[str, ...] = ("gate_proj", "up_proj")
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    """Whether queries and keys are normalized per head before rotation."""
    norm_offset: float = 0.0
    """Added to the weights of all norms."""
    softmax_scale: float | None = None
    """The factor of attention scores; None: 1 / √head_dim."""
    attn_logit_softcap: float | None = None
    """Scores s become c · tanh(s / c)."""
    attention_sinks: bool = False
    """Whether each head has an extra logit in the softmax, without a value."""
    residual_scale: float = 1.0
    """The factor of attention and feed-forward outputs when they are added to the residual."""
    embedding_scale: float = 1.0
    logit_scale: float = 1.0
    logit_softcap: float | None = None
    """Logits x become c · tanh(x / c)."""
    mixture: Mixture | None = None

    def seeing(self, vision: VisionShape) -> Self:
        """Also sets rotations by three positions. Raises ``CheckpointError`` if these do not divide the pairs."""
        seeing, section = ModelShape.seeing(self, vision), vision.mrope_section
        if not section:
            return seeing
        ropes = tuple(rope and rope.with_sections(section, interleaved=vision.mrope_interleaved) for rope in self.ropes)
        return replace(seeing, ropes=ropes)

    def _require_shares(self, size: int, expert_parallel: bool) -> None:
        ModelShape._require_shares(self, size, expert_parallel)
        if expert_parallel and self.mixture is None:
            raise ConfigError("enable_expert_parallel", True, "no value, as this model has no experts")
        if expert_parallel and self.mixture is not None and self.mixture.shape.num_experts < size:
            accepted = f"at most {self.mixture.shape.num_experts}, the number of experts, with --enable-expert-parallel"
            raise ConfigError("tensor_parallel_size", size, accepted)

    def _shared_widths(self, expert_parallel: bool) -> dict[str, int]:
        widths = ModelShape._shared_widths(self, expert_parallel)
        if (mixture := self.mixture) is None:
            return widths
        shape, shared = mixture.shape, mixture.shared_size
        if all(mixture.is_sparse) and shared is None:
            widths.pop("intermediate_size", None)  # no layer has a dense block
        if shared is not None:
            widths["the inner size of shared experts"] = shared
        if not expert_parallel:
            widths["the inner size of experts"] = shape.intermediate_size
        return widths

    @property
    def is_plainly_attending(self) -> bool:
        special = self.attention_sinks, self.softmax_scale is not None, self.attn_logit_softcap is not None
        return self.has_plain_layers and not any(special)

    @property
    def distinct_ropes(self) -> tuple[RopeParameters, ...]:
        return tuple(dict.fromkeys(rope for rope in self.ropes if rope is not None))

    @property
    def longest_sequence(self) -> int:
        lengths = [rope.longest_sequence(self.max_position_embeddings) for rope in self.distinct_ropes]
        return min(lengths, default=self.max_position_embeddings)


def common_fields(
    config: PretrainedConfig,
    *,
    activation: str | Activation = "hidden_act",
    norm_eps: str = "rms_norm_eps",
    intermediate_size: str = "intermediate_size",
    rotates: bool = True,
    partial_rotary: bool = False,
    query_scaling: bool = False,
    interleaved: bool = False,
    head_dim: int | None = None,
    head_dims: Sequence[int] | None = None,
    windows: Callable[[PretrainedConfig, int], tuple[int | None, ...]] | None = None,
    unrotated: Collection[str] = (),
) -> dict[str, Any]:
    """The fields of ``ArchitectureConfig`` that most families name alike; ``activation``, ``norm_eps`` and
    ``intermediate_size`` name fields, unless ``activation`` is one.

    ``rotates``: whether any layer does; else nothing is read of it. ``partial_rotary``, ``query_scaling``: whether the
    family has ``partial_rotary_factor``, ``llama_4_scaling_beta``. ``interleaved``: neighbouring elements are rotated
    as pairs. ``head_dim`` defaults to the configuration's, and ``head_dims``, per layer, to ``head_dim``. ``windows``
    reads the sliding windows of that many layers, by default none. ``unrotated``: the ``layer_types`` of layers without
    rotation. Raises ``CheckpointError`` for impossible sizes, ``UnsupportedModelError`` for an activation or a rope
    type that the engine lacks.
    """
    hidden_size, num_heads = positive(config, "hidden_size"), positive(config, "num_attention_heads", MOST_HEADS)
    num_kv_heads = positive(config, "num_key_value_heads")
    if num_heads % num_kv_heads:
        raise CheckpointError(
            f"num_attention_heads={num_heads} is not a multiple of num_key_value_heads={num_kv_heads}"
        )
    if head_dim is None:
        is_given = getattr(config, "head_dim", None) is not None
        head_dim = positive(config, "head_dim") if is_given else hidden_size // num_heads
    if head_dim < 2 or head_dim % 2:
        sizes = f"hidden_size={hidden_size}, num_attention_heads={num_heads}"
        raise CheckpointError(f"head_dim={head_dim} is not an even number from 2 on ({sizes})")
    max_position_embeddings = positive(config, "max_position_embeddings", MOST_POSITIONS)
    num_layers = positive(config, "num_hidden_layers", MOST_LAYERS)
    return {
        "vocab_size": positive(config, "vocab_size"),
        "hidden_size": hidden_size,
        "intermediate_size": positive(config, intermediate_size),
        "num_layers": num_layers,
        "num_heads": num_heads,
        "num_kv_heads": num_kv_heads,
        "head_dim": head_dim,
        "activation": activation
        if isinstance(activation, Activation)
        else read_activation(activation, getattr(config, activation)),
        "norm_eps": read_norm_eps(config, norm_eps),
        "max_position_embeddings": max_position_embeddings,
        "tie_word_embeddings": bool(config.tie_word_embeddings),
        "ropes": read_ropes(
            config,
            max_position_embeddings,
            [head_dim] * num_layers if head_dims is None else head_dims,
            partial_rotary=partial_rotary,
            query_scaling=query_scaling,
            interleaved=interleaved,
            unrotated=unrotated,
        )
        if rotates
        else (None,) * num_layers,
        "sliding_windows": (None,) * num_layers if windows is None else windows(config, num_layers),
    }


def require_like_layers(config: PretrainedConfig) -> None:
    """Raise ``UnsupportedModelError`` for a ``per_layer_config`` with an effect; any configuration may have one."""
    if not getattr(config, "is_heterogeneous", False):  # transformers has it since 5.14
        return
    if changed := sorted(config.per_layer_attributes or ()):
        raise UnsupportedModelError(
            f"per_layer_config: {', '.join(changed)} may not differ between layers of {config.model_type}"
        )
    if any(getattr(layer, "skip", None) for layer in config.per_layer_config):
        raise UnsupportedModelError("per_layer_config: skip is not supported: expected layers with all of their parts")


def read_experts(
    config: PretrainedConfig,
    fields: dict[str, Any],
    *,
    num_experts: str,
    intermediate_size: str,
    top_k: str = "num_experts_per_tok",
) -> ExpertsShape:
    """Read the experts of ``config``; the last three arguments name its fields. Raises ``CheckpointError``."""
    count, chosen = positive(config, num_experts, MOST_EXPERTS), positive(config, top_k)
    if chosen > count:
        raise CheckpointError(f"{top_k}={chosen} is not usable: expected at most {num_experts}={count}")
    check_number_of_experts(count, fields["num_layers"])
    size = positive(config, intermediate_size)
    return ExpertsShape(count, chosen, fields["hidden_size"], size, fields["activation"])


def check_number_of_experts(count: int, num_layers: int) -> None:
    """Raise ``CheckpointError`` for more than could be: each has tensors, which are named before any is read."""
    if count > MOST_EXPERTS or count * num_layers > _MOST_EXPERTS_IN_ALL:
        raise CheckpointError(
            f"{count} experts in each of {num_layers} layers are too many: expected at most {MOST_EXPERTS} in a layer "
            f"and {_MOST_EXPERTS_IN_ALL} in all"
        )


def sparse_layers(config: PretrainedConfig, num_layers: int) -> tuple[bool, ...]:
    """Which layers have experts, by ``mlp_layer_types``. Raises ``CheckpointError``, ``UnsupportedModelError``."""
    kinds = config.mlp_layer_types
    if len(kinds) != num_layers:
        raise CheckpointError(
            f"mlp_layer_types has {len(kinds)} entries: expected one for each of num_hidden_layers={num_layers}"
        )
    if unknown := sorted(set(kinds) - {"dense", "sparse"}):
        raise UnsupportedModelError(f"mlp_layer_types: {', '.join(unknown)} is not supported: expected dense or sparse")
    return tuple(kind == "sparse" for kind in kinds)


def windows_of_layers(config: PretrainedConfig, num_layers: int) -> tuple[int | None, ...]:
    """``sliding_window`` for the layers with one in ``layer_types``. Raises ``CheckpointError``, and
    ``UnsupportedModelError`` for an unknown type.
    """
    kinds = layer_types(config, num_layers)
    unused = getattr(config, "use_sliding_window", True) is False
    windows = {"full_attention": None, "sliding_attention": None if unused else sliding_window(config)}
    if unknown := set(kinds) - set(windows):
        raise UnsupportedModelError(
            f"layer_types: {', '.join(sorted(unknown))} is not supported: expected {' or '.join(windows)}"
        )
    if "sliding_attention" in kinds and windows["sliding_attention"] is None:
        missing = "use_sliding_window to true" if unused else "sliding_window to a number of tokens"
        raise CheckpointError(f"layer_types has sliding_attention, but no window is set: set {missing}")
    return tuple(windows[kind] for kind in kinds)


def uniform_windows(config: PretrainedConfig, num_layers: int) -> tuple[int | None, ...]:
    """``sliding_window``, which may be null, for all layers. Raises ``CheckpointError``, and ``UnsupportedModelError``
    if ``layer_types`` disagrees.
    """
    window = sliding_window(config)
    kind = "full_attention" if window is None else "sliding_attention"
    if others := set(getattr(config, "layer_types", None) or ()) - {kind}:
        raise UnsupportedModelError(
            f"layer_types: {', '.join(sorted(others))} is not supported for {config.model_type} with "
            f"sliding_window={window}: expected {kind} for all layers"
        )
    return (window,) * num_layers


def layer_types(config: PretrainedConfig, num_layers: int) -> list[str]:
    """The type of each layer. Raises ``CheckpointError`` if their number is not ``num_layers``."""
    kinds = config.layer_types
    if not isinstance(kinds, list) or len(kinds) != num_layers:
        named = f"names {len(kinds)} layers" if isinstance(kinds, list) else f"is {kinds!r}"
        raise CheckpointError(f"layer_types {named}: expected one for each of num_hidden_layers={num_layers}")
    return [str(kind) for kind in kinds]


def sliding_window(config: PretrainedConfig) -> int | None:
    """``sliding_window``, which may be null. Raises ``CheckpointError``."""
    return None if config.sliding_window is None else positive(config, "sliding_window", MOST_POSITIONS)


def positive(config: PretrainedConfig, name: str, most: int = MOST) -> int:
    """A size from 1 to ``most``, so that absurd sizes raise ``CheckpointError`` before anything is allocated."""
    value = getattr(config, name)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise CheckpointError(f"{name}={value!r} is not usable: expected a positive whole number")
    if value > most:
        raise CheckpointError(f"{name}={value} is not usable: expected at most {most}")
    return value


def positive_number(config: PretrainedConfig, name: str, default: float | None = None) -> float:
    """A finite number above 0; ``default`` replaces a missing field. Raises ``CheckpointError``."""
    value = getattr(config, name) if default is None else getattr(config, name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= sys.float_info.max:
        raise CheckpointError(f"{name}={value!r} is not usable: expected a positive number")
    return float(value)


def whole_number(config: PretrainedConfig, name: str) -> int:
    """A size that may be 0. Raises ``CheckpointError``."""
    value = getattr(config, name)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise CheckpointError(f"{name}={value!r} is not usable: expected a whole number from 0 on")
    return value if value == 0 else positive(config, name)


def optional_number(config: PretrainedConfig, name: str) -> float | None:
    """A finite number above 0, or null. Raises ``CheckpointError``."""
    return None if getattr(config, name) is None else positive_number(config, name)


def read_norm_eps(config: PretrainedConfig, name: str) -> float:
    """A number from 0 to 1. Raises ``CheckpointError``."""
    value = getattr(config, name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
        raise CheckpointError(f"{name}={value!r} is not usable: expected a number from 0 to 1")
    return float(value)


def read_ropes(
    config: PretrainedConfig,
    max_position_embeddings: int,
    head_dims: Sequence[int],
    *,
    partial_rotary: bool = False,
    query_scaling: bool = False,
    interleaved: bool = False,
    unrotated: Collection[str] = (),
) -> tuple[RopeParameters | None, ...]:
    """``rope_parameters``, common to all layers or given per layer type; arguments as those of ``common_fields``."""
    # As transformers' modules do: this copies a top-level original_max_position_embeddings into the parameters.
    try:
        config.standardize_rope_params()
    except TypeError as error:  # a field may shadow a method that this calls
        raise CheckpointError(f"rope_parameters cannot be read: {error}") from error
    given: Mapping[str, Any] = config.rope_parameters or {}
    by_kind: list[Mapping[str, Any]] = [parameters for parameters in given.values() if isinstance(parameters, dict)]
    if by_kind and not hasattr(config, "layer_types"):
        raise CheckpointError(
            f"rope_parameters has one entry per layer type: expected a single one, as {config.model_type} has no types"
        )
    for parameters in by_kind or [given]:
        if not partial_rotary and (factor := parameters.get("partial_rotary_factor", 1.0)) != 1.0:
            raise UnsupportedModelError(
                f"partial_rotary_factor={factor!r} is not supported: expected 1, as {config.model_type} rotates "
                "whole heads"
            )
        if not query_scaling and (beta := parameters.get("llama_4_scaling_beta")) is not None:
            raise UnsupportedModelError(
                f"llama_4_scaling_beta={beta!r} is not supported: {config.model_type} does not scale queries by "
                "position"
            )
    of_layers: list[Mapping[str, Any] | None] = [given] * len(head_dims)
    for parameters in by_kind:
        if parameters.get("truncate", True) is not True:
            raise UnsupportedModelError(
                f"rope_parameters: truncate={parameters['truncate']!r} is not supported with one entry per layer type"
            )
    if by_kind or unrotated:
        kinds = layer_types(config, len(head_dims))
        rotated = {*kinds} - {*unrotated}
        if missing := sorted(kind for kind in rotated if by_kind and not isinstance(given.get(kind), dict)):
            raise CheckpointError(f"rope_parameters has no entry for {', '.join(missing)} layers")
        of_kinds = {kind: given[kind] if by_kind else given for kind in rotated}
        of_layers = [of_kinds.get(kind) for kind in kinds]
    return tuple(
        None if own is None else RopeParameters.read(own, max_position_embeddings, head_dim, interleaved=interleaved)
        for own, head_dim in zip(of_layers, head_dims, strict=True)
    )
