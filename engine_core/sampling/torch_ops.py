"""Sampling from torch's logits, without waiting for the device.

A nucleus is found by bisection for its least logit, not by sorting, in as many rounds as a logit has bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from engine_core.async_copy import upload
from engine_core.sampling.base import LEAST_LOGIT, Change, Ids, Index, RandomRows, SamplingOps
from engine_core.sampling.noise import torch_gumbel
from engine_core.structured_output.matcher import Bits

_MASS_UNITS = float(1 << 30)
_ID_MASK = 0xFFFF_FFFF


class TorchOps(SamplingOps):
    """For logits on a GPU. Runs on CPU too, where tests compare it with ``NumpyOps``."""

    elements_at_once = 1 << 24  # some intermediate results have 8 bytes per logit

    xp = torch

    def array(self, logits: torch.Tensor) -> torch.Tensor:
        return logits

    def join(self, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        return torch.cat(list(parts))

    def place(self, parts: Sequence[tuple[Index, torch.Tensor]]) -> torch.Tensor:
        (rows,) = upload([np.concatenate([rows for rows, _ in parts])], parts[0][1].device)
        token_ids = torch.cat([token_ids for _, token_ids in parts])
        return torch.empty_like(token_ids).index_copy_(0, rows, token_ids)

    def select_rows(self, x: torch.Tensor, rows: Index) -> torch.Tensor:
        return x.index_select(0, upload([rows], x.device)[0])

    def keep_only(self, logits: torch.Tensor, rows: Index, pairs: tuple[Ids, Ids]) -> None:
        changed, *kept = upload([rows, *pairs], logits.device)
        values = logits[*kept].clamp_min(LEAST_LOGIT)
        logits.index_fill_(0, changed, -torch.inf)
        logits[*kept] = values

    def mask(self, logits: torch.Tensor, rows: Index, allowed: Bits) -> None:
        masked, words = upload([rows, allowed.view(np.int32)], logits.device)
        bits = words[:, :, None] >> torch.arange(32, dtype=torch.int32, device=logits.device) & 1
        banned = bits.view(len(rows), -1)[:, : logits.shape[1]] == 0
        chosen = logits if len(rows) == len(logits) else logits.index_select(0, masked)
        chosen.clamp_min_(LEAST_LOGIT).masked_fill_(banned, -torch.inf)
        if chosen is not logits:
            logits.index_copy_(0, masked, chosen)

    def ban(self, logits: torch.Tensor, pairs: tuple[Ids, Ids]) -> None:
        rows, ids = upload([*pairs], logits.device)
        before = logits[rows, ids]
        logits[rows, ids] = -torch.inf
        is_empty = logits.amax(1) == -torch.inf
        logits[rows, ids] = torch.where(is_empty[rows], before, -torch.inf)

    def change(self, logits: torch.Tensor, pairs: tuple[Ids, Ids], change: Change, *columns: npt.NDArray[Any]) -> None:
        rows, ids, *others = upload([*pairs, *columns], logits.device)
        logits[rows, ids] = change(torch, logits[rows, ids], *others)

    def argmax(self, logits: torch.Tensor) -> torch.Tensor:
        return logits.argmax(1)

    def greatest(self, logits: torch.Tensor) -> torch.Tensor:
        return logits.amax(1)

    def sample(self, logits: torch.Tensor, rows: RandomRows) -> torch.Tensor:
        first = logits.argmax(1, keepdim=True)
        maximum = logits.gather(1, first)
        return torch.where(maximum.isfinite(), self._sample_finite(logits, maximum, rows)[:, None], first)[:, 0]

    def _sample_finite(self, logits: torch.Tensor, maximum: torch.Tensor, rows: RandomRows) -> torch.Tensor:
        """Like ``sample``, but rows whose ``maximum`` [R, 1] is not finite get arbitrary tokens."""
        columns: list[npt.NDArray[Any] | None]
        columns = [rows.keys.view(np.int64), rows.temperature, rows.log_min_p, rows.top_k, rows.top_p]
        keys, temperature, *uploaded = upload([each for each in columns if each is not None], logits.device)
        log_min_p = None if rows.log_min_p is None else uploaded.pop(0)
        top_k = None if rows.top_k is None else uploaded.pop(0)
        top_p = None if rows.top_p is None else uploaded.pop(0)
        if rows.top_k is not None and top_k is not None:
            ids = top_tokens(logits, int(rows.top_k.max()))
            kept = logits.gather(1, ids)
            scaled = _scale(kept, kept[:, :1], temperature, log_min_p)
            scaled.masked_fill_(torch.arange(scaled.shape[1], device=logits.device) >= top_k, -torch.inf)
            if top_p is not None:
                masses = _masses(scaled)
                before = masses.cumsum(1) - masses
                scaled.masked_fill_(before >= _reach(masses, top_p), -torch.inf)
            return ids.gather(1, scaled.add_(torch_gumbel(keys, ids)).argmax(1, keepdim=True))[:, 0]
        scaled = _scale(logits, maximum, temperature, log_min_p)
        if top_p is not None:
            keep_nucleus(logits, scaled, top_p)
        every = torch.arange(logits.shape[1], device=logits.device)
        return scaled.add_(torch_gumbel(keys, every)).argmax(1)

    def normalize(self, logits: torch.Tensor, rows: Index) -> None:
        (changed,) = upload([rows], logits.device)
        chosen = logits.index_select(0, changed)
        maximum = chosen.amax(1, keepdim=True)
        total = (chosen - maximum).exp_().sum(1, keepdim=True)
        share = -(chosen == torch.inf).sum(1, keepdim=True).float().log()
        of_infinite = torch.where(chosen == torch.inf, share, -torch.inf)
        values = torch.where(maximum == torch.inf, of_infinite, chosen - maximum - total.log())
        logits.index_copy_(0, changed, values)

    def likeliest(self, logprobs: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        ids = top_tokens(logprobs, k)
        values = logprobs.gather(1, torch.cat([ids[:, :1], ids], 1))
        return torch.ones(len(ids), dtype=torch.int64, device=ids.device), ids, values

    def logprobs(
        self, logits: torch.Tensor, token_ids: torch.Tensor, k: int
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        own = token_ids[:, None]
        top_ids = top_tokens(logits, k) if k else own[:, :0]
        reported, maximum = logits.gather(1, torch.cat([own, top_ids], 1)), logits.amax(1, keepdim=True)
        total = (logits - maximum).exp_().sum(1, keepdim=True)
        share = -(logits == torch.inf).sum(1, keepdim=True).float().log()
        of_infinite = torch.where(reported == torch.inf, share, -torch.inf)
        values = torch.where(maximum == torch.inf, of_infinite, reported - maximum - total.log())
        order, ids = order_of(logits), torch.arange(logits.shape[1], device=logits.device)
        own_order = order.gather(1, own)
        ranks = 1 + ((order > own_order) | ((order == own_order) & (ids < own))).sum(1)
        return ranks, top_ids, values


def order_of(values: torch.Tensor) -> torch.Tensor:
    """int64 that compare as ``values`` float32 do; −0 equals +0."""
    bits = (values + 0.0).view(torch.int32)
    return (bits ^ ((bits >> 31) & 0x7FFF_FFFF)).long()


def top_tokens(logits: torch.Tensor, k: int) -> torch.Tensor:
    """Ids [R, k] of the first ``k`` ≤ V tokens of ``logits`` [R, V], in order."""
    packed = (order_of(logits) << 32).add_(_ID_MASK - torch.arange(logits.shape[1], device=logits.device))
    return _ID_MASK - (torch.topk(packed, k, dim=1).values & _ID_MASK)


def keep_nucleus(logits: torch.Tensor, scaled: torch.Tensor, top_p: torch.Tensor) -> None:
    """Set ``scaled`` [R, V] to −inf outside of each row's nucleus, in place; ``top_p`` [R, 1] float64, < 1."""
    masses, order = _masses(scaled), order_of(logits)
    reach = _reach(masses, top_p)
    # Find the greatest order such that tokens from it up have the mass; invariant: low ≤ it < high.
    low = torch.full_like(reach, -(1 << 31))
    high = torch.full_like(reach, 1 << 31)
    for _ in range(32):
        middle = (low + high) >> 1
        enough = (masses * (order >= middle)).sum(1, keepdim=True) >= reach
        low, high = torch.where(enough, middle, low), torch.where(enough, high, middle)
    at_edge = masses * (order == low)
    before = (masses * (order > low)).sum(1, keepdim=True) + at_edge.cumsum(1) - at_edge
    scaled.masked_fill_((order < low) | ((order == low) & (before >= reach)), -torch.inf)


def _scale(
    logits: torch.Tensor, maximum: torch.Tensor, temperature: torch.Tensor, log_min_p: torch.Tensor | None
) -> torch.Tensor:
    scaled = (logits - maximum).div_(temperature)
    return scaled if log_min_p is None else scaled.masked_fill_(scaled < log_min_p, -torch.inf)


def _masses(scaled: torch.Tensor) -> torch.Tensor:
    """Exponentials of ``scaled`` (≤ 0) in units of 2⁻³⁰, as int64: sums do not depend on their order."""
    return scaled.exp().mul_(_MASS_UNITS).add_(0.5).long()


def _reach(masses: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """The mass [R, 1] that a nucleus must reach."""
    return (masses.sum(1, keepdim=True) * top_p).ceil().long()
