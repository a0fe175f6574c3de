"""The rows of each slot that the target has computed, but a drafter that reads their hidden states has not seen yet."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from engine_core.async_copy import upload
from engine_core.worker.input_batch import Index

Positions = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """Neighbouring rows of a sequence: n of them."""

    slot: int
    first: int
    """The position of the first."""
    hidden: torch.Tensor
    """[n, W]"""

    @property
    def end(self) -> int:
        return self.first + len(self.hidden)


class PendingRows:
    """A few neighbouring rows for each slot: their positions and hidden states of width W."""

    def __init__(self, num_slots: int, most: int, width: int, dtype: torch.dtype, device: torch.device) -> None:
        """Memory for ``most`` rows of each slot."""
        self.most = most
        self.first = np.zeros(num_slots, np.int64)
        """[slots]: the position of the first row held, or to be held."""
        self.count = np.zeros(num_slots, np.int64)
        """[slots]"""
        self._hidden = torch.empty(num_slots, most, width, dtype=dtype, device=device)

    def align(self, slots: Index, positions: Positions) -> None:
        """The next rows of ``slots`` [S] are at ``positions`` [S]: drop rows from there on, or, after a gap, all."""
        offsets = positions - self.first[slots]
        joined = (offsets >= 0) & (offsets <= self.count[slots])
        self.first[slots] = np.where(joined, self.first[slots], positions)
        self.count[slots] = np.where(joined, offsets, 0)

    def append(self, slot: int, hidden: torch.Tensor) -> None:
        """The next rows [n, W] of ``slot``, for which there is room."""
        count = int(self.count[slot])
        self._hidden[slot, count : count + len(hidden)] = hidden
        self.count[slot] += len(hidden)

    def append_one(self, slots: Index, hidden: torch.Tensor) -> None:
        """The next row of each of ``slots`` [S], [S, W]."""
        where = upload([slots.astype(np.int64), self.count[slots]], hidden.device)
        self._hidden[where[0], where[1]] = hidden
        self.count[slots] += 1

    def take(self, slot: int, behind: torch.Tensor | None = None) -> Piece:
        """All rows of ``slot``, and those ``behind`` [n, W] them, which are no longer pending."""
        held = self._hidden[slot, : self.count[slot]]
        piece = Piece(slot, int(self.first[slot]), held.clone() if behind is None else torch.cat([held, behind]))
        self.first[slot], self.count[slot] = piece.end, 0
        return piece

    def take_until(self, slot: int, position: int) -> Piece | None:
        """The rows of ``slot`` before ``position``; those behind are dropped. None if the last of them is not here."""
        if not self.first[slot] < position <= self.first[slot] + self.count[slot]:
            return None
        self.count[slot] = position - self.first[slot]
        return self.take(slot)

    def take_all_but_last(self, slot: int) -> Piece:
        """The rows of ``slot`` but one."""
        piece = self.take(slot)
        self.first[slot] -= 1
        self.append(slot, piece.hidden[-1:])
        return Piece(slot, piece.first, piece.hidden[:-1])

    def clear(self, slot: int) -> None:
        self.first[slot] = self.count[slot] = 0
