"""Temperature, min-p, top-k and top-p: which tokens of a row may be drawn, and with what weight.

Each truncation keeps a prefix of the row's order (likeliest first, ties by lower id), so all that is computed is how
long the prefix is, and a vocabulary is never sorted. Probability masses are summed as integers (exp(logit − max) in
units of 2⁻³²): such sums do not depend on their order, hence not on the batch, the number of threads or the device.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engine_core.worker.ordering import ordered_bits, top_tokens

NUCLEUS_CANDIDATES = 128
"""Tokens in which a nucleus is looked for before the whole row is searched."""

_UNITS = float(1 << 32)


@dataclass(frozen=True, slots=True)
class Warp:
    """How the logits of R rows are changed before a draw."""

    temperature: torch.Tensor
    """[R, 1] float32, > 0"""
    min_p: torch.Tensor | None
    """[R, 1] float32, or None where no row has one."""

    def scale(self, logits: torch.Tensor, maximum: torch.Tensor) -> torch.Tensor:
        """(logits − maximum) ÷ temperature, −inf where the probability is under min-p of the likeliest token's.

        ``logits`` [R, K], ``maximum`` [R, 1] of the whole row; a new tensor [R, K], at most 0. Min-p is of Nguyen et
        al., "Turning up the heat: min-p sampling for creative and coherent LLM outputs", 2024.
        """
        scaled = (logits - maximum).div_(self.temperature)
        if self.min_p is not None:
            scaled.masked_fill_(scaled < self.min_p.log(), float("-inf"))
        return scaled


def _masses(scaled: torch.Tensor) -> torch.Tensor:
    """Exponentials of ``scaled`` (float32, ≤ 0) in units of 2⁻³², int64; 2²⁰ of them sum exactly in float64 too."""
    return scaled.exp().mul_(_UNITS).add_(0.5).to(torch.int64)


def _reach(total: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """The mass a nucleus must reach, of int64 ``total`` by float64 ``top_p``."""
    return torch.ceil(total.to(torch.float64) * top_p).to(torch.int64)


def _drop_beyond(scaled: torch.Tensor, reach: torch.Tensor) -> torch.Tensor:
    """Set all past the shortest prefix that reaches ``reach`` [R, 1] to −inf, in place; true [R] where one does."""
    cumulated = _masses(scaled).cumsum(dim=1)
    scaled[:, 1:].masked_fill_(cumulated[:, :-1] >= reach, float("-inf"))
    return cumulated[:, -1:].ge(reach).squeeze(1)


def top_k_prefix(
    logits: torch.Tensor, warp: Warp, top_k: torch.Tensor, top_p: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and scaled logits [R, max(top_k)] of what the truncations leave of ``logits`` [R, V]; −inf beyond.

    ``top_k`` [R, 1] int64 in 1 … V, ``top_p`` [R, 1] float64 or None where no row has one. Top-p (Holtzman et al.,
    "The curious case of neural text degeneration", 2019) counts the mass that min-p and top-k have left.
    """
    width = int(top_k.max())
    ids = top_tokens(logits, width)
    kept = logits.gather(1, ids)
    scaled = warp.scale(kept, kept[:, :1])
    scaled.masked_fill_(torch.arange(width, device=logits.device) >= top_k, float("-inf"))
    if top_p is not None:
        # The mass of a row without top-p is never reached: it is not to lose a tail because another row has top-p.
        total = _masses(scaled).sum(dim=1, keepdim=True)
        _drop_beyond(scaled, torch.where(top_p < 1.0, _reach(total, top_p), total + 1))
    return ids, scaled


def top_p_prefix(
    logits: torch.Tensor, scaled: torch.Tensor, top_p: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Ids and scaled logits [R, K] of the nucleus of each row of ``logits`` [R, V], and whether K holds it [R].

    ``scaled`` [R, V] are all of the rows' scaled logits, ``top_p`` [R, 1] float64 below 1. Rows for which the third
    result is false need ``keep_nucleus``.
    """
    ids = top_tokens(logits, min(NUCLEUS_CANDIDATES, logits.shape[1]))
    candidates = scaled.gather(1, ids)
    complete = _drop_beyond(candidates, _reach(_masses(scaled).sum(dim=1, keepdim=True), top_p))
    return ids, candidates, complete


def _bucket_reaching(weights: torch.Tensor, reach: int) -> tuple[int, int]:
    """The highest bucket at which the sum of ``weights`` from the top is at least ``reach``, and the sum above it."""
    from_top = weights.flip(0).cumsum(0)
    index = int((from_top < reach).sum())
    above = int(from_top[index - 1]) if index else 0
    return weights.numel() - 1 - index, above


def keep_nucleus(scaled: torch.Tensor, top_p: float) -> None:
    """Set what is outside the nucleus of one row ``scaled`` [V] to −inf, in place.

    A radix select: the mass by the upper 16 bits of the ordered logits gives the bucket in which the nucleus ends,
    the mass by the lower 16 bits within that gives the logit; of equal logits the lowest ids stay.
    """
    mass = _masses(scaled)
    reach = int(_reach(mass.sum(), torch.tensor(top_p, dtype=torch.float64)))
    bits = ordered_bits(scaled)
    upper = (bits >> 16) + 32768
    bucket, above = _bucket_reaching(torch.bincount(upper, mass.to(torch.float64), minlength=65536), reach)
    in_bucket = (upper == bucket).nonzero().squeeze(1)
    lower = bits[in_bucket] & 0xFFFF
    weights = torch.bincount(lower, mass[in_bucket].to(torch.float64), minlength=65536)
    last, above_in_bucket = _bucket_reaching(weights, reach - above)
    equal = in_bucket[lower == last]
    missing = reach - above - above_in_bucket
    stay = -(-missing // int(mass[equal[0]]))
    scaled.masked_fill_(bits < (((bucket - 32768) << 16) | last), float("-inf"))
    scaled[equal[stay:]] = float("-inf")
