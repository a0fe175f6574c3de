"""How the hidden states of a step are computed: the seam between a step's inputs and the device that has the model."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from engine_core.models.interface import LanguageModel
from engine_core.worker.input_batch import StepInputs

Rows = npt.NDArray[np.int64]
"""[R]: indices of rows of a step."""


@dataclass(frozen=True, slots=True)
class PendingTokens:
    """Rows whose token the host does not know yet."""

    rows: npt.NDArray[np.intp]
    """[A] of the step."""
    indices: npt.NDArray[np.intp]
    """[A]: where in ``token_ids`` their tokens are."""
    token_ids: torch.Tensor
    """int64, on the device: the tokens that the previous step samples."""


class Forward(Protocol):
    """Runs the model without its head."""

    def __call__(
        self, inputs: StepInputs, kv_caches: list[torch.Tensor], pending: PendingTokens | None, rows: Rows | None
    ) -> torch.Tensor:
        """Hidden states [R, H] of the ``rows`` of a step, or [T, H] of all; valid until the next call.

        Writes the keys and values of all rows to ``kv_caches``.
        """


class HostForward:
    """On CPU, where inputs are used as they are."""

    def __init__(self, model: LanguageModel) -> None:
        """Run ``model``."""
        self._model = model

    def __call__(
        self, inputs: StepInputs, kv_caches: list[torch.Tensor], pending: PendingTokens | None, rows: Rows | None
    ) -> torch.Tensor:
        """As ``Forward`` says."""
        if pending is not None:
            inputs.input_ids[torch.from_numpy(pending.rows)] = pending.token_ids[torch.from_numpy(pending.indices)]
        wanted = None if rows is None else torch.from_numpy(rows)
        return self._model.forward(inputs.input_ids, inputs.positions, kv_caches, inputs.metadata, wanted)


class TimedForward:
    """Wraps another ``Forward`` and measures how long it takes."""

    def __init__(self, forward: Forward, synchronize: Callable[[], None]) -> None:
        """``synchronize`` waits for what was launched on the device."""
        self._forward = forward
        self._synchronize = synchronize
        self.seconds = 0.0
        """Of the last call."""

    def __call__(
        self, inputs: StepInputs, kv_caches: list[torch.Tensor], pending: PendingTokens | None, rows: Rows | None
    ) -> torch.Tensor:
        """As ``Forward`` says."""
        self._synchronize()
        start = time.perf_counter()
        hidden = self._forward(inputs, kv_caches, pending, rows)
        self._synchronize()
        self.seconds = time.perf_counter() - start
        return hidden
