"""Computation of hidden states and logits: the interface between a step's inputs and the model's device."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from engine_core.distributed.collectives import StageLinks
from engine_core.forward_context import Caches, ForwardContext, IntermediateTensors, Taps
from engine_core.kernels.capture import BufferPool, outputs_in
from engine_core.models.language_model import LanguageModel, StagedModel
from engine_core.ops.base import Greatest
from engine_core.worker.input_batch import StepInputs

Rows = npt.NDArray[np.int64]
"""[R]: indices of rows of a step."""


@dataclass(frozen=True, slots=True)
class PendingTokens:
    """Rows of a step whose tokens the host does not know yet."""

    rows: npt.NDArray[np.intp]
    """[A]: of the step."""
    indices: npt.NDArray[np.intp]
    """[A]: of their tokens in ``token_ids``."""
    token_ids: torch.Tensor
    """int64, on the device: the tokens that the previous step samples."""


class Forward(Protocol):
    """Runs the model: its layers for a step, then its head for some rows."""

    taps: Taps | None
    """Filled by each step; None: there is no drafter that asks for them."""

    def __call__(
        self, inputs: StepInputs, caches: Caches, pending: PendingTokens | None, rows: Rows | None
    ) -> torch.Tensor:
        """Hidden states [R, H] of ``rows`` of a step, or [T, H] of all; valid until the next call.

        Writes keys, values and states of all rows to ``caches``; a stage before the last sends all rows to the next.
        """

    @property
    def masks_argmax(self) -> bool:
        """As ``LanguageModel.masks_argmax``."""

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits [R, V] float32 of hidden states [R, H]."""

    def greatest(self, hidden: torch.Tensor, allowed: torch.Tensor | None = None) -> Greatest:
        """As ``LanguageModel.greatest``."""


class HostForward:
    """Runs a model on CPU, where inputs need no copy.

    Logits have their own buffer, reused as soon as the last ones are freed. In the C library's heap, each small result
    allocated beside them would leave a hole of their size that the next ones do not fit.
    """

    def __init__(self, model: LanguageModel, logits_rows: int, links: StageLinks | None = None) -> None:
        """The buffer holds logits of up to ``logits_rows`` rows at a time; larger logits are allocated elsewhere.

        ``links``: to the neighbours of a model that is one of several stages.
        """
        self._model = model
        self._stage: tuple[StagedModel, StageLinks] | None = None
        if links is not None:
            assert isinstance(model, StagedModel)  # no other has links
            self._stage = model, links
        self._logits = BufferPool(logits_rows)
        self.taps: Taps | None = None

    def __call__(
        self, inputs: StepInputs, caches: Caches, pending: PendingTokens | None, rows: Rows | None
    ) -> torch.Tensor:
        if pending is not None:
            inputs.input_ids[torch.from_numpy(pending.rows)] = pending.token_ids[torch.from_numpy(pending.indices)]
        wanted = None if rows is None else torch.from_numpy(rows)
        context = ForwardContext(
            caches.kv,
            inputs.metadata,
            wanted,
            states=caches.states,
            state_metadata=inputs.state_metadata,
            media=inputs.media,
            rotary_positions=inputs.rotary_positions,
            token_types=inputs.token_types,
            taps=self.taps,
        )
        if self._stage is None:
            return self._model.forward(inputs.input_ids, inputs.positions, context)
        return _forward_stage(*self._stage, inputs, context)

    @property
    def masks_argmax(self) -> bool:
        return self._model.masks_argmax

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        with outputs_in(self._logits):
            return self._model.compute_logits(hidden)

    def greatest(self, hidden: torch.Tensor, allowed: torch.Tensor | None = None) -> Greatest:
        with outputs_in(self._logits):
            return self._model.greatest(hidden, allowed)


def _forward_stage(model: StagedModel, links: StageLinks, inputs: StepInputs, context: ForwardContext) -> torch.Tensor:
    """Receive before the layers, send after them."""
    if model.is_first_stage:
        given = model.first_input(inputs.input_ids, inputs.positions, context)
    else:
        shapes = model.received_shapes(len(inputs.input_ids))
        given = IntermediateTensors(*(links.receive(shape, model.dtype) for shape in shapes))
    hidden = model.forward_stage(given, inputs.positions, context)
    if not model.has_head:
        for tensor in model.for_next_stage(given, hidden).tensors():
            links.send(tensor)
    return hidden


class TimedForward:
    """Wraps another ``Forward`` and measures how long it takes."""

    def __init__(self, forward: Forward, synchronize: Callable[[], None]) -> None:
        """``synchronize`` waits for the device."""
        self._forward = forward
        self._synchronize = synchronize
        self.logits, self.greatest = forward.logits, forward.greatest
        self.taps: Taps | None = None  # steps are timed without a drafter
        self.masks_argmax = forward.masks_argmax
        self.seconds = 0.0
        """Seconds of the last call."""

    def __call__(
        self, inputs: StepInputs, caches: Caches, pending: PendingTokens | None, rows: Rows | None
    ) -> torch.Tensor:
        self._synchronize()
        start = time.perf_counter()
        hidden = self._forward(inputs, caches, pending, rows)
        self._synchronize()
        self.seconds = time.perf_counter() - start
        return hidden
