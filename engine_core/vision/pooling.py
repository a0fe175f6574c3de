"""Squares of neighbouring patches: their means, or all their numbers side by side."""

from __future__ import annotations

import torch


def mean_of_squares(hidden: torch.Tensor, columns: int, side: int) -> torch.Tensor:
    """The means over squares of ``side`` × ``side`` neighbours in ``hidden`` [rows · ``columns``, H]."""
    squares = hidden.view(-1, side, columns // side, side, hidden.shape[1]).float()
    # added one by one: in torch's own mean the order depends on the number of threads
    total = squares[:, 0, :, 0].clone()
    for place in range(1, side * side):
        total += squares[:, place // side, :, place % side]
    return (total / (side * side)).flatten(0, 1).to(hidden.dtype)


def squares_of(hidden: torch.Tensor, columns: int, side: int) -> torch.Tensor:
    """[rows · columns / side², side² · H]: the rows of each square of neighbours in ``hidden`` [rows · columns, H]."""
    squares = hidden.view(-1, side, columns // side, side, hidden.shape[1]).transpose(1, 2)
    return squares.reshape(-1, side * side * hidden.shape[1])
