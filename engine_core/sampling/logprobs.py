"""Log probabilities of a step's rows: tensors on the device, then packed arrays on the host."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from engine_core.logprobs import Logprobs


@dataclass(frozen=True, slots=True)
class LogprobsTensors:
    """Log probabilities of L rows, each with up to k alternatives."""

    rows: npt.NDArray[np.intp]
    """[L]: their indices among the sampled rows, ascending."""
    num_top: list[int]
    """[L]: alternatives that each row asks for; at most k are reported, as the vocabulary may be smaller."""
    ranks: torch.Tensor
    """[L] int64 of the sampled tokens, 1 for the most likely one."""
    top_ids: torch.Tensor
    """[L, k] int64: the most likely tokens, in order."""
    values: torch.Tensor
    """[L, 1 + k] float32: log probabilities of the sampled token and of ``top_ids``."""

    @classmethod
    def empty(cls, num_rows: int, num_top: int, device: torch.device) -> LogprobsTensors:
        """``num_rows`` rows with ``num_top`` alternatives each, still to be written."""
        return cls(
            np.arange(num_rows),
            [num_top] * num_rows,
            torch.empty(num_rows, dtype=torch.int64, device=device),
            torch.empty(num_rows, num_top, dtype=torch.int64, device=device),
            torch.empty(num_rows, 1 + num_top, dtype=torch.float32, device=device),
        )

    def write(self, first: int, *tensors: torch.Tensor) -> None:
        """Copy ``tensors`` to the rows from ``first`` on."""
        for own, given in zip(self.tensors(), tensors, strict=True):
            own[first : first + len(given)] = given

    def tensors(self) -> list[torch.Tensor]:
        """The tensors to copy to the host."""
        return [self.ranks, self.top_ids, self.values]

    def take_from(self, arrived: Iterator[torch.Tensor]) -> LogprobsTensors:
        """The same with the next tensors of ``arrived``: host copies of ``tensors()``."""
        return LogprobsTensors(self.rows, self.num_top, *(next(arrived) for _ in self.tensors()))

    def entries(self) -> list[Logprobs]:
        """One entry per row; the tensors must be on the host."""
        packed = pack(self.ranks, self.top_ids, self.values)
        return [packed.row(row, min(count, packed.top_count)) for row, count in enumerate(self.num_top)]


def report_bytes(num_rows: int, num_top: int) -> int:
    """Bytes that these rows' log probabilities take while they are packed: tensors and arrays."""
    return num_rows * (12 * (1 + num_top) + 8 * (1 + num_top))


def pack(ranks: torch.Tensor, top_ids: torch.Tensor, values: torch.Tensor) -> Logprobs:
    """Pack all rows, each with all alternatives: ``ranks`` [L], ``top_ids`` [L, k], ``values`` [L, 1 + k]."""
    return Logprobs(
        top_ids.shape[1],
        _array("f", values[:, 0].numpy(), np.float32),
        _array("I", ranks.numpy(), np.uint32),
        _array("I", top_ids.numpy(), np.uint32),
        _array("f", values[:, 1:].numpy(), np.float32),
    )


def _array(code: str, values: npt.NDArray[np.generic], dtype: type[np.generic]) -> array[Any]:
    packed: array[Any] = array(code)
    packed.frombytes(values.astype(dtype, copy=False).tobytes())
    return packed
