"""The blocks of GGUF's quantized types (ggml-common.h), unpacked into codes and scales, exactly.

Codes of 2 and 3 bits are kept in 4. A block of 256 numbers has a scale for every 16 or 32: an integer of at most 8
bits, times the block's float16, the outer scale.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from engine_core.kernels.library import Kernels
from engine_core.weights.quantized_weight import (
    FP4,
    SIGNED4,
    SIGNED5,
    SIGNED6,
    SIGNED8,
    UNSIGNED4,
    UNSIGNED5,
    Offset,
    QuantFormat,
    QuantizedWeight,
)

_IQ4 = tuple(map(float, (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)))
_Read = Callable[[torch.Tensor, QuantFormat], QuantizedWeight]


@dataclass(frozen=True, slots=True)
class BlockType:
    """A type, and the format its blocks become."""

    block_size: int
    block_bytes: int
    format: QuantFormat
    read: _Read
    """Takes blocks [N, B, block_bytes] uint8."""
    number: int
    """``RinglineBlockType`` of kernels/cpu/interface.h."""

    def weight(self, rows: torch.Tensor, kernels: Kernels | None = None) -> QuantizedWeight:
        """Unpack stored ``rows`` [N, bytes] uint8, dense; the result is the same with and without ``kernels``."""
        blocks = rows.view(len(rows), -1, self.block_bytes)
        return self.read(blocks, self.format) if kernels is None else self._read_natively(blocks, kernels)

    def _read_natively(self, blocks: torch.Tensor, kernels: Kernels) -> QuantizedWeight:
        rows, count, _ = blocks.shape
        kept = self.format
        scale_type = kept.scale_dtype if kept.outer_size is None else torch.int8

        codes = torch.empty(rows, count * self.block_size, dtype=torch.uint8)
        scales = torch.empty(rows, count * (self.block_size // kept.group_size), dtype=scale_type)
        outer = None if kept.outer_size is None else torch.empty(rows, count, dtype=kept.scale_dtype)
        minima = outer_minima = None
        if kept.offset is Offset.MINIMUM:
            minima, outer_minima = torch.empty_like(scales), None if outer is None else torch.empty_like(outer)
        kernels.gguf_blocks.run(
            input=blocks,
            codes=codes,
            scales=scales,
            outer_scales=outer,
            minima=minima,
            outer_minima=outer_minima,
            rows=rows,
            blocks=count,
            block_type=self.number,
        )
        return QuantizedWeight(kept, codes, scales, outer, None, minima, outer_minima)


def _plain(codebook: tuple[float, ...], offset: Offset = Offset.NONE) -> QuantFormat:
    return QuantFormat(codebook, 32, torch.float16, offset=offset)


def _nested(codebook: tuple[float, ...], group_size: int, offset: Offset = Offset.NONE) -> QuantFormat:
    return QuantFormat(codebook, group_size, torch.float16, outer_size=256, offset=offset)


def _float16(blocks: torch.Tensor, at: int) -> torch.Tensor:
    """[N, B]: the two bytes from ``at`` on of each block."""
    return blocks[..., at : at + 2].contiguous().view(torch.float16)[..., 0]


def _parts(packed: torch.Tensor, shape: tuple[int, ...], bits: int) -> torch.Tensor:
    """[N, B, s, 8 / bits, n]: fields of ``bits``, lowest first, of bytes [N, B, s · n]; ``shape``: (s, n)."""
    spans, width = shape
    shifted = packed.new_empty(*packed.shape[:2], spans, 8 // bits, width)
    source = packed.reshape(*packed.shape[:2], *shape)
    for part in range(8 // bits):
        torch.bitwise_right_shift(source, part * bits, out=shifted[:, :, :, part])
    return shifted.bitwise_and_((1 << bits) - 1)


def _codes(parts: torch.Tensor) -> torch.Tensor:
    """[N, K] of [N, B, …]."""
    return parts.flatten(1)


def _four_bits(at: int, minimum: bool) -> _Read:
    """Blocks of 32 with a scale, possibly a minimum, and codes of 4 bits from byte ``at`` on."""

    def read(blocks: torch.Tensor, kept: QuantFormat) -> QuantizedWeight:
        codes = _codes(_parts(blocks[..., at:], (1, 16), 4))
        minima = _float16(blocks, 2) if minimum else None
        return QuantizedWeight(kept, codes, _float16(blocks, 0), minima=minima)

    return read


def _five_bits(at: int) -> _Read:
    """Like ``_four_bits``, with the fifth bits in four bytes from ``at`` on."""

    def read(blocks: torch.Tensor, kept: QuantFormat) -> QuantizedWeight:
        low = _parts(blocks[..., at + 4 :], (1, 16), 4).flatten(2)
        eighths = torch.arange(32, dtype=torch.uint8)
        high = (blocks[..., at : at + 4, None] >> eighths[:8]).bitwise_and_(1).flatten(2)
        codes = low.add_(high, alpha=16)
        return QuantizedWeight(kept, _codes(codes), _float16(blocks, 0), minima=_float16(blocks, 2) if at > 2 else None)

    return read


def _q8_0(blocks: torch.Tensor, kept: QuantFormat) -> QuantizedWeight:
    return QuantizedWeight(kept, _codes(blocks[..., 2:] ^ 128), _float16(blocks, 0))


def _mxfp4(blocks: torch.Tensor, kept: QuantFormat) -> QuantizedWeight:
    powers = torch.exp2(torch.arange(256, dtype=torch.float64) - 127).to(torch.bfloat16)
    return QuantizedWeight(kept, _codes(_parts(blocks[..., 1:], (1, 16), 4)), powers[blocks[..., 0].int()])


def _six_bit_pairs(packed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Eight scales and eight minima, each [N, 8 · B] int8, from the 12 bytes of each block [N, B, 12]."""
    scales, minima, both = packed.reshape(*packed.shape[:2], 3, 4).unbind(2)
    last_scales = (both & 15) | (scales >> 6 << 4)
    last_minima = (both >> 4) | (minima >> 6 << 4)
    both_scales, both_minima = torch.cat([scales & 63, last_scales], 2), torch.cat([minima & 63, last_minima], 2)
    return both_scales.flatten(1).view(torch.int8), both_minima.flatten(1).view(torch.int8)


