"""The architecture config: what the engine must know of a decoder, read from a checkpoint's configuration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from transformers import PretrainedConfig

from engine_core.errors import CheckpointError, UnsupportedModelError
from engine_core.layers.rotary import RopeParameters


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchitectureConfig:
    """What all families have. A family that needs more extends it in its own file."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope: RopeParameters
    max_position_embeddings: int
    tie_word_embeddings: bool
    sliding_window: int | None
    """Tokens, this one included, that a token sees, where some layer limits them."""


def common_fields(config: PretrainedConfig) -> dict[str, Any]:
    """The fields of ``ArchitectureConfig`` that all families name alike: all but ``sliding_window``.

    Raises ``CheckpointError`` for sizes that cannot be, ``UnsupportedModelError`` for an activation or a rope type
    that the engine does not have.
    """
    if config.hidden_act != "silu":
        raise UnsupportedModelError(f"hidden_act {config.hidden_act!r} is not supported; known is silu")
    hidden_size, num_heads = _positive(config, "hidden_size"), _positive(config, "num_attention_heads")
    num_kv_heads = _positive(config, "num_key_value_heads")
    if num_heads % num_kv_heads:
        raise CheckpointError(
            f"num_attention_heads={num_heads} is not a multiple of num_key_value_heads={num_kv_heads}"
        )
    head_dim = getattr(config, "head_dim", None) or hidden_size // num_heads
    if head_dim < 2 or head_dim % 2:
        raise CheckpointError(f"head_dim={head_dim} is not an even number")
    max_position_embeddings = _positive(config, "max_position_embeddings")
    return {
        "vocab_size": _positive(config, "vocab_size"),
        "hidden_size": hidden_size,
        "intermediate_size": _positive(config, "intermediate_size"),
        "num_layers": _positive(config, "num_hidden_layers"),
        "num_heads": num_heads,
        "num_kv_heads": num_kv_heads,
        "head_dim": head_dim,
        "rms_norm_eps": float(config.rms_norm_eps),
        "rope": RopeParameters.read(config.rope_parameters or {}, max_position_embeddings),
        "max_position_embeddings": max_position_embeddings,
        "tie_word_embeddings": bool(config.tie_word_embeddings),
    }


def _positive(config: PretrainedConfig, name: str) -> int:
    value = getattr(config, name)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise CheckpointError(f"{name}={value!r} is not usable: expected a positive whole number")
    return value
