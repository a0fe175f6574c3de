"""The architecture config: what the engine must know of a decoder, read from a checkpoint's configuration."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

from transformers import PretrainedConfig

from engine_core.errors import CheckpointError, UnsupportedModelError
from engine_core.layers.rotary import RopeParameters

_MOST, _MOST_LAYERS, _MOST_POSITIONS = 2**24, 4096, 2**31 - 1
"""Limits of any size, of layers and of positions."""


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
        """The same without windows that change nothing for sequences of up to ``max_model_len``."""
        windows = (None if window is None or window >= max_model_len else window for window in self.sliding_windows)
        return replace(self, sliding_windows=tuple(windows))


def common_fields(config: PretrainedConfig) -> dict[str, Any]:
    """The fields of ``ArchitectureConfig``, which all families name alike; no layer has a window.

    Raises ``CheckpointError`` for impossible sizes, ``UnsupportedModelError`` for an activation or a rope type
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
    told = getattr(config, "head_dim", None) is not None
    head_dim = _positive(config, "head_dim") if told else hidden_size // num_heads
    if head_dim < 2 or head_dim % 2:
        raise CheckpointError(f"head_dim={head_dim} is not an even number")
    max_position_embeddings = _positive(config, "max_position_embeddings", _MOST_POSITIONS)
    num_layers = _positive(config, "num_hidden_layers", _MOST_LAYERS)
    rope = config.rope_parameters or {}
    if by_kind := [kind for kind, parameters in rope.items() if isinstance(parameters, dict)]:
        raise UnsupportedModelError(f"rope_parameters of {', '.join(by_kind)}: rotations by kind of layer are unknown")
    return {
        "vocab_size": _positive(config, "vocab_size"),
        "hidden_size": hidden_size,
        "intermediate_size": _positive(config, "intermediate_size"),
        "num_layers": num_layers,
        "num_heads": num_heads,
        "num_kv_heads": num_kv_heads,
        "head_dim": head_dim,
        "rms_norm_eps": _rms_norm_eps(config),
        "rope": RopeParameters.read(rope, max_position_embeddings),
        "max_position_embeddings": max_position_embeddings,
        "tie_word_embeddings": bool(config.tie_word_embeddings),
        "sliding_windows": (None,) * num_layers,
    }


def sliding_window(config: PretrainedConfig) -> int | None:
    """``sliding_window`` of a configuration, which may be null. Raises ``CheckpointError``."""
    return None if config.sliding_window is None else _positive(config, "sliding_window", _MOST_POSITIONS)


def _positive(config: PretrainedConfig, name: str, most: int = _MOST) -> int:
    """A size of at most ``most``: what is beyond every model is refused before anything is made of it."""
    value = getattr(config, name)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise CheckpointError(f"{name}={value!r} is not usable: expected a positive whole number")
    if value > most:
        raise CheckpointError(f"{name}={value} is not usable: expected at most {most}")
    return value


def _rms_norm_eps(config: PretrainedConfig) -> float:
    value = config.rms_norm_eps
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
        raise CheckpointError(f"rms_norm_eps={value!r} is not usable: expected a number from 0 to 1")
    return float(value)