def _with_minima(
    blocks: torch.Tensor, kept: QuantFormat, codes: torch.Tensor, at: int, inner: tuple[torch.Tensor, torch.Tensor]
) -> QuantizedWeight:
    """From byte ``at`` on are the outer scale and the outer minimum, negated."""
    scales, minima = inner
    return QuantizedWeight(kept, codes, scales, _float16(blocks, at), None, minima, -_float16(blocks, at + 2))


def _q2_k(blocks: torch.Tensor, kept: QuantFormat) -> QuantizedWeight:
    both = blocks[..., :16].flatten(1)
    codes = _codes(_parts(blocks[..., 16:80], (2, 32), 2))
    return _with_minima(blocks, kept, codes, 80, ((both & 15).view(torch.int8), (both >> 4).view(torch.int8)))


def _q3_k(blocks: torch.Tensor, kept: QuantFormat) -> QuantizedWeight:
    codes = _parts(blocks[..., 32:96], (2, 32), 2).flatten(2)
    third = _parts(blocks[..., :32], (1, 32), 1).flatten(2)
    codes.add_(third, alpha=4).add_(4)
    low = _parts(blocks[..., 96:104], (1, 8), 4).flatten(2)
    high = _parts(blocks[..., 104:108], (1, 4), 2).flatten(2)
    scales = low.add_(high, alpha=16).view(torch.int8).sub_(32)
    return QuantizedWeight(kept, _codes(codes), scales.flatten(1), _float16(blocks, 108))


def _q4_k(blocks: torch.Tensor, kept: QuantFormat) -> QuantizedWeight:
    codes = _codes(_parts(blocks[..., 16:], (4, 32), 4))
    return _with_minima(blocks, kept, codes, 0, _six_bit_pairs(blocks[..., 4:16]))


def _q5_k(blocks: torch.Tensor, kept: QuantFormat) -> QuantizedWeight:
    codes = _parts(blocks[..., 48:], (4, 32), 4).flatten(2)
    codes.add_(_parts(blocks[..., 16:48], (1, 32), 1).flatten(2), alpha=16)
    return _with_minima(blocks, kept, _codes(codes), 0, _six_bit_pairs(blocks[..., 4:16]))


def _q6_k(blocks: torch.Tensor, kept: QuantFormat) -> QuantizedWeight:
    codes = _parts(blocks[..., :128], (2, 64), 4).flatten(2)
    codes.add_(_parts(blocks[..., 128:192], (2, 32), 2).flatten(2), alpha=16)
    scales = blocks[..., 192:208].contiguous().flatten(1).view(torch.int8)
    return QuantizedWeight(kept, _codes(codes), scales, _float16(blocks, 208))


def _iq4_xs(blocks: torch.Tensor, kept: QuantFormat) -> QuantizedWeight:
    low = torch.stack([blocks[..., 4:8] & 15, blocks[..., 4:8] >> 4], 3).flatten(2)
    quarters = torch.arange(0, 8, 2, dtype=torch.uint8)
    high = (blocks[..., 2:4, None] >> quarters).bitwise_and_(3).flatten(2)
    scales = low.add_(high, alpha=16).view(torch.int8).sub_(32)
    return QuantizedWeight(kept, _codes(_parts(blocks[..., 8:], (8, 16), 4)), scales.flatten(1), _float16(blocks, 0))


_TYPES: dict[str, tuple[int, int, QuantFormat, _Read]] = {
    "Q4_0": (32, 18, _plain(SIGNED4), _four_bits(2, minimum=False)),
    "Q4_1": (32, 20, _plain(UNSIGNED4, Offset.MINIMUM), _four_bits(4, minimum=True)),
    "Q5_0": (32, 22, _plain(SIGNED5), _five_bits(2)),
    "Q5_1": (32, 24, _plain(UNSIGNED5, Offset.MINIMUM), _five_bits(4)),
    "Q8_0": (32, 34, _plain(SIGNED8), _q8_0),
    "Q2_K": (256, 84, _nested(UNSIGNED4, 16, Offset.MINIMUM), _q2_k),
    "Q3_K": (256, 110, _nested(SIGNED4, 16), _q3_k),
    "Q4_K": (256, 144, _nested(UNSIGNED4, 32, Offset.MINIMUM), _q4_k),
    "Q5_K": (256, 176, _nested(UNSIGNED5, 32, Offset.MINIMUM), _q5_k),
    "Q6_K": (256, 210, _nested(SIGNED6, 16), _q6_k),
    "IQ4_NL": (32, 18, _plain(_IQ4), _four_bits(2, minimum=False)),
    "IQ4_XS": (256, 136, _nested(_IQ4, 32), _iq4_xs),
    "MXFP4": (32, 17, QuantFormat(FP4, 32, torch.bfloat16), _mxfp4),
}
BLOCK_TYPES = {name: BlockType(*fields, number) for number, (name, fields) in enumerate(_TYPES.items())}
"""By ggml's names."""
