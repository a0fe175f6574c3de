"""Padding of a quantized layer's outputs where the backend needs it: rows whose codes and scales are zeros."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import accumulate

import torch

from engine_core.ops.base import OpsBackend
from engine_core.weights.features import Features
from engine_core.weights.quantized_weight import QuantizedWeight


class RowPadding:
    """Inserts rows of zeros after some of a layer's outputs."""

    def __init__(self, outputs: Features, backend: OpsBackend) -> None:
        widths = [] if outputs.padded(backend) == outputs.size else (outputs.parts or (outputs.size,)) * outputs.groups
        ends = accumulate(widths)
        self._zeros = {end: backend.padded(width) - width for end, width in zip(ends, widths, strict=True)}
        """Number of zero rows, by the output that they precede."""

    def count(self, rows: range) -> int:
        """Number of ``rows``, including the zero rows after them."""
        return len(rows) + sum(zeros for end, zeros in self._zeros.items() if rows.start < end <= rows.stop)

    def of_tensor(self, rows: torch.Tensor, first: int) -> torch.Tensor:
        """``rows`` [N, K], from output ``first`` on, with zeros."""
        runs = list(self._runs(first, len(rows)))
        if len(runs) == 1 and runs[0][2] == 0:
            return rows
        return torch.cat([torch.nn.functional.pad(rows[start:stop], (0, 0, 0, zeros)) for start, stop, zeros in runs])

    def of_parts(self, parts: Iterator[QuantizedWeight], first: int) -> Iterator[QuantizedWeight]:
        for part in parts:
            count = len(part.codes)
            if self.count(range(first, first + count)) == count:
                yield part
            else:
                yield part.each(partial(self.of_tensor, first=first))
            first += count

    def _runs(self, first: int, count: int) -> Iterator[tuple[int, int, int]]:
        """Start and stop of each run of rows, relative to ``first``, and the zeros after it."""
        start = 0
        for end, zeros in self._zeros.items():
            if first < end <= first + count:
                yield start, end - first, zeros
                start = end - first
        if start < count:
            yield start, count, 0
