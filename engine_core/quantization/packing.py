"""Unpacks codes from the words of checkpoints, in few passes over memory, and checks the tensors beside them."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from engine_core.errors import CheckpointError
from engine_core.weights.source import Weights

_CODES_AT_ONCE = 2**22
"""More would not stay in a processor's caches between two passes."""
_TOGETHER = 64
"""Rows that kernels pack together: smaller chunks would be padded."""
FLOATS = (torch.float16, torch.bfloat16, torch.float32)


def some_rows(rows: range, inputs: int) -> Iterator[range]:
    """``rows`` of ``inputs`` codes each, a few at a time."""
    step = max(_TOGETHER, _CODES_AT_ONCE // max(inputs, 1) // _TOGETHER * _TOGETHER)
    for start in range(rows.start, rows.stop, step):
        yield range(start, min(start + step, rows.stop))


def take(weights: Weights, name: str, types: tuple[torch.dtype, ...], *place: int | slice) -> torch.Tensor:
    """A ``place`` in a tensor, which must be of one of these ``types``."""
    found = weights.take_stored(name, *place)
    if found.dtype not in types:
        raise CheckpointError(f"{name} is of type {_name(found.dtype)}; expected {' or '.join(map(_name, types))}")
    return found


def take_scales(weights: Weights, name: str, dtype: torch.dtype, *place: int | slice) -> torch.Tensor:
    """Like ``take``, for finite numbers, converted to ``dtype``, which must hold them exactly."""
    found = take(weights, name, FLOATS, *place)
    if not found.isfinite().all():
        raise CheckpointError(f"{name} has infinities or NaNs: download the checkpoint again")
    converted = found.to(dtype)
    if found.dtype != dtype and not torch.equal(converted.to(found.dtype), found):
        problem = f"{name} has numbers that {_name(dtype)}, the type of other scales, cannot hold"
        raise CheckpointError(f"{problem}: choose another checkpoint")
    return converted


def take_powers(weights: Weights, name: str, *place: int | slice) -> torch.Tensor:
    """Like ``take``, for powers of two, as bfloat16; stored as exponents + 127 in a byte, where 255 stands for NaN."""
    exponents = take(weights, name, (torch.uint8,), *place)
    if (exponents == 255).any():
        raise CheckpointError(f"{name} has NaNs (255): download the checkpoint again")
    return powers_of_two(exponents)


def powers_of_two(exponents: torch.Tensor) -> torch.Tensor:
    """bfloat16, from exponents + 127 as uint8, without 255."""
    bits = exponents.to(torch.int16) << 7
    return bits.masked_fill_(exponents == 0, 1 << 6).view(torch.bfloat16)  # 2⁻¹²⁷ is subnormal


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def bytes_of(words: torch.Tensor) -> torch.Tensor:
    """[N, 4 · W] uint8 of ``words`` [N, W] int32, lowest byte first."""
    # Flat: a single column may have any stride, which a view as bytes does not take.
    return words.contiguous().flatten().view(torch.uint8).view(len(words), 4 * words.shape[1])


def nibbles_of(packed: torch.Tensor, *, high_first: bool = False) -> torch.Tensor:
    """[N, 2 · B] of ``packed`` [N, B] uint8: two codes in a byte, the first in its low or high half."""
    pairs = packed.to(torch.int16)
    if high_first:
        pairs = pairs << 8 | pairs >> 4
    else:
        pairs |= pairs << 4
    pairs &= 0x0F0F
    return pairs.view(torch.uint8)


def bytes_apart(words: torch.Tensor) -> torch.Tensor:
    """[W, 4, K] uint8 of ``words`` [K, W] int32: the four bytes of each word, lowest first."""
    columns = words.t().contiguous()
    found = torch.empty(columns.shape[0], 4, columns.shape[1], dtype=torch.uint8)
    for place in range(4):
        found[:, place] = columns >> (8 * place)
    return found


def fields_of(packed: torch.Tensor, bits: int) -> torch.Tensor:
    """[N, W · 32 / bits] uint8 of ``packed`` [N, W] int32: codes along the rows, lowest first."""
    return bytes_of(packed) if bits == 8 else nibbles_of(bytes_of(packed))


def order_of_groups(groups: torch.Tensor, name: str, size: int) -> torch.Tensor | None:
    """[K] int64: inputs sorted by ``groups`` [K] of ``size`` inputs each; None: they are sorted already."""
    in_order = torch.arange(len(groups)) // size
    if torch.equal(groups.long(), in_order):
        return None
    order = groups.argsort(stable=True)
    if not torch.equal(groups[order].long(), in_order):
        raise CheckpointError(
            f"{name} does not divide {len(groups)} inputs into groups of {size}, numbered from 0: download the "
            "checkpoint again"
        )
    return order


def columns_of(codes: torch.Tensor, order: torch.Tensor | None) -> torch.Tensor:
    """[N, K]: the columns of ``codes`` [N, K] in this order."""
    return codes.contiguous() if order is None else codes.index_select(1, order)
