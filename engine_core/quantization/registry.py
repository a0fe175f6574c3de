"""Methods of quantized checkpoints, by ``quant_method`` of ``quantization_config`` in config.json.

A method is one file and a line here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from engine_core.quantization.auto_round import AutoRoundConfig
from engine_core.quantization.awq import AwqConfig
from engine_core.quantization.base import QuantizationConfig
from engine_core.quantization.bitsandbytes import BitsAndBytesConfig
from engine_core.quantization.compressed_tensors import CompressedTensorsConfig
from engine_core.quantization.fp8 import Fp8Config
from engine_core.quantization.gguf import GgufConfig
from engine_core.quantization.gptq import GptqConfig
from engine_core.quantization.mxfp4 import Mxfp4Config
from engine_core.quantization.schemes import Tensors

STORED: dict[str, Callable[[Mapping[str, Any], Tensors], QuantizationConfig]] = {
    "auto-round": AutoRoundConfig,
    "awq": AwqConfig,
    "bitsandbytes": BitsAndBytesConfig,
    "compressed-tensors": CompressedTensorsConfig,
    "fp8": Fp8Config,
    "gptq": GptqConfig,
    "gguf": lambda fields, tensors: GgufConfig.of(fields),
    "mxfp4": lambda fields, tensors: Mxfp4Config(fields),
}
"""Functions of the fields of ``quantization_config``; raise ``UnsupportedModelError`` and ``CheckpointError``."""
