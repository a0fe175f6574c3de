"""Paged attention by the native kernels in engine_core/kernels/cpu."""

from __future__ import annotations

import torch

from engine_core.attention.base import (
    AttentionBackend,
    AttentionMetadata,
    AttentionOptions,
    KVCacheSpec,
    with_dense_rows,
)
from engine_core.kernels.arguments import NUMBER_TYPES
from engine_core.kernels.capture import kernel_output
from engine_core.kernels.library import Kernels
from engine_core.kernels.memory import empty_for_streaming
from engine_core.kv_cache_interface import LayerCacheSpec

_UNIT = 16
"""Most tokens per unit; a block is divided into units of equal size."""
_CACHE_TYPES = {"auto": 0, "int8": 1, "fp8": 2}
"""``RinglineCacheType``"""
_SCALES = 2
"""Scales per token and head in an 8-bit cache: for key and value, or for a latent and its rotated part."""
_SCALE_BYTES = 2


class NativeAttention(AttentionBackend):
    """One cache per layer: a view [blocks, Hkv, 2 (keys, values), block size, D] of memory that the kernel lays out, or
    [blocks, 1, 1, block size, R + P] for latents. In an 8-bit cache, D are bytes, and scales follow a block's heads.

    Only the view's shape, address and block stride mean anything outside the kernel (cpu/attention/layout.h). A block
    written in a step must not be read by another sequence of that step: the scheduler shares only computed blocks.
    """

    batch_invariant = True

    def __init__(self, kernels: Kernels, cache_dtype: str = "auto") -> None:
        self.cache_dtype = cache_dtype
        self._kernels = kernels
        self._arguments = kernels.attention.arguments()
        self._metadata: AttentionMetadata | None = None

    @staticmethod
    def bytes_per_block(spec: KVCacheSpec) -> int:
        return spec.num_places * _block_elements(spec) * _stored_type(spec).itemsize

    @staticmethod
    def allocate(spec: KVCacheSpec, num_blocks: int, device: torch.device) -> list[torch.Tensor]:
        tokens = _padded(spec)

        def view(memory: torch.Tensor, layer: LayerCacheSpec) -> torch.Tensor:
            planes, heads, width = layer.shape
            if layer != layer.padded(lambda size: -(-size // _UNIT) * _UNIT):
                raise ValueError(f"the widths of {layer} are not padded to multiples of {_UNIT}")
            used = memory[:, : tokens * layer.elements]
            return used.view(num_blocks, heads, planes, tokens, width)[..., : spec.block_size, :]

        whole = (num_blocks, _block_elements(spec))
        return spec.caches([empty_for_streaming(whole, _stored_type(spec)) for _ in range(spec.num_places)], view)

    @staticmethod
    def copy_blocks(kv_cache: torch.Tensor, sources: torch.Tensor, targets: torch.Tensor) -> None:
        distance = kv_cache.stride(0)
        whole = kv_cache.as_strided((kv_cache.shape[0], distance), (distance, 1))  # with what pads them
        whole[targets] = whole[sources]

    def numerics(self, spec: KVCacheSpec) -> str:
        """Includes the block size unless it is a multiple or divisor of 16, unpadded: tiles are then the same."""
        aligned = spec.block_size == _padded(spec) and (spec.block_size % _UNIT == 0 or _UNIT % spec.block_size == 0)
        places = "" if aligned else f", blocks of {spec.block_size}"
        cache = "" if spec.cache_dtype == "auto" else f", {spec.cache_dtype} cache"
        return f"native {self._kernels.instruction_set}, build {self._kernels.build}{places}{cache}"

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        metadata: AttentionMetadata,
        options: AttentionOptions,
    ) -> torch.Tensor:
        query, key, value = with_dense_rows(query), with_dense_rows(key), with_dense_rows(value)
        arguments = self._arguments
        arguments.num_kv_heads, arguments.head_dim, arguments.latent_dim = kv_cache.shape[1], query.shape[2], 0
        arguments.query_rope = None
        return self._attend(query, key, value, kv_cache, metadata, options)

    def forward_latents(
        self,
        query: torch.Tensor,
        query_rope: torch.Tensor,
        latent: torch.Tensor,
        rope: torch.Tensor,
        kv_cache: torch.Tensor,
        metadata: AttentionMetadata,
        options: AttentionOptions,
    ) -> torch.Tensor:
        arguments, latent_dim = self._arguments, query.shape[2]
        arguments.num_kv_heads, arguments.head_dim = 1, latent_dim + rope.shape[1]
        arguments.latent_dim, arguments.query_rope = latent_dim, query_rope.data_ptr()
        arguments.query_rope_stride, arguments.query_rope_head_stride = query_rope.stride(0), query_rope.stride(1)
        attended = self._attend(query, latent, rope, kv_cache, metadata, options)
        return attended.view(query.shape)

    def _attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        metadata: AttentionMetadata,
        options: AttentionOptions,
    ) -> torch.Tensor:
        """Call the kernel, for heads or latents."""
        num_rows, num_heads, width = query.shape
        output = kernel_output(num_rows, num_heads * width, query.dtype)
        arguments = self._arguments
        if metadata is not self._metadata:
            self._begin_step(metadata)
        arguments.query, arguments.query_stride = query.data_ptr(), query.stride(0)
        arguments.key, arguments.key_stride = key.data_ptr() if key.numel() else None, key.stride(0)
        arguments.value, arguments.value_stride = value.data_ptr(), value.stride(0)
        arguments.output, arguments.output_stride = output.data_ptr(), output.stride(0)
        arguments.cache = kv_cache.data_ptr()
        arguments.num_heads = num_heads
        arguments.block_size, arguments.block_stride = kv_cache.shape[3], kv_cache.stride(0)
        arguments.number_type, arguments.cache_type = NUMBER_TYPES[query.dtype], _CACHE_TYPES[self.cache_dtype]
        arguments.num_threads, arguments.scale = torch.get_num_threads(), options.scale
        arguments.sliding_window, arguments.chunked = options.sliding_window or 0, options.chunked
        arguments.both_ways = options.both_ways
        arguments.logit_softcap = options.logit_softcap or 0.0
        arguments.sinks = None if options.sinks is None else options.sinks.data_ptr()
        if self._kernels.attention(arguments) != 0:
            raise MemoryError("no memory for attention's intermediate results")
        return output

    def _begin_step(self, metadata: AttentionMetadata) -> None:
        """Set the arguments that all layers of a group share. The reference to ``metadata`` keeps its tensors alive."""
        self._metadata = metadata
        self._arguments.group, self._arguments.num_seqs = metadata.group, len(metadata.seq_lens)
        self._arguments.query_starts = metadata.query_starts.data_ptr()
        self._arguments.seq_lens = metadata.seq_lens.data_ptr()
        self._arguments.block_tables = metadata.block_tables.data_ptr()
        self._arguments.block_table_stride = metadata.block_tables.stride(0)
        until = metadata.visible_until
        self._arguments.visible_until = None if until is None else until.data_ptr()


def _padded(spec: KVCacheSpec) -> int:
    """Tokens for which a block has room: its size, rounded up to equal units (of packed pairs in bfloat16)."""
    units = -(-spec.block_size // _UNIT)
    tokens = -(-spec.block_size // units)
    packed = 2 if spec.dtype == torch.bfloat16 else 1
    return units * -(-tokens // packed) * packed


def _stored_type(spec: KVCacheSpec) -> torch.dtype:
    return spec.dtype if spec.cache_dtype == "auto" else torch.uint8


def _block_elements(spec: KVCacheSpec) -> int:
    """Elements of the stored type per block and place, scales included: those of the layer that takes most."""
    scales = 0 if spec.cache_dtype == "auto" else _SCALES * _SCALE_BYTES
    return _padded(spec) * max((layer.elements + layer.shape[1] * scales for layer in spec.layers), default=0)
