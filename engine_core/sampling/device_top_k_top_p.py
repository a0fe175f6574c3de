"""What ``ordering.py`` and ``truncation.py`` do, on the device that has the logits, without waiting for it.

Orders and what is kept are the same: likeliest first, ties by lower id, masses in units of 2⁻³⁰. A nucleus is found by
bisection of its least logit instead of sorting, in as many rounds as a logit has bits.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

_UNITS = float(1 << 30)
_ID_MASK = 0xFFFF_FFFF


@dataclass(frozen=True, slots=True)
class DeviceWarp:
    """How the logits of R rows are changed before a draw."""

    temperature: torch.Tensor
    """[R, 1] float32, > 0"""
    log_min_p: torch.Tensor
    """[R, 1] float32, −inf where a row has no min-p"""

    def scale(self, logits: torch.Tensor, maximum: torch.Tensor) -> torch.Tensor:
        """As ``Warp.scale``: a new tensor, at most 0."""
        scaled = (logits - maximum).div_(self.temperature)
        return scaled.masked_fill_(scaled < self.log_min_p, -torch.inf)


def order_of(values: torch.Tensor) -> torch.Tensor:
    """Integers, as int64, that compare as ``values`` float32 do; −0 equals +0."""
    bits = (values + 0.0).view(torch.int32)
    return (bits ^ ((bits >> 31) & 0x7FFF_FFFF)).long()


def top_tokens(logits: torch.Tensor, k: int) -> torch.Tensor:
    """Ids [R, k] of the likeliest tokens of ``logits`` [R, V], in order."""
    packed = (order_of(logits) << 32).add_(_ID_MASK - torch.arange(logits.shape[1], device=logits.device))
    return _ID_MASK - (torch.topk(packed, k, dim=1).values & _ID_MASK)


def masses_of(scaled: torch.Tensor) -> torch.Tensor:
    """Exponentials of ``scaled`` (≤ 0) in units of 2⁻³⁰, as int64."""
    return scaled.exp().mul_(_UNITS).add_(0.5).long()


def reach_of(masses: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """The mass [R, 1] that a nucleus must reach; more than there is where ``top_p`` [R, 1] float64 is 1."""
    total = masses.sum(1, keepdim=True)
    return torch.where(top_p < 1.0, (total * top_p).ceil().long(), total + 1)


def keep_top_k(
    logits: torch.Tensor, warp: DeviceWarp, top_k: torch.Tensor, width: int, top_p: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and scaled logits [R, width] of what the truncations leave; −inf beyond.

    ``top_k`` [R, 1] is at most ``width``; ``top_p`` [R, 1] float64, or None where no row has one.
    """
    ids = top_tokens(logits, width)
    kept = logits.gather(1, ids)
    scaled = warp.scale(kept, kept[:, :1])
    scaled.masked_fill_(torch.arange(width, device=logits.device) >= top_k, -torch.inf)
    if top_p is not None:
        masses = masses_of(scaled)
        before = masses.cumsum(1) - masses
        scaled.masked_fill_(before >= reach_of(masses, top_p), -torch.inf)
    return ids, scaled


def keep_nucleus(logits: torch.Tensor, scaled: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """``scaled`` [R, V], in place, with all outside of each row's nucleus −inf; ``top_p`` [R, 1] float64, below 1."""
    masses, order = masses_of(scaled), order_of(logits)
    reach = reach_of(masses, top_p)
    # The greatest order such that tokens from it up have the mass; the search keeps low ≤ it < high.
    low = torch.full_like(reach, -(1 << 31))
    high = torch.full_like(reach, 1 << 31)
    for _ in range(32):
        middle = (low + high) >> 1
        enough = (masses * (order >= middle)).sum(1, keepdim=True) >= reach
        low, high = torch.where(enough, middle, low), torch.where(enough, high, middle)
    at_edge = masses * (order == low)
    before = (masses * (order > low)).sum(1, keepdim=True) + at_edge.cumsum(1) - at_edge
    return scaled.masked_fill_((order < low) | ((order == low) & (before >= reach)), -torch.inf)
