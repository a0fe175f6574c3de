"""How the hidden states of an input's tokens, which may come over several steps, become what is pooled.

Sums are made in one order, token by token, in float64: so the result has the same bits however the input was divided
into steps, and whatever else they computed. Symbols in shapes: n rows of a step, H hidden size.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import numpy.typing as npt

from engine_core.pooling.config import PoolingType

Rows = npt.NDArray[np.float32]
"""[n, H]"""
Sums = npt.NDArray[np.float64]
"""[H]"""


class PooledRows(ABC):
    """Of one input. ``add`` is called for each step in order, with the rows of ``wanted``."""

    def __init__(self, length: int) -> None:
        """``length``: of the input, in tokens."""
        self.length = length

    def wanted(self, first: int, end: int) -> range:
        """Which of the tokens ``first`` … ``end`` − 1 that a step computes are needed."""
        return range(first, end)

    @abstractmethod
    def add(self, rows: Rows, first: int) -> None:
        """Take the hidden states of the wanted tokens of a step, the first of which is ``first``."""

    @abstractmethod
    def pooled(self) -> Rows:
        """[1, H], or [tokens, H] for ``AllRows``; after the last step."""


class OneRow(PooledRows):
    """The first token's, or the last one's."""

    def __init__(self, length: int, *, last: bool) -> None:
        super().__init__(length)
        self._place = length - 1 if last else 0
        self._row: Rows | None = None

    def wanted(self, first: int, end: int) -> range:
        return range(self._place, self._place + (1 if first <= self._place < end else 0))

    def add(self, rows: Rows, first: int) -> None:
        if len(rows):
            self._row = rows.copy()

    def pooled(self) -> Rows:
        assert self._row is not None
        return self._row


class AllRows(PooledRows):
    """Each token's."""

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self._parts: list[Rows] = []

    def add(self, rows: Rows, first: int) -> None:
        self._parts.append(rows.copy())

    def pooled(self) -> Rows:
        return np.concatenate(self._parts)


class GreatestRows(PooledRows):
    """The greatest number in each place; NaN if any is one."""

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self._greatest: Rows | None = None

    def add(self, rows: Rows, first: int) -> None:
        most = np.maximum.reduce(rows, axis=0)
        self._greatest = most if self._greatest is None else np.maximum(self._greatest, most)

    def pooled(self) -> Rows:
        assert self._greatest is not None
        return self._greatest[None]


class SummedRows(PooledRows):
    """The sum, divided by what ``kind`` says."""

    def __init__(self, length: int, kind: PoolingType) -> None:
        super().__init__(length)
        self._sum: Sums | None = None
        self._is_weighted = kind is PoolingType.WEIGHTED_MEAN
        of_all = {
            PoolingType.MEAN: float(length),
            PoolingType.MEAN_SQRT_LEN: float(length) ** 0.5,
            PoolingType.WEIGHTED_MEAN: length * (length + 1) / 2,
        }
        self._divisor = of_all[kind]

    def add(self, rows: Rows, first: int) -> None:
        wide = rows.astype(np.float64)
        if self._is_weighted:
            wide *= np.arange(first + 1, first + 1 + len(wide), dtype=np.float64)[:, None]
        if self._sum is not None:
            wide[0] += self._sum
        self._sum = sum_in_order(wide)

    def pooled(self) -> Rows:
        assert self._sum is not None
        mean: Sums = self._sum / self._divisor
        return mean.astype(np.float32)[None]


def sum_in_order(rows: npt.NDArray[Any]) -> Sums:
    """The sum [H] of ``rows`` [n, H], added one after the other."""
    # numpy adds whole rows where these are contiguous and there are several places; a single one it would add in pairs.
    if rows.shape[1] == 1:
        last: Sums = np.add.accumulate(rows, axis=0)[-1].copy()
        return last
    return np.asarray(np.add.reduce(np.ascontiguousarray(rows), axis=0), np.float64)


def pooled_rows(kind: PoolingType, length: int, *, per_token: bool) -> PooledRows:
    """For one input of ``length`` tokens."""
    if per_token:
        return AllRows(length)
    match kind:
        case PoolingType.LAST | PoolingType.CLS:
            return OneRow(length, last=kind is PoolingType.LAST)
        case PoolingType.MAX:
            return GreatestRows(length)
    return SummedRows(length, kind)
