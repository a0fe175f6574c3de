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
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam
from compressed_tensors.utils.match import match_name
from safetensors.torch import save_file
from transformers import PretrainedConfig

from tests.engine_core.models.tiny_models import make_model, save_model

Tensors = dict[str, torch.Tensor]


def in_layers(name: str) -> bool:
    return ".layers." in name and not name.endswith((".gate", "shared_expert_gate"))


@dataclass(frozen=True)
class Quantizer:
    """A format."""

    fields: dict[str, Any]
    """Of ``quantization_config``."""
    quantize: Callable[[str, torch.Tensor], tuple[Tensors, torch.Tensor]]
    """Tensors of the layer of that name instead of its weight [N, K] float32, and the weight that they stand for."""
    is_quantized: Callable[[str], bool] = in_layers


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
            stored |= {each: part.contiguous().clone() for each, part in parts.items()}
        else:
            stored[name] = meant[name] = tensor.to(dtype)
    save_model(model, expanded)
    for path, tensors in ((expanded, meant), (quantized, stored)):
        path.mkdir(exist_ok=True)
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path / "model.safetensors")
    fields = json.loads((expanded / "config.json").read_text("utf-8"))
    fields |= {"dtype": str(dtype).removeprefix("torch."), "quantization_config": quantizer.fields}
    (quantized / "config.json").write_text(json.dumps(fields), "utf-8")
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
        elif name.endswith(("experts.up_proj", "experts.down_proj")):  # ups are alone where there are no gates
            prefix, _, projection = name.rpartition(".")
            for expert, rows in enumerate(tensor):
                found[f"{prefix}.{expert}.{projection}.weight"] = rows
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

    fields = {"quant_method": "awq", "bits": 4, "group_size": size, "zero_point": True, "version": "gemm"}
    fields |= {"modules_to_not_convert": list(exceptions) or None}
    return Quantizer(fields, quantize, lambda name: in_layers(name) and not any(each in name for each in exceptions))


