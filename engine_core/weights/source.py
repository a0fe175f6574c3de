"""The interface through which a model takes its weights while it is built, one tensor at a time."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol, Self

import numpy as np
import numpy.typing as npt
import torch

from engine_core.weights.quantized_weight import QuantFormat, QuantizedWeight

ProgressCallback = Callable[[int, int], None]
"""Called with (bytes done, total bytes)."""


@dataclass(frozen=True, slots=True)
class TensorRows:
    """Neighbouring rows of a checkpoint tensor."""

    name: str
    count: int
    """Rows of the whole tensor."""
    rows: range
    """The rows taken."""

    def of(self, kind: str) -> Self:
        """The same rows of the layer's tensor ``kind`` (``weight``, ``bias``); ``name`` is the layer's."""
        return replace(self, name=f"{self.name}.{kind}")


MakeQuantized = Callable[[QuantFormat, TensorRows, int], Iterator[QuantizedWeight]]
"""Called with (format, rows, inputs); yields the rows of a weight, a few at a time."""


class Weights(Protocol):
    """The source of a model's weights."""

    @property
    def make_quantized(self) -> MakeQuantized | None:
        """Makes dummy quantized weights, to use instead of ``take_stored``; None: weights are read."""

    @property
    def dtype(self) -> torch.dtype:
        """The model's type."""

    def take(self, *tensors: str | TensorRows) -> torch.Tensor:
        """A tensor, or several (repeats allowed) concatenated along the first dimension.

        It is in the model's type and on its device: a view of a mapped file or, if converted, of memory that the next
        call reuses unless this tensor is still alive. Take one at a time, and copy what you keep.
        """

    def take_row(self, name: str, index: int, rows: range | None = None) -> torch.Tensor:
        """Like ``take``, for row ``index`` of a tensor's first dimension, or its ``rows`` along the second."""

    def take_table(self, tensor: str | TensorRows) -> torch.Tensor:
        """Like ``take``, for a lookup table: in its own type if that has 16 bits."""

    def take_stored(self, name: str, *place: int | slice) -> torch.Tensor:
        """``tensor[place]`` as stored: of any type, on CPU, and a read-only view.

        A quantization method reads the tensors of a layer in turns, a few rows of each at a time.
        """

    def take_float32(self, name: str) -> torch.Tensor:
        """A float32 copy of the stored tensor, not rounded to the model's type."""


class Staging:
    """Memory for tensors that need conversion from their file, reused once nothing refers to it.

    Separate buffers, allocated and freed in turn with the weights that are kept, would leave unusable holes in the
    heap: 40 % more memory, measured on a model with layers of 7 MB. On other devices torch reuses freed memory.
    """

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        """Allocates nothing yet."""
        self._dtype = dtype
        self._device = device
        self._memory = np.empty(0, np.uint8)
        self._lent: weakref.ref[npt.NDArray[np.uint8]] | None = None
        """Kept alive by the last tensor and its views."""

    def make(self, shape: tuple[int, ...]) -> torch.Tensor:
        """A tensor with unspecified contents. Drop the last one first, so that its memory can be reused."""
        if self._device.type != "cpu":
            return torch.empty(shape, dtype=self._dtype, device=self._device)
        nbytes = math.prod(shape) * self._dtype.itemsize
        in_use = self._lent is not None and self._lent() is not None
        if in_use or nbytes > len(self._memory):
            self._memory = self._memory[:0].copy()  # free the smaller one first
            self._memory = np.empty(nbytes, np.uint8)
        lent = self._memory[:nbytes]
        self._lent = weakref.ref(lent)
        return torch.from_numpy(lent).view(self._dtype).view(shape)
