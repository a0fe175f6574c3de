"""How quantized checkpoints say what they are: ``quantization_config`` of config.json, read by its ``quant_method``.

A method is one file and a line here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from engine_core.quantization.base import QuantizationConfig
from engine_core.quantization.gguf import GgufConfig
from engine_core.quantization.mxfp4 import Mxfp4Config

STORED: dict[str, Callable[[Mapping[str, Any]], QuantizationConfig]] = {
    "gguf": GgufConfig.of,
    "mxfp4": Mxfp4Config,
}
"""Takes the fields of ``quantization_config``; raises ``UnsupportedModelError`` and ``CheckpointError``."""