def gptq(
    bits: int = 4,
    size: int = 32,
    *,
    symmetric: bool = True,
    ordered: bool = False,
    version: int = 1,
    dynamic: dict[str, dict[str, Any]] | None = None,
    left_out: str = "nothing",
    **fields: Any,
) -> Quantizer:
    """``ordered`` as with ``desc_act``; ``dynamic`` has the rules by name, ``left_out`` layers are not quantized."""

    def quantize(name: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        own = next((changes for part, changes in (dynamic or {}).items() if part in name), {})
        own_bits, own_size = own.get("bits", bits), own.get("group_size", size)
        middle, inputs = 1 << (own_bits - 1), weight.shape[1]
        in_order = torch.arange(inputs) // (inputs if own_size == -1 else own_size)
        # Of a layer's projections all see the same inputs.
        seed = (
            1 if name.endswith(("q_proj", "k_proj", "v_proj")) else 2 if name.endswith(("gate_proj", "up_proj")) else 3
        )
        shuffled = torch.randperm(inputs, generator=torch.Generator().manual_seed(seed))
        groups = in_order[shuffled] if ordered else in_order
        order = groups.argsort(stable=True)
        codes, scales, zeros = asymmetric(weight[:, order], own_size, own_bits)
        if symmetric:
            largest = grouped(weight[:, order], own_size).abs().amax(-1)
            scales, zeros = (largest / (middle - 1)).half(), torch.full_like(zeros, middle)
            safe = scales.float().clamp(min=1e-9)[..., None]
            codes = ((grouped(weight[:, order], own_size) / safe).round() + middle).clamp(0, 2 * middle - 1).flatten(1)
        else:
            zeros = zeros.clamp(min=1)
        back = order.argsort()
        tensors = {
            f"{name}.qweight": packed(codes[:, back], own_bits).t(),
            f"{name}.qzeros": packed((zeros - (1 if version == 1 else 0)).t(), own_bits),
            f"{name}.scales": scales.t(),
            f"{name}.g_idx": groups.int(),
        }
        return tensors, meant_by(codes, scales, zeros, own_size)[:, back]

    rules = {f"+:.*{part}.*": changes for part, changes in (dynamic or {}).items()}
    if left_out != "nothing":
        rules[f"-:.*{left_out}.*"] = {}
    fields |= {"quant_method": "gptq", "bits": bits, "group_size": size, "sym": symmetric, "desc_act": ordered}
    fields |= {"checkpoint_format": "gptq" if version == 1 else "gptq_v2", "dynamic": rules or None}
    return Quantizer(fields, quantize, lambda name: in_layers(name) and left_out not in name)


def auto_round(*, head: bool = False) -> Quantizer:
    """Packed like GPTQ, without ``g_idx``; rules by name, which come first, and by patterns."""
    like = gptq(
        dynamic={
            "layers.0.self_attn.k_proj": {"bits": 8},
            "k_proj": {"group_size": 16},
            "down_proj": {"group_size": -1},
        },
        left_out="gate_proj",
    )

    def quantize(name: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        tensors, meant = like.quantize(name, weight)
        del tensors[f"{name}.g_idx"]
        return tensors, meant

    rules: dict[str, dict[str, Any]] = {
        r"layers\.\d+\..*k_proj": {"group_size": 16},
        r".*mlp.*\.gate_proj.*": {"bits": 16, "data_type": "fp"},
        "model.layers.0.self_attn.k_proj": {"bits": 8},
        r"^(model|backbone)\..*\.down_proj$": {"group_size": -1},
    }
    if head:
        rules["lm_head"] = {"bits": 4, "group_size": 32, "sym": True, "data_type": "int", "super_bits": None}
    fields = {"quant_method": "auto-round", "packing_format": "auto_round:auto_gptq", "bits": 4, "group_size": 32}
    fields |= {"sym": True, "data_type": "int", "block_name_to_quantize": "model.layers", "extra_config": rules}
    return Quantizer(fields, quantize, lambda name: like.is_quantized(name) or (head and name == "lm_head"))


def auto_round_awq() -> Quantizer:
    """Packed like AWQ, with rules."""
    like = awq(exceptions=("k_proj", "up_proj"))
    rules = {r".*k_proj.*": {"bits": 16}, r"mlp.*up_proj": {"bits": 16}}
    fields = {"quant_method": "auto-round", "packing_format": "auto_round:auto_awq", "bits": 4, "group_size": 32}
    return Quantizer(fields | {"sym": False, "extra_config": rules}, like.quantize, like.is_quantized)


def compressed(
    stored: str, inputs: dict[str, Any] | None = None, targets: tuple[str, ...] = ("Linear",), **arguments: Any
) -> Quantizer:
    """By compressed-tensors' own compression, in that format; ``arguments`` are those of its weights."""
    return mixed((stored, inputs, targets, arguments))


def mixed(*groups: tuple[str, dict[str, Any] | None, tuple[str, ...], dict[str, Any]]) -> Quantizer:
    """Several groups of targets, of which the last has all that no other has."""
    schemes = [
        (
            stored,
            QuantizationScheme(targets=list(targets), weights=QuantizationArgs(**arguments), input_activations=inputs),
        )
        for stored, inputs, targets, arguments in groups
    ]

    def quantize(name: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        stored, scheme = next(
            (each for each in schemes if any(match_name(name, target) for target in each[1].targets)), schemes[-1]
        )
        assert scheme.weights is not None
        compressor = BaseCompressor.get_value_from_registry(stored)
        state = {"weight": weight, **_scales_of(weight, scheme.weights)}
        if scheme.weights.actorder is not None:
            state["weight_g_idx"] = torch.arange(weight.shape[1], dtype=torch.int32) // scheme.weights.group_size
        packed_state = compressor.compress(state, scheme)
        meant = compressor.decompress(packed_state, scheme)["weight"]
        if stored.startswith("nvfp4"):  # whose products decompression rounds to bfloat16
            numbers = unpack_fp4_from_uint8(packed_state["weight_packed"], *weight.shape, dtype=torch.float32)
            scales = packed_state["weight_scale"].float() / packed_state["weight_global_scale"]
            meant = (grouped(numbers, 16) * scales[..., None]).flatten(1)
        return {f"{name}.{kind}": tensor for kind, tensor in packed_state.items()}, meant.float()

    described = {
        f"group_{number}": {
            "targets": scheme.targets,
            "weights": scheme.weights.model_dump(mode="json") if scheme.weights else None,
            "input_activations": inputs,
            "format": stored,
        }
        for number, ((stored, scheme), (_, inputs, _, _)) in enumerate(zip(schemes, groups, strict=True))
    }
    fields = {
        "quant_method": "compressed-tensors",
        "format": groups[0][0] if len(groups) == 1 else "mixed-precision",
        "config_groups": described,
        "ignore": ["lm_head"],
        "quantization_status": "compressed",
    }
    return Quantizer(fields, quantize)


def _scales_of(weight: torch.Tensor, arguments: QuantizationArgs) -> Tensors:
    """Scales, and zeros where they are needed."""
    found: Tensors = {}
    if arguments.strategy == "block":
        rows, columns = arguments.block_structure
        padded = torch.nn.functional.pad(weight, (0, -weight.shape[1] % columns, 0, -weight.shape[0] % rows))
        blocks = padded.reshape(len(padded) // rows, rows, -1, columns)
        low, high = blocks.amin((1, 3)), blocks.amax((1, 3))
    elif arguments.strategy == "tensor":
        low, high = weight.min().reshape(1), weight.max().reshape(1)
    else:
        of_groups = grouped(weight, -1 if arguments.strategy == "channel" else arguments.group_size)
        low, high = of_groups.amin(-1), of_groups.amax(-1)
    if arguments.strategy == "tensor_group":
        found["weight_global_scale"] = generate_gparam(low.min(), high.max()).reshape(1)
    scale, zero = calculate_qparams(low, high, arguments, global_scale=found.get("weight_global_scale"))
    return found | {"weight_scale": scale, "weight_zero_point": zero}


def fp8(block: tuple[int, int] | None = None, shape: tuple[int, ...] = (1,), static: bool = False) -> Quantizer:
    """Scales of blocks or of tensors, whose shape is () or (1,)."""

    def quantize(name: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        outputs, inputs = weight.shape
        if block is None:
            scale = (weight.abs().max() / 448).reshape(shape)
            spread = scale
        else:
            rows, columns = block
            padded = torch.nn.functional.pad(weight, (0, -inputs % columns, 0, -outputs % rows))
            scale = padded.reshape(len(padded) // rows, rows, -1, columns).abs().amax((1, 3)) / 448
            spread = scale.repeat_interleave(rows, 0).repeat_interleave(columns, 1)[:outputs, :inputs]
        stored = (weight / spread).clamp(-448, 448).to(torch.float8_e4m3fn)
        name_of_scale = "weight_scale" if block is None else "weight_scale_inv"
        tensors = {f"{name}.weight": stored, f"{name}.{name_of_scale}": scale}
        if static:
            tensors[f"{name}.input_scale"] = torch.ones(1)
        return tensors, (stored.double() * spread.double()).float()

    fields = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "static" if static else "dynamic"}
    return Quantizer(fields | {"weight_block_size": None if block is None else list(block)}, quantize)


def nf4(*, double: bool = True) -> Quantizer:
    def quantize(name: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        blocks = weight.reshape(-1, 64)
        absmax = blocks.abs().amax(1)
        state: dict[str, Any] = {"quant_type": "nf4", "blocksize": 64, "shape": list(weight.shape), "dtype": "float32"}
        tensors: Tensors = {}
        if double:
            offset = absmax.mean().item()
            state |= {"nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": offset}
            nested_map = torch.linspace(-1, 1, 256)
            padded = torch.nn.functional.pad(absmax - offset, (0, -len(absmax) % 256)).view(-1, 256)
            nested = padded.abs().amax(1).clamp(min=1e-6)
            codes = ((padded / nested[:, None])[..., None] - nested_map).abs().argmin(-1)
            absmax = (nested_map[codes] * nested[:, None]).flatten()[: len(absmax)] + offset
            tensors = {
                f"{name}.weight.absmax": codes.flatten()[: len(absmax)].to(torch.uint8),
                f"{name}.weight.nested_absmax": nested,
                f"{name}.weight.nested_quant_map": nested_map,
            }
        else:
            tensors = {f"{name}.weight.absmax": absmax}
        codes = ((blocks / absmax[:, None])[..., None] - _NF4).abs().argmin(-1).flatten()
        tensors |= {
            f"{name}.weight": (codes[::2] << 4 | codes[1::2]).to(torch.uint8)[:, None],
            f"{name}.weight.quant_map": _NF4,
            f"{name}.weight.quant_state.bitsandbytes__nf4": torch.tensor(list(json.dumps(state).encode())).byte(),
        }
        return tensors, (_NF4[codes].view(-1, 64) * absmax[:, None]).view(weight.shape)

    fields = {"quant_method": "bitsandbytes", "load_in_4bit": True, "load_in_8bit": False, "bnb_4bit_quant_type": "nf4"}
    return Quantizer(fields | {"bnb_4bit_use_double_quant": double}, quantize)


_NF4 = torch.tensor(
    [
        *(-1.0, -0.69619280, -0.52507305, -0.39491749, -0.28444138, -0.18477343, -0.09105004, 0.0),
        *(0.07958030, 0.16093020, 0.24611230, 0.33791524, 0.44070983, 0.56261700, 0.72295684, 1.0),
    ]
)


def llm_int8() -> Quantizer:
    def quantize(name: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        largest = weight.abs().amax(1)
        codes = (weight * 127 / largest[:, None]).round().to(torch.int8)
        tensors = {f"{name}.weight": codes, f"{name}.SCB": largest, f"{name}.weight_format": torch.tensor(0).byte()}
        return tensors, (codes.double() * largest[:, None].double() / 127).float()

    return Quantizer({"quant_method": "bitsandbytes", "load_in_8bit": True, "load_in_4bit": False}, quantize)
