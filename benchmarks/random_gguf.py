"""GGUF files of real shapes with random blocks: what large models cost, without the hours of quantizing them.

    python -m benchmarks.random_gguf qwen3-4b Q4_K_M OUT.gguf

Types of tensors are those that llama.cpp chooses for the mix. Blocks are random bytes with scales that keep weights as
small as trained ones; the vocabulary's texts are invented.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import gguf
import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType as Type

Bytes = npt.NDArray[np.uint8]


Tensor = tuple[str, tuple[int, ...], Type]
"""Name, shape and type."""


class Shape(Protocol):
    """The sizes of a family."""

    @property
    def architecture(self) -> str:
        """As llama.cpp names it."""

    @property
    def layers(self) -> int: ...
    @property
    def hidden(self) -> int: ...
    @property
    def vocabulary(self) -> int: ...
    @property
    def is_tied(self) -> bool: ...
    @property
    def norm(self) -> str:
        """The name of the last norm."""

    def write(self, writer: Any) -> None:
        """Write the sizes as metadata."""

    def layer(self, index: int, usual: Type, mixed: Type) -> Iterator[Tensor]:
        """The tensors of a layer, without the prefix of their names; of type ``mixed`` where a _K_M has more bits."""


@dataclass(frozen=True, slots=True)
class Qwen3:
    """With experts if there are any."""

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
    norm: str = "output_norm"

    @property
    def architecture(self) -> str:
        return "qwen3moe" if self.experts else "qwen3"

    def write(self, writer: Any) -> None:
        _write_attention(writer, self.heads, self.kv_heads, self.head_dim)
        writer.add_feed_forward_length(6144 if self.experts else self.inner)
        if self.experts:
            writer.add_expert_count(self.experts)
            writer.add_expert_used_count(self.top_k)
            writer.add_expert_feed_forward_length(self.inner)

    def layer(self, index: int, usual: Type, mixed: Type) -> Iterator[Tensor]:
        hidden, inner, width = self.hidden, self.inner, self.head_dim
        yield from _norms(("attn_norm", hidden), ("ffn_norm", hidden), ("attn_q_norm", width), ("attn_k_norm", width))
        yield from _attention(hidden, self.heads * width, self.heads, self.kv_heads, width, usual, mixed)
        many, suffix = ((self.experts,), "_exps") if self.experts else ((), "")
        if self.experts:
            yield "ffn_gate_inp.weight", (self.experts, hidden), Type.F32
        yield f"ffn_gate{suffix}.weight", (*many, inner, hidden), usual
        yield f"ffn_up{suffix}.weight", (*many, inner, hidden), usual
        yield f"ffn_down{suffix}.weight", (*many, hidden, inner), mixed


@dataclass(frozen=True, slots=True)
class Qwen35:
    """Three layers of Gated DeltaNet, then one of gated attention."""

    layers: int
    hidden: int
    inner: int
    heads: int
    kv_heads: int
    linear_heads: int
    """Keys and values have as many."""
    head_dim: int = 256
    state_dim: int = 128
    vocabulary: int = 248_320
    is_tied: bool = True
    norm: str = "output_norm"
    architecture: str = "qwen35"

    def write(self, writer: Any) -> None:
        _write_attention(writer, self.heads, self.kv_heads, self.head_dim)
        writer.add_feed_forward_length(self.inner)
        writer.add_rope_dimension_count(self.head_dim // 4)
        writer.add_rope_dimension_sections([11, 11, 10, 0])
        writer.add_ssm_conv_kernel(_TAPS)
        writer.add_ssm_inner_size(self.linear_heads * self.state_dim)
        writer.add_ssm_state_size(self.state_dim)
        writer.add_ssm_time_step_rank(self.linear_heads)
        writer.add_ssm_group_count(self.linear_heads)
        writer.add_full_attention_interval(_INTERVAL)

    def layer(self, index: int, usual: Type, mixed: Type) -> Iterator[Tensor]:
        hidden, width = self.hidden, self.head_dim
        yield from _norms(("attn_norm", hidden), ("post_attention_norm", hidden))
        if (index + 1) % _INTERVAL:
            values, heads = self.linear_heads * self.state_dim, self.linear_heads
            yield "attn_qkv.weight", (3 * values, hidden), mixed
            yield "attn_gate.weight", (values, hidden), usual
            yield "ssm_conv1d.weight", (3 * values, _TAPS), Type.F32
            yield from (("ssm_dt.bias", (heads,), Type.F32), ("ssm_a", (heads,), Type.F32))
            yield from _norms(("ssm_norm", self.state_dim))
            yield "ssm_beta.weight", (heads, hidden), usual
            yield "ssm_alpha.weight", (heads, hidden), usual
            yield "ssm_out.weight", (hidden, values), usual
        else:
            yield from _norms(("attn_q_norm", width), ("attn_k_norm", width))
            yield from _attention(hidden, 2 * self.heads * width, self.heads, self.kv_heads, width, usual, mixed)
        yield "ffn_gate.weight", (self.inner, hidden), usual
        yield "ffn_up.weight", (self.inner, hidden), usual
        yield "ffn_down.weight", (hidden, self.inner), mixed


@dataclass(frozen=True, slots=True)
class Lfm2:
    """Short convolutions, with attention in some layers."""

    layers: int
    hidden: int
    inner: int
    heads: int
    kv_heads: int
    attending: tuple[int, ...]
    """The layers with attention."""
    head_dim: int = 64
    vocabulary: int = 65_536
    is_tied: bool = True
    norm: str = "token_embd_norm"
    architecture: str = "lfm2"

    def write(self, writer: Any) -> None:
        kv_heads = [self.kv_heads if layer in self.attending else 0 for layer in range(self.layers)]
        _write_attention(writer, self.heads, kv_heads, self.head_dim)
        writer.add_feed_forward_length(self.inner)
        writer.add_vocab_size(self.vocabulary)
        writer.add_shortconv_l_cache(3)

    def layer(self, index: int, usual: Type, mixed: Type) -> Iterator[Tensor]:
        hidden, width = self.hidden, self.head_dim
        yield from _norms(("attn_norm", hidden), ("ffn_norm", hidden))
        if index in self.attending:
            yield from _norms(("attn_q_norm", width), ("attn_k_norm", width))
            yield from _attention(hidden, self.heads * width, self.heads, self.kv_heads, width, usual, mixed)
        else:
            yield "shortconv.conv.weight", (hidden, 3), Type.F32
            yield "shortconv.in_proj.weight", (3 * hidden, hidden), usual
            yield "shortconv.out_proj.weight", (hidden, hidden), usual
        yield "ffn_gate.weight", (self.inner, hidden), usual
        yield "ffn_up.weight", (self.inner, hidden), usual
        yield "ffn_down.weight", (hidden, self.inner), mixed


_TAPS, _INTERVAL = 4, 4
"""Of the convolutions of a Qwen3.5, and from one of its layers with attention to the next."""

SHAPES: dict[str, Shape] = {
    "qwen3-0.6b": Qwen3(28, 1024, 3072, 16, 8),
    "qwen3-4b": Qwen3(36, 2560, 9728, 32, 8),
    "qwen3-30b-a3b": Qwen3(48, 2048, 768, 32, 4, experts=128, top_k=8, is_tied=False),
    "qwen3.5-0.8b": Qwen35(24, 1024, 3584, 8, 2, 16),
    "lfm2-1.2b": Lfm2(16, 2048, 8192, 32, 8, (2, 5, 8, 10, 12, 14)),
}


MIXES = {
    "BF16": (Type.BF16, Type.BF16),
    "Q4_0": (Type.Q4_0, Type.Q6_K),
    "Q4_K_M": (Type.Q4_K, Type.Q6_K),
    "Q5_K_M": (Type.Q5_K, Type.Q6_K),
    "Q6_K": (Type.Q6_K, Type.Q6_K),
    "Q8_0": (Type.Q8_0, Type.Q8_0),
}
"""The usual type, and that of the tensors that need more bits: of the head, and in a _K_M of some in the layers."""


def write(shape: Shape, mix: str, output: Path) -> None:
    """Write a file in one of the ``MIXES``."""
    writer: Any = gguf.GGUFWriter(str(output), shape.architecture)
    writer.add_block_count(shape.layers)
    writer.add_context_length(16_384)
    writer.add_embedding_length(shape.hidden)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(1e6)
    shape.write(writer)
    write_vocabulary(writer, shape.vocabulary)
    random = np.random.default_rng(0)
    tensors = list(_tensors(shape, mix))
    for name, size, kind in tensors:
        block, nbytes = gguf.GGML_QUANT_SIZES[kind]
        writer.add_tensor_info(name, size, np.dtype(np.float32), int(np.prod(size)) // block * nbytes, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for name, size, kind in tensors:
        writer.write_tensor_data(_numbers(name, kind, size, random) if kind in _PLAIN else _blocks(kind, size, random))
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


def _write_attention(writer: Any, heads: int, kv_heads: int | list[int], head_dim: int) -> None:
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)


def _norms(*sizes: tuple[str, int]) -> Iterator[Tensor]:
    return ((f"{name}.weight", (size,), Type.F32) for name, size in sizes)


def _attention(
    hidden: int, queries: int, heads: int, kv_heads: int, width: int, usual: Type, mixed: Type
) -> Iterator[Tensor]:
    """``queries``: outputs of their projection."""
    yield "attn_q.weight", (queries, hidden), usual
    yield "attn_k.weight", (kv_heads * width, hidden), usual
    yield "attn_v.weight", (kv_heads * width, hidden), mixed
    yield "attn_output.weight", (hidden, heads * width), usual


def _tensors(shape: Shape, mix: str) -> Iterator[Tensor]:
    """Those of the whole file."""
    usual, better = MIXES[mix]
    yield "token_embd.weight", (shape.vocabulary, shape.hidden), better if shape.is_tied else usual
    if not shape.is_tied:
        yield "output.weight", (shape.vocabulary, shape.hidden), better
    yield f"{shape.norm}.weight", (shape.hidden,), Type.F32
    for layer in range(shape.layers):
        edge = shape.layers // 8
        has_more_bits = layer < edge or layer >= 7 * shape.layers // 8 or (layer - edge) % 3 == 2
        mixed = better if mix.endswith("_K_M") and has_more_bits else usual
        yield from ((f"blk.{layer}.{name}", size, kind) for name, size, kind in shape.layer(layer, usual, mixed))


_PLAIN = (Type.F32, Type.BF16)


def _numbers(name: str, kind: Type, size: tuple[int, ...], random: np.random.Generator) -> npt.NDArray[Any]:
    """Float32, or bfloat16 as bytes."""
    if len(size) == 1:
        return np.full(size, -1 if name.endswith("ssm_a") else 1, np.float32)
    numbers = random.standard_normal(size, np.float32) * np.float32(0.02)
    if kind == Type.F32:
        return numbers
    return (numbers.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8).reshape(*size[:-1], -1)


def _blocks(kind: Type, size: tuple[int, ...], random: np.random.Generator) -> Bytes:
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
