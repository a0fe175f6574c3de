"""The gated activation between the two halves of a feed-forward block (SwiGLU, https://arxiv.org/abs/2002.05202)."""

from __future__ import annotations

import torch


def silu_and_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """silu(gate) · up [T, I] of ``gate_up`` [T, 2 · I], computed in float32.

    ``torch.nn.functional.silu`` is not used: in float32 it computes the last elements of an array (and of each
    thread's share) by another formula than the rest, so a row's bits would depend on the batch. ``exp`` does not.
    """
    gate, up = gate_up.float().chunk(2, dim=-1)
    denominator = torch.exp(-gate).add_(1.0)
    return (gate / denominator).mul_(up).to(gate_up.dtype)
