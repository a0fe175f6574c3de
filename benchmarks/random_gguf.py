"""GGUF files of Qwen3's shapes with random blocks: what large models cost, without the hours of quantizing them.

    python -m benchmarks.random_gguf qwen3-4b Q4_K_M OUT.gguf

Types of tensors are those that llama.cpp chooses for the mix. Blocks are random bytes with scales that keep weights as
small as trained ones; the vocabulary's texts are invented.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType as Type

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Shape:
    """A Qwen3; with experts if there are any."""

    layers: int
    hidden: int
    inner: int
    heads: int
    kv_heads: int
    experts: int = 0
    top_k: int = 0
    head_dim: int = 128
    vocabulary: int = 151_936
    is_tied: bool = True


SHAPES = {
    "qwen3-0.6b": Shape(28, 1024, 3072, 16, 8),
    "qwen3-4b": Shape(36, 2560, 9728, 32, 8),
    "qwen3-30b-a3b": Shape(48, 2048, 768, 32, 4, experts=128, top_k=8, is_tied=False),
}


MIXES = {
    "Q4_0": (Type.Q4_0, Type.Q6_K),
    "Q4_K_M": (Type.Q4_K, Type.Q6_K),
    "Q5_K_M": (Type.Q5_K, Type.Q6_K),
    "Q6_K": (Type.Q6_K, Type.Q6_K),
    "Q8_0": (Type.Q8_0, Type.Q8_0),
}
"""The usual type, and that of the tensors that need more bits: of the head, and in a _K_M of some in the layers."""


def write(shape: Shape, mix: str, output: Path) -> None:
    """Write a file in one of the ``MIXES``."""
    writer: Any = gguf.GGUFWriter(str(output), "qwen3moe" if shape.experts else "qwen3")
    _write_shape(writer, shape)
    write_vocabulary(writer, shape.vocabulary)
    random = np.random.default_rng(0)
    tensors = list(_tensors(shape, mix))
    for name, size, kind in tensors:
        block, nbytes = gguf.GGML_QUANT_SIZES[kind]
        writer.add_tensor_info(name, size, np.dtype(np.float32), int(np.prod(size)) // block * nbytes, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for _, size, kind in tensors:
        writer.write_tensor_data(_blocks(kind, size, random))
    writer.close()


def write_vocabulary(writer: Any, size: int) -> None:
    """Write one of invented texts."""
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list([f"<{token}>" for token in range(size)])
    writer.add_token_types([gguf.TokenType.NORMAL] * size)
    writer.add_token_merges(["< 1"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)


def _write_shape(writer: Any, shape: Shape) -> None:
    writer.add_block_count(shape.layers)
    writer.add_context_length(16_384)
    writer.add_embedding_length(shape.hidden)
    writer.add_feed_forward_length(6144 if shape.experts else shape.inner)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_key_length(shape.head_dim)
    writer.add_value_length(shape.head_dim)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(1e6)
    if shape.experts:
        writer.add_expert_count(shape.experts)
        writer.add_expert_used_count(shape.top_k)
        writer.add_expert_feed_forward_length(shape.inner)


def _tensors(shape: Shape, mix: str) -> Iterator[tuple[str, tuple[int, ...], Type]]:
    """Name, shape and type of every tensor."""
    usual, better = MIXES[mix]
    hidden, inner, width = shape.hidden, shape.inner, shape.head_dim
    yield "token_embd.weight", (shape.vocabulary, hidden), better if shape.is_tied else usual
    if not shape.is_tied:
        yield "output.weight", (shape.vocabulary, hidden), better
    yield "output_norm.weight", (hidden,), Type.F32
    for layer in range(shape.layers):
        edge = shape.layers // 8
        has_more_bits = layer < edge or layer >= 7 * shape.layers // 8 or (layer - edge) % 3 == 2
        mixed = better if mix.endswith("_K_M") and has_more_bits else usual
        prefix = f"blk.{layer}."
        for name, size in (("attn_norm", hidden), ("ffn_norm", hidden), ("attn_q_norm", width), ("attn_k_norm", width)):
            yield f"{prefix}{name}.weight", (size,), Type.F32
        yield f"{prefix}attn_q.weight", (shape.heads * width, hidden), usual
        yield f"{prefix}attn_k.weight", (shape.kv_heads * width, hidden), usual
        yield f"{prefix}attn_v.weight", (shape.kv_heads * width, hidden), mixed
        yield f"{prefix}attn_output.weight", (hidden, shape.heads * width), usual
        many, suffix = ((shape.experts,), "_exps") if shape.experts else ((), "")
        if shape.experts:
            yield f"{prefix}ffn_gate_inp.weight", (shape.experts, hidden), Type.F32
        yield f"{prefix}ffn_gate{suffix}.weight", (*many, inner, hidden), usual
        yield f"{prefix}ffn_up{suffix}.weight", (*many, inner, hidden), usual
        yield f"{prefix}ffn_down{suffix}.weight", (*many, hidden, inner), mixed


def _blocks(kind: Type, size: tuple[int, ...], random: np.random.Generator) -> npt.NDArray[Any]:
    if kind == Type.F32:
        return np.ones(size, np.float32) if len(size) == 1 else random.normal(0, 0.02, size).astype(np.float32)
    block, nbytes = gguf.GGML_QUANT_SIZES[kind]
    rows = int(np.prod(size)) // block
    blocks = np.frombuffer(random.bytes(rows * nbytes), np.uint8).reshape(rows, nbytes).copy()
    _SCALES[kind](blocks)
    return blocks.reshape(*size[:-1], -1)


def _put(blocks: Bytes, at: int, number: float) -> None:
    blocks[:, at : at + 2] = np.array([number], np.float16).view(np.uint8)


def _scale_q4_k(blocks: Bytes) -> None:
    """Equal 6-bit scales and minima of 32, with 7.5 times as much for the latter, so that the mean is zero."""
    _put(blocks, 0, 0.00014)
    _put(blocks, 2, 0.00105)
    blocks[:, 4:12], blocks[:, 12:16] = 0xA0, 0


def _scale_q5_k(blocks: Bytes) -> None:
    """Likewise, with 15.5 times as much."""
    _put(blocks, 0, 0.00007)
    _put(blocks, 2, 0.001085)
    blocks[:, 4:12], blocks[:, 12:16] = 0xA0, 0


def _scale_q6_k(blocks: Bytes) -> None:
    blocks[:, 192:208] = 32
    _put(blocks, 208, 0.00003)


_SCALES: dict[Type, Callable[[Bytes], None]] = {
    Type.Q4_0: lambda blocks: _put(blocks, 0, 0.004),
    Type.Q8_0: lambda blocks: _put(blocks, 0, 0.0003),
    Type.Q4_K: _scale_q4_k,
    Type.Q5_K: _scale_q5_k,
    Type.Q6_K: _scale_q6_k,
}


if __name__ == "__main__":
    write(SHAPES[sys.argv[1]], sys.argv[2], Path(sys.argv[3]))
