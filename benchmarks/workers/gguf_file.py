"""Writes a checkpoint of a Qwen3, with or without experts, or of a DeepSeek V2 as GGUF, the file format of llama.cpp:
``… MODEL OUT.gguf [Q8_0]``.

The vocabulary's texts are invented: the benchmarks use only token ids.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import gguf
import llama_cpp
import numpy as np
import torch
from safetensors.torch import load_file

from benchmarks.random_gguf import write_vocabulary

_ARCHITECTURES = {
    "qwen3": gguf.MODEL_ARCH.QWEN3,
    "qwen3_moe": gguf.MODEL_ARCH.QWEN3MOE,
    "deepseek_v2": gguf.MODEL_ARCH.DEEPSEEK2,
}
_FLOAT32 = ("norm.weight", "mlp.gate.weight")
_EXPERT = re.compile(r"(.*\.experts)\.0\.(.*)")


def write(model: Path, output: Path) -> None:
    """Write ``model`` to ``output``: matrices in bfloat16, norms and routers in float32."""
    config = json.loads((model / "config.json").read_text())
    if config["model_type"] not in _ARCHITECTURES:
        raise SystemExit(f"{model} is {config['model_type']}; only {', '.join(_ARCHITECTURES)} are written")
    architecture = _ARCHITECTURES[config["model_type"]]
    writer = gguf.GGUFWriter(str(output), gguf.MODEL_ARCH_NAMES[architecture], use_temp_file=True)
    _write_shape(writer, config)
    if "moe_intermediate_size" in config:
        _write_experts(writer, config)
    if "kv_lora_rank" in config:
        _write_latents(writer, config)
    write_vocabulary(writer, config["vocab_size"])
    names = gguf.get_tensor_name_map(architecture, config["num_hidden_layers"])
    for name, tensor in _tensors(load_file(str(model / "model.safetensors")), config):
        _write_tensor(writer, names.get_name(name, try_suffixes=(".weight",)), tensor, name.endswith(_FLOAT32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _write_shape(writer: Any, config: dict[str, Any]) -> None:
    theta = config.get("rope_theta") or config["rope_parameters"]["rope_theta"]
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(theta)
    if "kv_lora_rank" not in config:
        writer.add_head_count_kv(config["num_key_value_heads"])
        writer.add_key_length(config["head_dim"])
        writer.add_value_length(config["head_dim"])


def _write_experts(writer: Any, config: dict[str, Any]) -> None:
    writer.add_expert_count(_num_experts(config))
    writer.add_expert_used_count(config["num_experts_per_tok"])
    writer.add_expert_feed_forward_length(config["moe_intermediate_size"])


def _num_experts(config: dict[str, Any]) -> int:
    names = ("n_routed_experts", "num_local_experts", "num_experts")
    return int(next(config[name] for name in names if name in config))


def _write_latents(writer: Any, config: dict[str, Any]) -> None:
    """Write the metadata of latent attention as llama.cpp's own conversion does: queries attend to the latents."""
    rope = config["qk_rope_head_dim"]
    writer.add_head_count_kv(1)
    writer.add_kv_lora_rank(config["kv_lora_rank"])
    writer.add_key_length(config["kv_lora_rank"] + rope)
    writer.add_value_length(config["kv_lora_rank"])
    writer.add_key_length_mla(config["qk_nope_head_dim"] + rope)
    writer.add_value_length_mla(config["v_head_dim"])
    writer.add_rope_dimension_count(rope)
    writer.add_vocab_size(config["vocab_size"])
    writer.add_leading_dense_block_count(config["first_k_dense_replace"])
    writer.add_expert_shared_count(config["n_shared_experts"])
    writer.add_expert_weights_scale(config["routed_scaling_factor"])
    writer.add_expert_weights_norm(False)
    writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SOFTMAX)


def _tensors(stored: Mapping[str, torch.Tensor], config: dict[str, Any]) -> Iterator[tuple[str, torch.Tensor]]:
    """Merge a layer's experts into one tensor, and split the projection of latents into key and value parts."""
    for name, tensor in stored.items():
        if name == "lm_head.weight" and config["tie_word_embeddings"]:
            continue
        if name.endswith("kv_b_proj.weight"):
            heads = tensor.view(config["num_attention_heads"], -1, config["kv_lora_rank"])
            keys, values = torch.split(heads, [config["qk_nope_head_dim"], config["v_head_dim"]], dim=1)
            yield name.replace("kv_b_proj", "k_b_proj"), keys.transpose(1, 2)
            yield name.replace("kv_b_proj", "v_b_proj"), values
        elif ".experts." not in name:
            yield name, tensor
        elif found := _EXPERT.fullmatch(name):
            prefix, projection = found.groups()
            count = _num_experts(config)
            yield f"{prefix}.{projection}", torch.stack([stored[f"{prefix}.{i}.{projection}"] for i in range(count)])


def _write_tensor(writer: Any, name: str, tensor: torch.Tensor, is_float32: bool) -> None:
    if is_float32:
        writer.add_tensor(name, tensor.float().numpy())
        return
    rows = tensor.to(torch.bfloat16).contiguous().view(torch.uint8).numpy()
    writer.add_tensor(name, np.ascontiguousarray(rows), raw_dtype=gguf.GGMLQuantizationType.BF16)


def quantize(source: Path, output: Path) -> None:
    """Rewrite a GGUF file with 8-bit weights in blocks of 32 (Q8_0)."""
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = llama_cpp.LLAMA_FTYPE_MOSTLY_Q8_0
    if llama_cpp.llama_model_quantize(bytes(source), bytes(output), params) != 0:
        raise SystemExit(f"llama.cpp could not quantize {source}")


if __name__ == "__main__":
    write(Path(sys.argv[1]), Path(sys.argv[2]))
    if sys.argv[3:] == ["Q8_0"]:
        quantize(Path(sys.argv[2]), Path(sys.argv[2]).with_suffix(".q8_0.gguf"))
