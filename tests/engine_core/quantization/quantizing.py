"""Makes quantized checkpoints of random models, format by format, and what their weights stand for: both in numpy and
torch after the formats' definitions, apart from the engine's readers.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import PretrainedConfig

from tests.engine_core.models.tiny_models import make_model, save_model

Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Quantizer:
    """A format."""

    fields: dict[str, Any]
    """Of ``quantization_config``."""
    quantize: Callable[[str, torch.Tensor], tuple[Tensors, torch.Tensor]]
    """Tensors of the layer of that name instead of its weight [N, K] float32, and the weight that they stand for."""
    is_quantized: Callable[[str], bool] = lambda name: ".layers." in name and not name.endswith(".gate")


def save_quantized(config: PretrainedConfig, quantizer: Quantizer, directory: Path, dtype: torch.dtype) -> Path:
    """Two checkpoints: ``directory / "quantized"``, and ``directory / "expanded"`` of the weights it stands for."""
    model = make_model(config)
    expanded, quantized = directory / "expanded", directory / "quantized"
    stored: Tensors = {}
    meant: Tensors = {}
    for name, tensor in state_of(model).items():
        layer = name.removesuffix(".weight")
        if name != layer and tensor.ndim == 2 and "norm" not in name and quantizer.is_quantized(layer):
            parts, meant[name] = quantizer.quantize(layer, tensor)
            stored |= {each: part.contiguous() for each, part in parts.items()}
        else:
            stored[name] = meant[name] = tensor.to(dtype)
    save_model(model, expanded)
    for path, tensors in ((expanded, meant), (quantized, stored)):
        path.mkdir(exist_ok=True)
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path / "model.safetensors")
    fields = json.loads((expanded / "config.json").read_text("utf-8"))
    (quantized / "config.json").write_text(json.dumps(fields | {"quantization_config": quantizer.fields}), "utf-8")
    return quantized


def state_of(model: torch.nn.Module) -> Tensors:
    """As transformers would save it: without what is tied, and experts one by one."""
    found: Tensors = {}
    tied = getattr(model.config, "tie_word_embeddings", False)
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and tied:
            continue
        if name.endswith("experts.gate_up_proj"):
            prefix = name.removesuffix(".gate_up_proj")
            for expert, rows in enumerate(tensor):
                gate, up = rows.chunk(2)
                found |= {f"{prefix}.{expert}.gate_proj.weight": gate, f"{prefix}.{expert}.up_proj.weight": up}
        elif name.endswith("experts.down_proj"):
            for expert, rows in enumerate(tensor):
                found[f"{name.removesuffix('.down_proj')}.{expert}.down_proj.weight"] = rows
        else:
            found[name] = tensor
    return {name: tensor.clone() for name, tensor in found.items()}


def grouped(weight: torch.Tensor, size: int) -> torch.Tensor:
    """[N, G, size] of ``weight`` [N, K]."""
    return weight.reshape(len(weight), -1, weight.shape[1] if size == -1 else size)


def packed(codes: torch.Tensor, bits: int, order: tuple[int, ...] | None = None) -> torch.Tensor:
    """[N, K · bits / 32] int32 of ``codes`` [N, K]: the first in the lowest bits, or that of place ``order[0]``."""
    count = 32 // bits
    words = codes.reshape(len(codes), -1, count).long()
    total = sum(words[..., (order or range(count))[place]] << (bits * place) for place in range(count))
    assert isinstance(total, torch.Tensor)
    return torch.where(total >= 2**31, total - 2**32, total).int()


def asymmetric(weight: torch.Tensor, size: int, bits: int = 4) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Codes [N, K], scales [N, G] float16 and zeros [N, G]."""
    groups = grouped(weight, size)
    low, high = groups.amin(-1).clamp(max=0), groups.amax(-1).clamp(min=0)
    scales = ((high - low) / (2**bits - 1)).half()
    safe = scales.float().clamp(min=1e-9)
    zeros = (-low / safe).round().clamp(0, 2**bits - 1)
    codes = ((groups / safe[..., None]).round() + zeros[..., None]).clamp(0, 2**bits - 1)
    return codes.flatten(1), scales, zeros


def meant_by(codes: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor | float, size: int) -> torch.Tensor:
    shifted = grouped(codes, size) - (zeros[..., None] if isinstance(zeros, torch.Tensor) else zeros)
    return (shifted.double() * scales.double()[..., None]).flatten(1).float()


_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def awq(size: int = 32, exceptions: tuple[str, ...] = ()) -> Quantizer:
    def quantize(name: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        codes, scales, zeros = asymmetric(weight, size)
        tensors = {
            f"{name}.qweight": packed(codes.t(), 4, _AWQ_ORDER),
            f"{name}.qzeros": packed(zeros.t(), 4, _AWQ_ORDER),
            f"{name}.scales": scales.t(),
        }
        return tensors, meant_by(codes, scales, zeros, size)

    fields = {
        "quant_method": "awq",
        "bits": 4,
        "group_size": size,
        "zero_point": True,
        "version": "gemm",
        "modules_to_not_convert": list(exceptions) or None,
    }
    default = Quantizer.is_quantized
    return Quantizer(fields, quantize, lambda name: default(name) and not any(each in name for each in exceptions))
