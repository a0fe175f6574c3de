"""The noise of ``noise.py`` on the device that has the logits: the same integers, in torch's arithmetic.

torch has 64-bit additions and products modulo 2⁶⁴ on every device, but for signed numbers only: a logical shift is an
arithmetic one whose upper bits are cleared. Logarithms may differ from those of a CPU in the last bit.
"""

from __future__ import annotations

import torch

_GAMMA = 0x9E3779B97F4A7C15 - (1 << 64)
_MULTIPLIER_1 = 0xBF58476D1CE4E5B9 - (1 << 64)
_MULTIPLIER_2 = 0x94D049BB133111EB - (1 << 64)
_BITS = 40
_UNIT = 2.0**-_BITS * (1.0 - 2.0**-24)


def _shifted(z: torch.Tensor, places: int) -> torch.Tensor:
    """``z`` shifted right as if it had no sign."""
    return (z >> places).bitwise_and_((1 << (64 - places)) - 1)


def random_bits(keys: torch.Tensor, token_ids: torch.Tensor) -> torch.Tensor:
    """The 64-bit integers, as int64, of rows ``keys`` [R, 1] int64 at ``token_ids`` [V] or [R, K] int64."""
    z = keys + (token_ids + 1) * _GAMMA
    z.bitwise_xor_(_shifted(z, 30)).mul_(_MULTIPLIER_1)
    z.bitwise_xor_(_shifted(z, 27)).mul_(_MULTIPLIER_2)
    return z.bitwise_xor_(_shifted(z, 31))


def gumbel(keys: torch.Tensor, token_ids: torch.Tensor) -> torch.Tensor:
    """Standard Gumbel noise, float32, of rows ``keys`` [R, 1] at ``token_ids`` [V] or [R, K]."""
    noise = _shifted(random_bits(keys, token_ids), 64 - _BITS).to(torch.float32)
    return noise.add_(0.5).mul_(-_UNIT).log1p_().neg_().log_().neg_()
