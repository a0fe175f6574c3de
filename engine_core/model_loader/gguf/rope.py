"""A GGUF file's RoPE fields, translated to ``rope_parameters`` of config.json.

Defaults are llama.cpp's. Unknown fields are refused: they would change the angles.
"""

from __future__ import annotations

import array
import math
from collections.abc import Sequence
from typing import Any

from engine_core.errors import CheckpointError, UnsupportedModelError
from engine_core.model_loader.gguf.metadata import Metadata
from engine_core.model_loader.gguf.reader import GgufTensor, shown

_PREFIX = "rope."
_FIELDS = {
    "dimension_count",
    "freq_base",
    "scale_linear",
    "scaling.attn_factor",
    "scaling.factor",
    "scaling.finetuned",  # about training, not inference
    "scaling.original_context_length",
    "scaling.type",
    "scaling.yarn_attn_factor",
    "scaling.yarn_beta_fast",
    "scaling.yarn_beta_slow",
    "scaling.yarn_ext_factor",
}


def rope_parameters(metadata: Metadata, default_head_dim: int) -> dict[str, Any]:
    """``rope_parameters``, including partial rotation, scaling, and per-pair factors that are read from tensors.

    Raises ``CheckpointError``, and ``UnsupportedModelError`` naming the field.
    """
    parameters: dict[str, Any] = {"rope_type": "default", "rope_theta": metadata.number("rope.freq_base", 10000.0)}
    head_dim = metadata.integer("attention.key_length", default_head_dim)
    rotated = metadata.integer("rope.dimension_count", head_dim)
    if rotated != head_dim and head_dim > 0:
        parameters["partial_rotary_factor"] = rotated / head_dim
    kind, factor = metadata.text("rope.scaling.type", "linear"), _factor(metadata)
    original = {
        "original_max_position_embeddings": metadata.integer(
            "rope.scaling.original_context_length", metadata.integer("context_length")
        )
    }
    attention_factor = _attention_factor(metadata, kind)
    if (of_pairs := _factors_of_pairs(metadata)) is not None:
        if kind != "none" and factor != 1.0:
            raise _unsupported(metadata, "scaling.factor", factor, "1 beside tensors of factors for each pair")
        return parameters | of_pairs | original | {"attention_factor": attention_factor}
    if kind == "yarn":
        return parameters | original | {"factor": factor} | _yarn(metadata, factor, attention_factor)
    if attention_factor != 1.0:
        raise _unsupported(metadata, "scaling.attn_factor", attention_factor, f"1 with scaling.type {kind}")
    if kind == "none" or (kind == "linear" and factor == 1.0):
        return parameters
    if kind == "linear":
        return parameters | {"rope_type": "linear", "factor": factor}
    raise UnsupportedModelError(
        f"{metadata.file.path}: {metadata.key('rope.scaling.type')}={kind!r} is not supported without the tensors "
        "rope_factors_short and rope_factors_long: expected none, linear or yarn"
    )


def require_one_base(metadata: Metadata) -> None:
    """Raise ``UnsupportedModelError`` for layers with a window that rotate by a base of their own."""
    metadata.require("rope.freq_base_swa", metadata.number("rope.freq_base", 10000.0))


def check_rope_fields(metadata: Metadata, further: frozenset[str]) -> None:
    """Raise ``UnsupportedModelError`` for a field that is neither known nor one of the architecture's ``further``."""
    known, prefix = _FIELDS | further, metadata.key(_PREFIX)
    for name, value in metadata.file.metadata.items():
        if name.startswith(prefix) and name.removeprefix(prefix) not in known:
            raise UnsupportedModelError(
                f"{metadata.file.path}: {name}={shown(value)} is not supported: expected none of {prefix}* but "
                f"{', '.join(sorted(known))}"
            )


def _factor(metadata: Metadata) -> float:
    """The context scaling factor, also under its old name; 0 in the file means 1."""
    factor = metadata.number("rope.scaling.factor", metadata.number("rope.scale_linear", 0.0))
    return 1.0 if factor == 0.0 else factor


def _attention_factor(metadata: Metadata, kind: str) -> float:
    """The factor of cosines and sines, on top of YaRN's."""
    mixed, usual = metadata.number("rope.scaling.yarn_ext_factor", -1.0), 1.0 if kind == "yarn" else 0.0
    if mixed not in (usual, -1.0):  # -1 is "not set"
        raise _unsupported(metadata, "scaling.yarn_ext_factor", mixed, f"{usual:g} with scaling.type {kind}")
    return metadata.number("rope.scaling.attn_factor", 1.0) * metadata.number("rope.scaling.yarn_attn_factor", 1.0)


def _yarn(metadata: Metadata, factor: float, attention_factor: float) -> dict[str, Any]:
    """Fields of YaRN (https://arxiv.org/abs/2309.00071)."""
    parameters: dict[str, Any] = {
        "rope_type": "yarn",
        "beta_fast": metadata.number("rope.scaling.yarn_beta_fast", 32.0),
        "beta_slow": metadata.number("rope.scaling.yarn_beta_slow", 1.0),
    }
    if attention_factor == 1.0:
        return parameters
    if metadata.architecture == "deepseek2":  # it would scale scores, too
        raise _unsupported(metadata, "scaling.attn_factor", attention_factor, "1")
    if factor < 1.0:
        raise _unsupported(metadata, "scaling.factor", factor, "at least 1 with scaling.type yarn")
    return parameters | {"attention_factor": attention_factor * (1.0 + 0.1 * math.log(factor))}


def _factors_of_pairs(metadata: Metadata) -> dict[str, Any] | None:
    """Factors for short and for long contexts; Llama 3's are the same for both."""
    tensors = metadata.file.tensors
    both = tensors.get("rope_freqs.weight")
    short = both or tensors.get("rope_factors_short.weight")
    long = both or tensors.get("rope_factors_long.weight")
    if short is None or long is None:
        return None
    return {"rope_type": "longrope", "short_factor": list(_numbers(short)), "long_factor": list(_numbers(long))}


def factors_of_pairs(tensor: GgufTensor | None) -> Sequence[float]:
    """A tensor's factors; none of no tensor."""
    return () if tensor is None else _numbers(tensor)


def _numbers(tensor: GgufTensor) -> array.array[float]:
    """The numbers of a short float32 vector."""
    if tensor.type.name != "F32" or len(tensor.shape) != 1 or tensor.shape[0] > 2**12:
        raise CheckpointError(
            f"{tensor.file}: {tensor.name} is {tensor.type.name} {list(tensor.shape)}: expected a short vector of F32"
        )
    with tensor.file.open("rb") as opened:
        opened.seek(tensor.offset)
        return array.array("f", opened.read(tensor.nbytes))


def _unsupported(metadata: Metadata, field: str, value: float, expected: str) -> UnsupportedModelError:
    name = metadata.key(f"{_PREFIX}{field}")
    return UnsupportedModelError(f"{metadata.file.path}: {name}={value:g} is not supported: expected {expected}")
