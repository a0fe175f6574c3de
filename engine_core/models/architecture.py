"""The architecture config: what the engine must know of a decoder, read from a checkpoint's configuration."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

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
    sliding_windows: tuple[int | None, ...]
    """How many tokens a token sees in each layer, itself included; None: all before it."""

    def within(self, max_model_len: int) -> Self:
        """Without windows that change nothing for sequences of that length."""
        windows = (None if window is None or window >= max_model_len else window for window in self.sliding_windows)
        return replace(self, sliding_windows=tuple(windows))


def common_fields(config: PretrainedConfig) -> dict[str, Any]:
    """The fields of ``ArchitectureConfig``, which all families name alike; no layer has a window.

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
        "sliding_windows": (None,) * config.num_hidden_layers,
    }


def sliding_window(config: PretrainedConfig) -> int | None:
    """``sliding_window`` of a configuration, which may be null. Raises ``CheckpointError``."""
    return None if config.sliding_window is None else _positive(config, "sliding_window")


def _positive(config: PretrainedConfig, name: str) -> int:
    value = getattr(config, name)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise CheckpointError(f"{name}={value!r} is not usable: expected a positive whole number")
    return value
