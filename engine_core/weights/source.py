"""The interface through which a model takes its weights while it is built, a tensor at a time."""

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
"""Called with the bytes done and the bytes in all."""


@dataclass(frozen=True, slots=True)
class TensorRows:
    """Neighbouring rows of one of a checkpoint's tensors."""

    name: str
    count: int
    """Rows of the whole tensor."""
    rows: range
    """Those that are taken."""

    def of(self, kind: str) -> Self:
        """The same rows of the tensor of that kind (``weight``, ``bias``) of the layer of that name."""
        return replace(self, name=f"{self.name}.{kind}")


MakeQuantized = Callable[[QuantFormat, TensorRows, int], Iterator[QuantizedWeight]]
"""The rows of a weight in that format with so many inputs, a few at a time."""


class Weights(Protocol):
    """Where weights come from."""

    @property
    def make_quantized(self) -> MakeQuantized | None:
        """What makes quantized weights up, instead of ``take_stored``; None: they are read."""

    @property
    def dtype(self) -> torch.dtype:
        """The model's type."""

    def take(self, *tensors: str | TensorRows) -> torch.Tensor:
        """A tensor, or several joined along the first dimension, where one may recur.

        It is in the model's type and on its device: a view of a mapped file or, where it had to be converted, of
        memory that the next one reuses unless this one is still there. Take one after the other, and copy what is to be
        kept.
        """

    def take_row(self, name: str, index: int, rows: range | None = None) -> torch.Tensor:
        """Row ``index`` of a tensor's first dimension, like ``take``, or these ``rows`` of it along the second one."""

    def take_table(self, tensor: str | TensorRows) -> torch.Tensor:
        """Like ``take``, for a tensor of which rows will be read: in its own type if that has 16 bits."""

    def take_stored(self, name: str, *place: int | slice) -> torch.Tensor:
        """That ``place`` of a tensor, as it is stored: of any type, on CPU, and a view, which is not to be written to.

        A method reads the tensors of a layer in turns, a few rows of each at a time.
        """

    def take_float32(self, name: str) -> torch.Tensor:
        """A copy in float32 of the tensor as it is stored: what must not be rounded to the model's type."""


class Staging:
    """Memory for tensors that cannot be used as they lie in a file, reused where nothing refers to it any more.

    Separate buffers, allocated and freed in turn with the weights that are kept, would leave holes in the heap that
    nothing fits into: 40 % more memory, measured on a model with layers of 7 MB. On other devices torch reuses what is
    freed.
    """

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        """Allocates nothing yet."""
        self._dtype = dtype
        self._device = device
        self._memory = np.empty(0, np.uint8)
        self._lent: weakref.ref[npt.NDArray[np.uint8]] | None = None
        """What the last tensor, and whatever is a view of it, keeps alive."""

    def make(self, shape: tuple[int, ...]) -> torch.Tensor:
        """A tensor of that shape with unspecified contents. Let go of the last one before, so as to need no more."""
        if self._device.type != "cpu":
            return torch.empty(shape, dtype=self._dtype, device=self._device)
        nbytes = math.prod(shape) * self._dtype.itemsize
        in_use = self._lent is not None and self._lent() is not None
        if in_use or nbytes > len(self._memory):
            self._memory = self._memory[:0].copy()  # let go of the smaller one first
            self._memory = np.empty(nbytes, np.uint8)
        lent = self._memory[:nbytes]
        self._lent = weakref.ref(lent)
        return torch.from_numpy(lent).view(self._dtype).view(shape)
