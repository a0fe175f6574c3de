"""Writes a Qwen3 checkpoint as GGUF, the file format of llama.cpp: ``… MODEL OUT.gguf [Q8_0]``.

The vocabulary's texts are made up: what is measured takes and gives token ids.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import gguf
import llama_cpp
import numpy as np
import torch
from safetensors.torch import load_file


def write(model: Path, output: Path) -> None:
    """Matrices in bfloat16, norms in float32."""
    config = json.loads((model / "config.json").read_text())
    if config["model_type"] != "qwen3":
        raise SystemExit(f"{model} is {config['model_type']}; only qwen3 is written")
    writer = gguf.GGUFWriter(str(output), "qwen3")
    _write_shape(writer, config)
    _write_vocabulary(writer, config["vocab_size"])
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN3, config["num_hidden_layers"])
    for name, tensor in load_file(str(model / "model.safetensors")).items():
        if name == "lm_head.weight" and config["tie_word_embeddings"]:
            continue
        _write_tensor(writer, names.get_name(name, try_suffixes=(".weight",)), tensor)
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
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(theta)


def _write_vocabulary(writer: Any, size: int) -> None:
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list([f"<{token}>" for token in range(size)])
    writer.add_token_types([gguf.TokenType.NORMAL] * size)
    writer.add_token_merges(["< 1"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)


def _write_tensor(writer: Any, name: str, tensor: torch.Tensor) -> None:
    if tensor.ndim == 1:
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
