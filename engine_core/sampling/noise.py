"""Sampling noise without a generator: a pure function of (seed, choice, absolute position, token id).

Integers come from SplitMix64 (Steele, Lea & Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014),
used as a counter-based generator: number i of the stream that starts at ``key`` is ``mix64(key + (i + 1) · GAMMA)``
modulo 2⁶⁴. A sequence's stream is split off its seed by choice, a position's stream off the sequence's by position,
and a token's noise is number ``token id`` of the position's stream. Only 64-bit additions, multiplications, shifts and
exclusive ors are used, so every device makes the same integers.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

U64 = npt.NDArray[np.uint64]
F32 = npt.NDArray[np.float32]

GAMMA = 0x9E3779B97F4A7C15
_MULTIPLIER_1 = 0xBF58476D1CE4E5B9
_MULTIPLIER_2 = 0x94D049BB133111EB
_MASK = (1 << 64) - 1

_BITS = 40
# A uniform number in (0, 1) is (k + ½) · 2⁻⁴⁰, scaled so that the greatest is 1 − 2⁻²⁴, the largest float32 below one.
# Small values, which win, keep their full resolution.
_UNIT = np.float32(2.0**-_BITS) * (np.float32(1.0) - np.float32(2.0**-24))

_NUMBERS_AT_ONCE = 1 << 15
"""Numbers worked on at a time: intermediate results stay in a core's cache."""


def mix64(value: int) -> int:
    """SplitMix64's finalizer (Stafford's variant 13): a bijection on 64-bit integers."""
    value = ((value ^ (value >> 30)) * _MULTIPLIER_1) & _MASK
    value = ((value ^ (value >> 27)) * _MULTIPLIER_2) & _MASK
    return value ^ (value >> 31)


def sequence_key(seed: int, choice: int) -> int:
    """Start of a choice's stream; a negative seed counts as its two's complement of 64 bits."""
    return mix64(mix64(seed & _MASK) + (choice + 1) * GAMMA & _MASK)


def _mix(z: U64, spare: U64 | None = None) -> U64:
    """``mix64`` of every number of ``z``, in place; ``spare`` is of the same shape and overwritten."""
    shifted = np.right_shift(z, np.uint64(30), out=spare)
    np.bitwise_xor(z, shifted, out=z)
    np.multiply(z, np.uint64(_MULTIPLIER_1), out=z)
    np.right_shift(z, np.uint64(27), out=shifted)
    np.bitwise_xor(z, shifted, out=z)
    np.multiply(z, np.uint64(_MULTIPLIER_2), out=z)
    np.right_shift(z, np.uint64(31), out=shifted)
    np.bitwise_xor(z, shifted, out=z)
    return z


def _counters(indexes: npt.NDArray[np.int64]) -> U64:
    """(index + 1) · GAMMA: how far number ``index`` is from the start of its stream."""
    return (indexes.astype(np.uint64) + np.uint64(1)) * np.uint64(GAMMA)


def position_keys(sequence_keys: U64, positions: npt.NDArray[np.int64]) -> U64:
    """Start of each row's stream [R]: ``sequence_keys`` [R], ``positions`` [R] counted from the prompt's start."""
    return _mix(sequence_keys + _counters(positions))


def random_bits(keys: U64, token_ids: npt.NDArray[np.int64]) -> U64:
    """The 64-bit integers of rows ``keys`` [R, 1] at ``token_ids`` [V] or [R, K]."""
    return _mix(keys + _counters(token_ids))


def gumbel(keys: U64, token_ids: npt.NDArray[np.int64]) -> F32:
    """Standard Gumbel noise of rows ``keys`` [R, 1] at ``token_ids`` [V] or [R, K].

    ``argmax(logits + gumbel)`` is a sample of ``softmax(logits)`` (Gumbel 1954; the "Gumbel-max trick").
    """
    bits = random_bits(keys, token_ids)
    return _gumbel_of(bits, np.empty(bits.shape, np.float32))


def _gumbel_of(bits: U64, noise: F32) -> F32:
    """Fill ``noise`` from ``bits``, which are overwritten."""
    noise[...] = np.right_shift(bits, np.uint64(64 - _BITS), out=bits)
    noise += np.float32(0.5)
    noise *= -_UNIT
    # −log1p(−u) is exponentially distributed, and minus the logarithm of that is Gumbel.
    for step in (np.log1p, np.negative, np.log, np.negative):
        step(noise, out=noise)
    return noise


class VocabularyNoise:
    """``gumbel`` of all V tokens of a vocabulary, a few rows at a time, in its own memory that stays in a cache."""

    def __init__(self, vocab_size: int) -> None:
        self._counters = _counters(np.arange(vocab_size))
        self._bits = np.empty((2, _NUMBERS_AT_ONCE), np.uint64)
        self._noise = np.empty(_NUMBERS_AT_ONCE, np.float32)

    def add_to(self, values: F32, keys: U64) -> F32:
        """Add the noise of rows ``keys`` [R, 1] to ``values`` [R, V], in place."""
        num_rows, vocab = values.shape
        rows_at_once = max(1, _NUMBERS_AT_ONCE // vocab)
        for first_row in range(0, num_rows, rows_at_once):
            rows = slice(first_row, first_row + rows_at_once)
            for first in range(0, vocab, _NUMBERS_AT_ONCE):
                columns = slice(first, first + _NUMBERS_AT_ONCE)
                part = values[rows, columns]
                bits, spare = self._bits[:, : part.size].reshape(2, *part.shape)
                np.add(keys[rows], self._counters[columns], out=bits)
                part += _gumbel_of(_mix(bits, spare), self._noise[: part.size].reshape(part.shape))
        return values


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def torch_random_bits(keys: torch.Tensor, token_ids: torch.Tensor) -> torch.Tensor:
    """Like ``random_bits``, but in int64: torch has additions and products modulo 2⁶⁴ only for signed numbers."""
    z = keys + (token_ids + 1) * _signed(GAMMA)
    z.bitwise_xor_(_shifted(z, 30)).mul_(_signed(_MULTIPLIER_1))
    z.bitwise_xor_(_shifted(z, 27)).mul_(_signed(_MULTIPLIER_2))
    return z.bitwise_xor_(_shifted(z, 31))


def torch_gumbel(keys: torch.Tensor, token_ids: torch.Tensor) -> torch.Tensor:
    """Like ``gumbel``, for keys as int64. Logarithms of a GPU may differ from a CPU's in the last bit."""
    noise = _shifted(torch_random_bits(keys, token_ids), 64 - _BITS).to(torch.float32)
    return noise.add_(0.5).mul_(-float(_UNIT)).log1p_().neg_().log_().neg_()


def _shifted(z: torch.Tensor, places: int) -> torch.Tensor:
    """A logical shift to the right: torch's is arithmetic, so the upper bits are cleared."""
    return (z >> places).bitwise_and_((1 << (64 - places)) - 1)
