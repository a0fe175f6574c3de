"""How quantized checkpoints say what they are: ``quantization_config`` of config.json, read by its ``quant_method``.

A method is one file and a line here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from engine_core.quantization.awq import AwqConfig
from engine_core.quantization.base import QuantizationConfig
from engine_core.quantization.mxfp4 import Mxfp4Config

STORED: dict[str, Callable[[Mapping[str, Any], torch.dtype], QuantizationConfig]] = {
    "awq": AwqConfig,
    "mxfp4": lambda fields, scale_dtype: Mxfp4Config(fields),
}
"""Takes the fields of ``quantization_config`` and the type of the checkpoint's scales; raises ``UnsupportedModelError``
and ``CheckpointError``.
"""
SCALES = (".scales", ".weight_scale", ".weight_scale_inv", ".absmax")
"""How the names of tensors of scales end."""
