"""Writes a checkpoint of transformers as a GGUF file, as convert_hf_to_gguf.py (llama.cpp) does, with the ``gguf``
package: its names of fields and tensors, its quantization.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf.constants import GGMLQuantizationType
from safetensors.torch import load_file, save_file
from transformers import PretrainedConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from tests.engine_core.model_loader.gguf.written_fields import metadata, of_kinds
from tests.engine_core.model_loader.gguf.written_states import NORMS_PLUS_ONE, architecture_of, changed

ARCHITECTURES = {
    "llama": "llama",
    "mistral": "llama",
    "mixtral": "llama",
    "qwen2": "qwen2",
    "qwen2_moe": "qwen2moe",
    "qwen3": "qwen3",
    "qwen3_moe": "qwen3moe",
    "gemma2": "gemma2",
    "gemma3_text": "gemma3",
    "phi3": "phi3",
    "olmo2": "olmo2",
    "granite": "granite",
    "smollm3": "smollm3",
    "ministral3": "mistral3",
    "arcee": "arcee",
    "cohere": "command-r",
    "cohere2": "cohere2",
    "ernie4_5": "ernie4_5",
    "exaone4": "exaone4",
    "gemma": "gemma",
    "hunyuan_v1_dense": "hunyuan-dense",
    "hunyuan_v1_moe": "hunyuan-moe",
    "nemotron": "nemotron",
    "olmo": "olmo",
    "phi": "phi2",
    "seed_oss": "seed_oss",
    "ernie4_5_moe": "ernie4_5-moe",
    "dots1": "dots1",
    "exaone_moe": "exaone-moe",
    "llama4_text": "llama4",
    "granitemoe": "granitemoe",
    "granitemoeshared": "granitemoe",
    "minimax_m2": "minimax-m2",
    "olmoe": "olmoe",
    "solar_open": "glm4moe",
    "stablelm": "stablelm",
    "starcoder2": "starcoder2",
    "olmo3": "olmo2",
    "gemma4_text": "gemma4",
    "glm": "chatglm",
    "glm4": "glm4",
    "glm4_moe": "glm4moe",
    "deepseek_v2": "deepseek2",
    "deepseek_v3": "deepseek2",
    "gpt_oss": "gpt-oss",
}
"""By ``model_type``."""
_PAIRED = ("arcee", "llama", "mistral", "ministral3", "mixtral", "granite", "olmo", "smollm3")
_UNPAIRED_ARCHITECTURES = ("exaone",)
_NORMS_PLUS_ONE = ("gemma", "gemma2", "gemma3_text", "nemotron", *NORMS_PLUS_ONE)
_GRANITE_MOE = ("granitemoe", "granitemoeshared", "granitemoehybrid")
_PAIRED += (*_GRANITE_MOE, "nemotron_h")
_HEAD_NORM = re.compile(r"(model\.layers\.\d+\.self_attn\.[qk]_layernorm)\.norms\.(\d+)\.weight")
_EXPERT = re.compile(r"((?:model|backbone)\.layers\.\d+\..*experts)\.(\d+)\.(\w+)\.(weight|bias)")
TypeOf = Callable[[str, tuple[int, ...]], str]
"""The type of a tensor of that name and shape."""


def floats(name: str, shape: tuple[int, ...]) -> str:
    return "F32"


def quantized(kind: str) -> TypeOf:
    """That type for all weights whose rows are long enough, but for norms and routers."""
    block, _ = gguf.GGML_QUANT_SIZES[GGMLQuantizationType[kind]]

    def type_of(name: str, shape: tuple[int, ...]) -> str:
        of_norms = "norm" in name or "ffn_gate_inp" in name
        kept = len(shape) < 2 or shape[-1] % block or of_norms or not name.endswith(".weight")
        return "F32" if kept else kind

    return type_of


@dataclass
class Converted:
    """A tensor of a GGUF file, and how to come back from its numbers to those of the checkpoint."""

    numbers: np.ndarray
    back: Callable[[np.ndarray], dict[str, np.ndarray]]


def write_gguf(
    checkpoint: Path,
    config: PretrainedConfig,
    file: Path,
    type_of: TypeOf = floats,
    dequantized: Path | None = None,
    *,
    architecture: str | None = None,
    change: Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]] = lambda tensors: tensors,
    more: Mapping[str, Any] | None = None,
) -> Path:
    """The checkpoint in safetensors as a GGUF file, with ``more`` fields; ``dequantized`` becomes the checkpoint of its
    numbers.

    ``architecture``: a value of ``general.architecture`` that is not the usual one. ``change`` is made to what would be
    written.
    """
    tensors = {name: tensor.float().numpy() for name, tensor in load_file(checkpoint / "model.safetensors").items()}
    architecture = architecture or architecture_of(config) or ARCHITECTURES[config.model_type]
    writer = gguf.GGUFWriter(file, architecture)
    for key, value in (metadata(config) | (more or {})).items():
        _add(writer, key if key.startswith(("general.", "tokenizer.")) else f"{writer.arch}.{key}", value)
    rng, back = np.random.default_rng(0), {}
    written = converted(config, architecture, tensors)
    changed_tensors = change({name: tensor.numbers for name, tensor in written.items()})
    for name, numbers in changed_tensors.items():
        tensor = Converted(numbers, written[name].back if name in written else lambda numbers: {})
        kind = GGMLQuantizationType[type_of(name, tensor.numbers.shape)]
        stored = _quantize(tensor.numbers, kind, rng)
        writer.add_tensor(name, stored, raw_dtype=kind)
        back |= tensor.back(gguf.quants.dequantize(stored, kind).reshape(tensor.numbers.shape))
    for name, factors in _rotations(config).items():
        writer.add_tensor(name, factors)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    if dequantized is not None:
        dequantized.mkdir()
        for each in checkpoint.glob("*.json"):
            (dequantized / each.name).write_text(each.read_text())
        save_file(
            {n: torch.from_numpy(np.ascontiguousarray(a)) for n, a in back.items()}, dequantized / "model.safetensors"
        )
    return file


def _quantize(numbers: np.ndarray, kind: GGMLQuantizationType, rng: np.random.Generator) -> np.ndarray:
    try:
        return gguf.quants.quantize(np.ascontiguousarray(numbers), kind)
    except NotImplementedError:
        return random_blocks(kind, numbers.shape, rng)


SCALES = {"Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "Q4_1": (0, 2)}
SCALES |= {"Q5_1": (0, 2), "MXFP4": ()}
"""Where a block has numbers of float16; at its beginning, unless it is here."""


def random_blocks(kind: GGMLQuantizationType, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """Bytes of blocks with any codes, and scales that make numbers of the size of weights."""
    size, nbytes = gguf.GGML_QUANT_SIZES[kind]
    blocks = rng.integers(0, 256, (*shape[:-1], shape[-1] // size, nbytes), dtype=np.uint8)
    inner = {"Q2_K": 15 * 3, "Q3_K": 32 * 4, "Q4_K": 63 * 15, "Q5_K": 63 * 31, "Q6_K": 127 * 32, "IQ4_XS": 32 * 127}
    for at in SCALES.get(kind.name, (0,)):
        scales = rng.uniform(0.2, 0.4, blocks.shape[:-1]) / inner.get(kind.name, 16)
        blocks[..., at : at + 2] = scales.astype(np.float16)[..., None].view(np.uint8)
    if kind.name == "MXFP4":
        blocks[..., 0] = rng.integers(120, 126, blocks.shape[:-1])
    return blocks.reshape(*shape[:-1], -1)


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    match value:
        case bool():
            writer.add_bool(key, value)
        case int():
            writer.add_uint32(key, value)
        case float():
            writer.add_float32(key, value)
        case str():
            writer.add_string(key, value)
        case list():
            writer.add_array(key, value)


def _rotations(config: PretrainedConfig) -> dict[str, np.ndarray]:
    """Factors of the periods of pairs."""
    rope = getattr(config, "rope_parameters", None) or {}
    if config.model_type == "gemma4_text":
        pairs = of_kinds(config, "head_dim")["full_attention"] // 2
        rotated = int(pairs * rope["full_attention"].get("partial_rotary_factor", 1.0))
        return {"rope_freqs.weight": np.array([1.0] * rotated + [1e30] * (pairs - rotated), np.float32)}
    match rope.get("rope_type"):
        case "longrope":
            return {
                f"rope_factors_{length}.weight": np.array(rope[f"{length}_factor"], np.float32)
                for length in ("short", "long")
            }
        case "llama3":
            stretched, _ = ROPE_INIT_FUNCTIONS["llama3"](config)
            count = 2 * len(stretched)
            periods = rope["rope_theta"] ** (torch.arange(0, count, 2).float() / count)
            return {"rope_freqs.weight": (1 / periods / stretched).numpy()}
    return {}


def converted(config: PretrainedConfig, architecture: str, tensors: Mapping[str, np.ndarray]) -> dict[str, Converted]:
    """By their names in the file."""
    arch = next(each for each, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(arch, config.num_hidden_layers)
    found: dict[str, Converted] = {}
    experts: dict[str, dict[int, str]] = {}  # and norms of heads, which are stacked, too
    for name, numbers in sorted(tensors.items()):
        if (expert := _EXPERT.fullmatch(name)) is not None:
            experts.setdefault(f"{expert[1]}.{expert[3]}.{expert[4]}", {})[int(expert[2])] = name
        elif (norm := _HEAD_NORM.fullmatch(name)) is not None:
            experts.setdefault(f"{norm[1]}.weight", {})[int(norm[2])] = name
        elif "experts." in name and "shared" not in name and config.model_type == "gpt_oss":
            found |= _gpt_oss_experts(name, numbers)
        elif (of_state := changed(config, name, numbers)) is not None:
            for each in of_state:
                found[_name(names, each.name)] = Converted(each.numbers, _back_of(name, each.back))
        elif config.model_type == "llama4_text" and "experts." in name:
            found |= _llama4_experts(name, numbers)
        elif name.endswith("put_linear.weight"):
            found |= _granite_blocks(name, numbers, config)
        elif name.endswith("kv_b_proj.weight"):
            found |= _latents(config, name, numbers)
        else:
            is_paired = config.model_type in _PAIRED and architecture not in _UNPAIRED_ARCHITECTURES
            found[_name(names, name)] = _converted(config, name, numbers, is_paired)
    for name, each in experts.items():
        ordered = [each[index] for index in range(len(each))]

        def back(stacked: np.ndarray, ordered: list[str] = ordered) -> dict[str, np.ndarray]:
            return dict(zip(ordered, stacked, strict=True))

        found[_name(names, name)] = Converted(np.stack([tensors[one] for one in ordered]), back)
    return found


def _back_of(name: str, back: Callable[[np.ndarray], np.ndarray]) -> Callable[[np.ndarray], dict[str, np.ndarray]]:
    """To nothing, while another tensor is missing."""
    return lambda stored: {name: found} if (found := back(stored)).size else {}


def _name(names: gguf.TensorNameMap, name: str) -> str:
    if name.endswith((".A_log", ".D")):
        return str(names.get_name(name))
    if ".experts." in name:  # joined under names of their own
        name = (
            name.replace("backbone.", "model.")
            .replace(".mixer.", ".mlp.")
            .replace("model.layers", "layers" if "feed_forward" in name else "model.layers")
        )
    if name.endswith("e_score_correction_bias"):
        name = name.replace("e_score_correction_bias", "e_score_correction.bias")
    if name.endswith(".sinks"):
        name = f"{name}.weight"
    if name.endswith("layer_scalar"):
        name = f"{name}.weight"
    if name.endswith(("experts.gate_up_proj", "experts.down_proj")):
        name = f"{name}.weight"
    if name.endswith("router.scale"):
        return names.get_name(name.replace(".scale", ".proj")) + ".scale"
    if name.endswith("router.per_expert_scale"):
        return names.get_name(name.replace("router.per_expert_scale", "experts.down_proj")) + ".scale"
    found = names.get_name(name, try_suffixes=(".weight", ".bias"))
    assert found is not None, name
    return found


def _converted(config: PretrainedConfig, name: str, numbers: np.ndarray, is_paired: bool) -> Converted:
    added = 1.0 if config.model_type in _NORMS_PLUS_ONE and name.endswith("norm.weight") else 0.0
    order = np.arange(len(numbers))
    if is_paired and re.search(r"\.(q|k)_proj\.", name):
        heads = config.num_attention_heads if ".q_proj." in name else config.num_key_value_heads
        order = order.reshape(heads, 2, -1).swapaxes(1, 2).flatten()
    shape = numbers.shape

    def back(stored: np.ndarray) -> dict[str, np.ndarray]:
        original = np.empty(shape, np.float32)
        original[order] = stored.reshape(shape)
        return {name: original - np.float32(added)}

    written = numbers[order] + np.float32(added)
    is_vector = name.endswith(("shared_expert_gate.weight", "moe_statics.e_score_correction_bias"))
    return Converted(written[0] if is_vector else written, back)


def _gpt_oss_experts(name: str, numbers: np.ndarray) -> dict[str, Converted]:
    """Gates and ups take turns in [E, H, 2 · I] or, biases, in [E, 2 · I]."""
    layer = re.findall(r"\d+", name)[0]
    kind = "bias" if name.endswith("bias") else "weight"
    outputs_last = numbers if kind == "bias" else numbers.swapaxes(1, 2)
    if "down" in name:
        back_name = name
        return {
            f"blk.{layer}.ffn_down_exps.{kind}": Converted(
                outputs_last, lambda x: {back_name: x if kind == "bias" else x.swapaxes(1, 2)}
            )
        }
    halves: dict[int, np.ndarray] = {}

    def back(half: int) -> Callable[[np.ndarray], dict[str, np.ndarray]]:
        def taken(x: np.ndarray) -> dict[str, np.ndarray]:
            halves[half] = x
            if len(halves) < 2:
                return {}
            both = np.empty_like(outputs_last)
            both[:, ::2], both[:, 1::2] = halves[0], halves[1]
            return {name: both if kind == "bias" else both.swapaxes(1, 2)}

        return taken

    return {
        f"blk.{layer}.ffn_{each}_exps.{kind}": Converted(outputs_last[:, half::2], back(half))
        for half, each in enumerate(("gate", "up"))
    }


def _llama4_experts(name: str, numbers: np.ndarray) -> dict[str, Converted]:
    """[E, H, 2 · I] of gates and then ups, or [E, I, H] of downs."""
    layer, outputs_last = re.findall(r"\d+", name)[0], numbers.swapaxes(1, 2)
    if "down" in name:
        return {f"blk.{layer}.ffn_down_exps.weight": Converted(outputs_last, lambda x: {name: x.swapaxes(1, 2)})}
    gate, up = np.split(outputs_last, 2, axis=1)
    back = _both(lambda gate, up: {name: np.concatenate([gate, up], 1).swapaxes(1, 2)})
    return {
        f"blk.{layer}.ffn_gate_exps.weight": Converted(gate, back("gate")),
        f"blk.{layer}.ffn_up_exps.weight": Converted(up, back("up")),
    }


def _both(
    joined: Callable[[np.ndarray, np.ndarray], dict[str, np.ndarray]],
) -> Callable[[str], Callable[[np.ndarray], dict[str, np.ndarray]]]:
    """Calls ``joined`` once there are both gates and ups."""
    found: dict[str, np.ndarray] = {}

    def back(part: str) -> Callable[[np.ndarray], dict[str, np.ndarray]]:
        def taken(x: np.ndarray) -> dict[str, np.ndarray]:
            found[part] = x
            return joined(found["gate"], found["up"]) if len(found) == 2 else {}

        return taken

    return back


def _granite_blocks(name: str, numbers: np.ndarray, config: PretrainedConfig) -> dict[str, Converted]:
    """Gates and then ups in one tensor, or downs; of experts, of a shared one, or of the only block."""
    layer = re.findall(r"\d+", name)[0]
    is_alone = config.model_type == "granitemoehybrid" and not config.num_local_experts
    kind = "_exps" if "block_sparse_moe" in name else "" if is_alone else "_shexp"
    if "output" in name:
        return {f"blk.{layer}.ffn_down{kind}.weight": Converted(numbers, lambda x: {name: x})}
    back = _both(lambda gate, up: {name: np.concatenate([gate, up], -2)})
    gate, up = np.split(numbers, 2, axis=-2)
    return {
        f"blk.{layer}.ffn_gate{kind}.weight": Converted(gate, back("gate")),
        f"blk.{layer}.ffn_up{kind}.weight": Converted(up, back("up")),
    }


def _latents(config: PretrainedConfig, name: str, numbers: np.ndarray) -> dict[str, Converted]:
    layer, heads = re.findall(r"\d+", name)[0], config.num_attention_heads
    by_head = numbers.reshape(heads, config.qk_nope_head_dim + config.v_head_dim, -1)
    keys, values = by_head[:, : config.qk_nope_head_dim], by_head[:, config.qk_nope_head_dim :]
    parts: dict[str, np.ndarray] = {}

    def back(part: str) -> Callable[[np.ndarray], dict[str, np.ndarray]]:
        def taken(x: np.ndarray) -> dict[str, np.ndarray]:
            parts[part] = x
            if len(parts) < 2:
                return {}
            return {name: np.concatenate([parts["k"].swapaxes(1, 2), parts["v"]], 1).reshape(numbers.shape)}

        return taken

    return {
        f"blk.{layer}.attn_k_b.weight": Converted(keys.swapaxes(1, 2), back("k")),
        f"blk.{layer}.attn_v_b.weight": Converted(values, back("v")),
    }
