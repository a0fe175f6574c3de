"""How a checkpoint is quantized, according to config.json or the files of quantizing tools."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from engine_core.errors import ConfigError, UnsupportedModelError
from engine_core.model_loader.formats import QUANTIZATION_FILES, method_name, quantization_method
from engine_core.model_loader.gguf.files import is_gguf
from engine_core.model_loader.json_files import read_object
from engine_core.model_loader.stored_tensor import StoredTensor
from engine_core.quantization.base import QuantizationConfig
from engine_core.quantization.registry import STORED


def with_quantization(path: Path, raw: dict[str, Any]) -> dict[str, Any]:
    """``raw`` with what quantizing tools wrote into a separate file instead of config.json."""
    if quantization_method(raw) is not None:
        return raw
    for name, method in QUANTIZATION_FILES.items():
        fields = read_object(path / name, optional=True)
        if method == "modelopt":
            said = fields.get("quantization")
            # without quant_algo, it only concerns the KV cache
            fields = said if isinstance(said, dict) and said.get("quant_algo") else {}
        if fields:
            return {**raw, "quantization_config": {"quant_method": method, **fields}}
    return raw


def stored_quantization(
    path: Path, raw: Mapping[str, Any], quantization: str | None, tensors: Callable[[], Mapping[str, StoredTensor]]
) -> QuantizationConfig | None:
    """How the checkpoint is quantized, if it is; ``tensors``: the model's in its safetensors files, if they are there.

    Raises ``ConfigError``, ``UnsupportedModelError``.
    """
    if (quantized := quantization_method(raw)) is None:
        return None
    method, name = quantized
    if quantization is not None:
        raise ConfigError("quantization", quantization, f"no value, because {path} is quantized already, with {name}")
    if method is not None and method in STORED and (method == "gguf") == is_gguf(path):
        return STORED[method](raw["quantization_config"], tensors())
    methods = sorted(map(method_name, STORED))
    raise UnsupportedModelError(
        f"{path} is quantized with {name}, which is not supported: choose one with "
        f"{', '.join(methods[:-1])} or {methods[-1]}, or one that is not quantized, whose weights --quantization rounds"
    )


def require_stored_codes(path: Path, quantization: str | None, stored: QuantizationConfig | None) -> None:
    """Raise ``ConfigError`` if --int8-activations has no inputs to round."""
    if quantization == "int8":
        problem = "because --quantization int8 rounds inputs always"
    elif quantization is None and stored is None:
        problem = f"because {path} is not quantized: choose a checkpoint that is, or add --quantization int4"
    else:
        return
    raise ConfigError("int8_activations", True, f"False, {problem}")
