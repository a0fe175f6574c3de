"""Sampling noise without a generator: a pure function of (seed, choice, absolute position, token id).

Integers come from SplitMix64 (Steele, Lea & Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014),
used as the counter-based generator that it is: draw i of the stream that starts at ``key`` is
``mix64(key + (i + 1) · GAMMA)`` modulo 2⁶⁴. A sequence's stream is split off its seed by choice, a position's stream
off the sequence's by position, and a token's noise is draw ``token id`` of that. Only 64-bit additions,
multiplications, shifts and exclusive ors are used, so every device makes the same integers.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

U64 = npt.NDArray[np.uint64]

GAMMA = 0x9E3779B97F4A7C15
_MULTIPLIER_1 = 0xBF58476D1CE4E5B9
_MULTIPLIER_2 = 0x94D049BB133111EB
_MASK = (1 << 64) - 1

_BITS = 40
# A uniform number in (0, 1): (k + ½) · 2⁻⁴⁰ with its upper end pulled to 1 − 2⁻²⁴, the largest float32 below one.
# Small values, which win, keep all their resolution.
_UNIT = float(np.float32(2.0**-_BITS) * (np.float32(1.0) - np.float32(2.0**-24)))


def mix64(value: int) -> int:
    """SplitMix64's finalizer (Stafford's variant 13): a bijection on 64-bit integers."""
    value = ((value ^ (value >> 30)) * _MULTIPLIER_1) & _MASK
    value = ((value ^ (value >> 27)) * _MULTIPLIER_2) & _MASK
    return value ^ (value >> 31)


def sequence_key(seed: int, choice: int) -> int:
    """Start of the stream of one choice; the upper half of a negative seed's two's complement counts."""
    return mix64(mix64(seed & _MASK) + (choice + 1) * GAMMA & _MASK)


def position_keys(sequence_keys: U64, positions: npt.NDArray[np.int64]) -> U64:
    """Start of the stream of each row [R]: ``sequence_keys`` [R], ``positions`` [R] counted from the prompt's start."""
    z: U64 = sequence_keys + (positions.astype(np.uint64) + np.uint64(1)) * np.uint64(GAMMA)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(_MULTIPLIER_1)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(_MULTIPLIER_2)
    z ^= z >> np.uint64(31)
    return z


def _signed(value: int) -> int:
    """The int64 with the bits of an unsigned 64-bit ``value``, which is what torch can multiply by."""
    return value - (1 << 64) if value >> 63 else value


def _xor_shift_right(z: torch.Tensor, shift: int) -> torch.Tensor:
    """Exclusive or of z and z >>> shift, int64, in place.

    Torch shifts arithmetically, so the copied sign bits are masked off.
    """
    return z.bitwise_xor_((z >> shift).bitwise_and_((1 << (64 - shift)) - 1))


def token_counters(token_ids: torch.Tensor) -> torch.Tensor:
    """(id + 1) · GAMMA modulo 2⁶⁴ of int64 ``token_ids``, to be passed to ``gumbel``."""
    return (token_ids + 1).mul_(_signed(GAMMA))


def random_bits(keys: torch.Tensor, counters: torch.Tensor) -> torch.Tensor:
    """The 64-bit integers (as int64) of rows ``keys`` [R, 1] at ``counters`` [V] or [R, K]."""
    z = keys + counters
    _xor_shift_right(z, 30).mul_(_signed(_MULTIPLIER_1))
    _xor_shift_right(z, 27).mul_(_signed(_MULTIPLIER_2))
    return _xor_shift_right(z, 31)


def gumbel(keys: torch.Tensor, counters: torch.Tensor) -> torch.Tensor:
    """Standard Gumbel noise, float32, of rows ``keys`` [R, 1] int64 at ``counters`` [V] or [R, K].

    ``argmax(logits + gumbel)`` is a draw from ``softmax(logits)`` (Gumbel 1954; the "Gumbel-max trick").
    """
    top_bits = (random_bits(keys, counters) >> (64 - _BITS)).bitwise_and_((1 << _BITS) - 1)
    uniform = top_bits.to(torch.float32).add_(0.5).mul_(_UNIT)
    # −log1p(−u) is exponentially distributed, and minus the logarithm of that is Gumbel.
    return uniform.neg_().log1p_().neg_().log_().neg_()
