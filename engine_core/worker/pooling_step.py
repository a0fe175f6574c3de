"""Runs the model over a step of sequences that are pooled: the forward pass, then their results in place of tokens.

The hidden states of a long input come over several steps. What is kept of them until the last one belongs to the
sequence (``PooledRows``), and goes with it: a preempted sequence begins anew.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from engine_core.async_copy import AsyncCopy
from engine_core.forward_context import Caches
from engine_core.models.language_model import LanguageModel
from engine_core.pooling.params import Pooled, PoolingParams
from engine_core.pooling.pooler import Pooler, Values
from engine_core.pooling.rows import PooledRows
from engine_core.step import Failure, NewSequence, StepPlan, StepResult
from engine_core.worker.forward import Forward
from engine_core.worker.input_batch import InputBatch, StepInputs
from engine_core.worker.model_runner import ModelRunner

_NO_TOKENS = np.empty(0, np.int64)
_CAUSE = "its numbers overflow there, or its weights are damaged (--dtype float32 holds larger numbers)"


@dataclass(slots=True)
class PooledSequence:
    """A sequence that is pooled, from the step that introduces it."""

    choice: int
    params: PoolingParams
    rows: PooledRows


@dataclass(frozen=True, slots=True)
class _Chunk:
    """What a step computes of a sequence."""

    sequence: PooledSequence
    seq_id: int
    first: int
    """The first token whose hidden state is taken."""
    taken: range
    """Their places among the rows that the step returns."""
    ends: bool


class PooledStep:
    """A ``ComputedStep`` that pools."""

    def __init__(
        self,
        plan: StepPlan,
        hidden: torch.Tensor,
        chunks: Sequence[_Chunk],
        pooler: Pooler,
        computing: Callable[[], AbstractContextManager[None]],
    ) -> None:
        """Start copying ``hidden`` to the host: the rows of all ``chunks``, and perhaps others."""
        self.sampled: npt.NDArray[np.int64] | None = _NO_TOKENS
        self._plan = plan
        self._chunks = chunks
        self._pooler = pooler
        self._computing = computing
        self._copy = AsyncCopy([hidden.float()])
        self._result: StepResult | None = None

    def result(self) -> StepResult:
        """Wait until the step is computed, and pool. Results must be asked for in the order of the steps."""
        if self._result is None:
            [hidden] = self._copy.wait()
            with self._computing(), torch.inference_mode():
                self._result = self._pooled(hidden.numpy())
        return self._result

    def _pooled(self, hidden: Values) -> StepResult:
        ended = dict[PoolingParams, list[_Chunk]]()
        for chunk in self._chunks:
            chunk.sequence.rows.add(hidden[chunk.taken.start : chunk.taken.stop], chunk.first)
            if chunk.ends:
                ended.setdefault(chunk.sequence.params, []).append(chunk)
        pooled, failed = dict[int, Pooled](), dict[int, Failure]()
        for params, chunks in ended.items():
            parts = [chunk.sequence.rows.pooled() for chunk in chunks]
            values = self._pooler.results(np.concatenate(parts), params)
            ends = np.cumsum([len(part) for part in parts]).tolist()
            for chunk, part, end in zip(chunks, parts, ends, strict=True):
                own = values[end - len(part) : end]
                if np.isfinite(own).all():
                    pooled[chunk.seq_id] = Pooled(own.astype("<f4").tobytes(), len(own))
                else:
                    failed[chunk.seq_id] = _failure(chunk.sequence)
        return StepResult(self._plan.step_id, [[] for _ in self._plan.seq_ids], pooled=pooled, failed=failed)


def _failure(sequence: PooledSequence) -> Failure:
    field = f"inputs[{sequence.choice}]"
    problem = f"the model's result for {field} has numbers that are none (NaN or infinite): {_CAUSE}"
    return Failure(problem, field)


class PoolingRunner(ModelRunner):
    """Computes steps of sequences that are pooled."""

    def __init__(
        self,
        model: LanguageModel,
        batch: InputBatch,
        forward: Forward,
        pools: bool,
        computing: Callable[[], AbstractContextManager[None]],
    ) -> None:
        """As ``ModelRunner``. ``pools``: on one rank of the last stage; others only ``follow``. ``computing``: the
        platform's, in which results may be asked for.
        """
        super().__init__(model, batch, forward, None)
        self._pools = pools
        self._computing = computing
        self._sequences: dict[int, PooledSequence] = {}
        """By seq_id, in the last stage."""

    @property
    def samples(self) -> bool:
        """Whether steps are launched; else they are followed."""
        return self._pools

    @torch.inference_mode()
    def launch(self, plan: StepPlan, caches: Caches) -> PooledStep:
        """Begin to compute a step, as ``ModelRunner.launch``."""
        hidden, chunks = self._compute_rows(plan, caches)
        assert self.model.pooler is not None
        return PooledStep(plan, hidden, chunks, self.model.pooler, self._computing)

    @torch.inference_mode()
    def follow(self, plan: StepPlan, caches: Caches) -> None:
        """Compute this rank's part of a step: as many rows as the rank that pools, since ranks of a stage gather."""
        self._compute_rows(plan, caches)

    def commit(self, step_id: int, sampled: npt.NDArray[np.int64]) -> None:
        """Nothing: no token was sampled."""

    def update(self, plan: StepPlan) -> None:
        super().update(plan)
        for seq_id in plan.released:
            self._sequences.pop(seq_id, None)
        if (pooler := self.model.pooler) is not None:
            self._sequences |= {each.seq_id: _begun(each, pooler) for each in plan.new}

    def _compute_rows(self, plan: StepPlan, caches: Caches) -> tuple[torch.Tensor, list[_Chunk]]:
        """Hidden states of the rows that are pooled (of an arbitrary row if there are none), and whose they are."""
        inputs = self._prepare(plan)
        rows, chunks = None, list[_Chunk]()
        if self.model.pooler is not None:
            rows, chunks = self._wanted(plan, inputs)
        hidden = self.run_model(inputs, caches, None, rows)
        self.batch.advance(inputs)
        return hidden, chunks

    def _wanted(self, plan: StepPlan, inputs: StepInputs) -> tuple[npt.NDArray[np.int64] | None, list[_Chunk]]:
        """The rows of the step that are pooled; None: all are."""
        rows, chunks, count = list[range](), list[_Chunk](), 0
        firsts, ends, starts = inputs.first_positions.tolist(), inputs.lengths.tolist(), inputs.query_starts.tolist()
        places = zip(plan.seq_ids, firsts, ends, starts, plan.samples, strict=False)
        for seq_id, first, end, start, samples in places:
            sequence = self._sequences[seq_id]
            wanted = sequence.rows.wanted(first, end)
            rows.append(range(wanted.start - first + start, wanted.stop - first + start))
            chunks.append(_Chunk(sequence, seq_id, wanted.start, range(count, count + len(wanted)), samples))
            count += len(wanted)
        if count == plan.total_tokens:
            return None, chunks
        if not count:
            return np.zeros(1, np.int64), chunks
        return np.concatenate([np.arange(each.start, each.stop) for each in rows]), chunks


def _begun(new: NewSequence, pooler: Pooler) -> PooledSequence:
    assert new.pooling is not None
    return PooledSequence(new.choice, new.pooling, pooler.rows(new.pooling, new.num_prompt_tokens))
