"""The interface through which a model takes its weights while it is built, one tensor at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch

ProgressCallback = Callable[[int, int], None]
"""Called with the bytes done and the bytes in all."""


class Weights(Protocol):
    """Where weights come from. Each name is taken once, so that no more than one layer is in memory twice."""

    def take(self, name: str) -> torch.Tensor:
        """The tensor of that name, in the model's type and on its device.

        It may be a view of a mapped file: copy what is to be kept.
        """
