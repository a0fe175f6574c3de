"""The sizes of DeepSeek-OCR's encoders in config.json, as published or, of the second model, by transformers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from transformers import PretrainedConfig

from engine_core.errors import CheckpointError, UnsupportedModelError
from engine_core.vision.clip import ClipShape
from engine_core.vision.query_encoder import QueryEncoderShape
from engine_core.vision.sam import PATCH, PIXELS_PER_TOKEN, SamShape

MOST_LAYERS = 256
_MOST = 1 << 15
"""Of a width, or pixels along a side."""
_SAM = "vision_config.width.sam_vit_b"
_CLIP = "vision_config.width.clip-l-14-224"
_QUERIES = "vision_config.width.qwen2-0-5b"
_LARGEST = 1e30


def read_sam(config: PretrainedConfig) -> SamShape:
    """Raises ``CheckpointError``."""
    return _sam(config, _SAM, ("width", "heads", "layers"), "vision_config.image_size", 1024)


def _sam(
    config: PretrainedConfig, path: str, fields: tuple[str, str, str], of_size: str, usual_size: int | None = None
) -> SamShape:
    """``fields``: the names of width, heads and layers; ``of_size``: the path of the pixels along a side."""
    width, heads = (read_number(config, f"{path}.{name}") for name in fields[:2])
    _require_heads(path, width, heads, fields[1])
    image_size = read_number(config, of_size, usual_size)
    if image_size % PIXELS_PER_TOKEN:
        raise _unusable(of_size, image_size, f"a multiple of {PIXELS_PER_TOKEN}")
    layers = read_number(config, f"{path}.{fields[2]}", most=MOST_LAYERS)
    seeing_all = _list(config, f"{path}.global_attn_indexes", 0, MOST_LAYERS)
    channels = _list(config, f"{path}.downsample_channels", 1, _MOST)
    if len(channels) != 2:
        raise _unusable(f"{path}.downsample_channels", channels, "two numbers")
    return SamShape(image_size, width, layers, heads, seeing_all, (channels[0], channels[1]), 4 * width)


def read_clip(config: PretrainedConfig) -> ClipShape:
    """Raises ``CheckpointError``."""
    width, heads = read_number(config, f"{_CLIP}.width"), read_number(config, f"{_CLIP}.heads")
    _require_heads(_CLIP, width, heads)
    patch = read_number(config, f"{_CLIP}.patch_size")
    side = read_number(config, f"{_CLIP}.image_size") // patch
    if not side:
        raise _unusable(f"{_CLIP}.patch_size", patch, "at most image_size")
    return ClipShape(side, width, read_number(config, f"{_CLIP}.layers", most=MOST_LAYERS), heads)


def read_query_encoder(config: PretrainedConfig) -> QueryEncoderShape:
    """Raises ``CheckpointError``."""
    shape = QueryEncoderShape(read_number(config, f"{_QUERIES}.dim"))
    _require_heads(_QUERIES, shape.width, shape.num_heads)
    return shape


def read_transformers_sam(config: PretrainedConfig) -> SamShape:
    """Raises ``CheckpointError``, ``UnsupportedModelError``."""
    path = "vision_config.sam_config"
    fixed = {"patch_size": PATCH, "num_channels": 3, "hidden_act": "gelu", "layer_norm_eps": 1e-6}
    _require(config, path, fixed | dict.fromkeys(("qkv_bias", "use_abs_pos", "use_rel_pos"), True))
    fields = ("hidden_size", "num_attention_heads", "num_hidden_layers")
    return replace(
        _sam(config, path, fields, f"{path}.image_size"),
        intermediate_size=read_number(config, f"{path}.mlp_dim"),
        neck=read_number(config, f"{path}.output_channels"),
        window=read_number(config, f"{path}.window_size"),
    )


def read_transformers_query_encoder(config: PretrainedConfig) -> QueryEncoderShape:
    """Raises ``CheckpointError``, ``UnsupportedModelError``."""
    path = "vision_config.encoder_config"
    _require(config, path, {"hidden_act": "silu", "sliding_window": None, "rope_parameters.rope_type": "default"})
    width, heads = read_number(config, f"{path}.hidden_size"), read_number(config, f"{path}.num_attention_heads")
    _require_heads(path, width, heads, "num_attention_heads")
    kv_heads = read_number(config, f"{path}.num_key_value_heads")
    if heads % kv_heads:
        raise _unusable(f"{path}.num_key_value_heads", kv_heads, f"a divisor of num_attention_heads={heads}")
    return QueryEncoderShape(
        width,
        read_number(config, f"{path}.num_hidden_layers", most=MOST_LAYERS),
        heads,
        kv_heads,
        read_number(config, f"{path}.intermediate_size"),
        _positive(config, f"{path}.rms_norm_eps"),
        _positive(config, f"{path}.rope_parameters.rope_theta"),
    )


def read_projector(config: PretrainedConfig, width: int) -> int:
    """The projector's outputs; its inputs are ``width``. Raises ``CheckpointError``, ``UnsupportedModelError``."""
    kind, name = read(config, "projector_config.projector_type"), "projector_config.projector_type"
    if kind != "linear":
        raise UnsupportedModelError(f"{name}={kind!r} is not supported: expected 'linear'")
    if (inputs := read_number(config, "projector_config.input_dim")) != width:
        raise _unusable("projector_config.input_dim", inputs, f"{width}, as the encoders make")
    return read_number(config, "projector_config.n_embed")


def read(config: PretrainedConfig, path: str) -> Any:
    """The value at ``path``, whose names dots join; None if it is not there."""
    value: Any = config
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)
    return value


def read_number(config: PretrainedConfig, path: str, default: int | None = None, *, most: int = _MOST) -> int:
    """A whole number from 1 to ``most``. Raises ``CheckpointError``."""
    value = read(config, path)
    value = default if value is None else value
    if type(value) is not int or not 1 <= value <= most:
        raise _unusable(path, value, f"a whole number from 1 to {most}")
    return value


def _list(config: PretrainedConfig, path: str, least: int, most: int) -> tuple[int, ...]:
    values = read(config, path)
    if not isinstance(values, list | tuple) or any(
        type(each) is not int or not least <= each <= most for each in values
    ):
        raise _unusable(path, values, f"a list of whole numbers from {least} to {most}")
    return tuple(values)


def _positive(config: PretrainedConfig, path: str) -> float:
    value = read(config, path)
    if type(value) not in (int, float) or not 0 < value < _LARGEST:
        raise _unusable(path, value, "a positive number")
    return float(value)


def _require(config: PretrainedConfig, path: str, expected: Mapping[str, Any]) -> None:
    """Raise ``UnsupportedModelError`` for another value of a field below ``path``."""
    for name, value in expected.items():
        if (given := read(config, f"{path}.{name}")) != value:
            raise UnsupportedModelError(f"config.json: {path}.{name}={given!r} is not supported: expected {value!r}")


def _require_heads(name: str, width: int, heads: int, field: str = "heads") -> None:
    if width % heads or (width // heads) % 2:
        raise _unusable(f"{name}.{field}", heads, f"a divisor of the width {width}, to heads of even size")


def _unusable(path: str, value: Any, expected: str) -> CheckpointError:
    return CheckpointError(f"config.json: {path}={value!r} is not usable: expected {expected}")
