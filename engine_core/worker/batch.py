"""The persistent batch: what the worker remembers of each sequence, in arrays that are filled once and then advanced.

A sequence takes a slot (a row of every array) when a plan brings it and leaves it when a plan releases it. A step
reads the arrays by slot; nothing is rebuilt, and no step loops over tokens in Python.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from engine_core.attention.base import AttentionMetadata
from engine_core.step import NewSequence, StepPlan
from engine_core.worker.sampler import SamplingRows
from engine_core.worker.sampling_state import SamplingState

Index = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """The largest step and the longest sequence there can be."""

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    block_size: int

    @property
    def max_blocks_per_seq(self) -> int:
        """Blocks of the longest sequence."""
        return -(-self.max_model_len // self.block_size)


@dataclass(frozen=True, slots=True)
class StepInputs:
    """What the model and the sampler take in one step. T rows, S sequences, R of them sample."""

    input_ids: torch.Tensor
    """[T] int64"""
    positions: torch.Tensor
    """[T] int64"""
    metadata: AttentionMetadata
    slots: Index
    """[S]: the slot of each sequence of the plan, in order."""
    first_positions: npt.NDArray[np.int64]
    """[S]: the position of each sequence's first row."""
    query_starts: npt.NDArray[np.int32]
    """[S + 1], as in the metadata."""
    sampled: Index
    """[R]: places in the plan of the sequences that sample."""
    sampling_rows: SamplingRows
    """Aligned with ``sampled``."""


class PersistentBatch:
    """Slots of sequences and their state. N slots."""

    def __init__(self, limits: BatchLimits, vocab_size: int, eos_token_ids: Sequence[int]) -> None:
        """Arrays for the largest batch; their memory is taken by the system only as far as it is written."""
        slots, length = limits.max_num_seqs, limits.max_model_len
        self._limits = limits
        self._slot_of: dict[int, int] = {}
        self._free = list(range(slots - 1, -1, -1))
        self.sampling = SamplingState(slots, vocab_size, eos_token_ids)
        self.token_ids = np.zeros((slots, length + 1), np.int32)
        """[N, longest + 1]: prompt, then output; the token after the last position is never computed."""
        self._num_tokens = np.zeros(slots, np.int64)
        self._num_prompt_tokens = np.zeros(slots, np.int64)
        self._num_computed_tokens = np.zeros(slots, np.int64)
        self._block_table = np.zeros((slots, limits.max_blocks_per_seq), np.int32)
        self._num_blocks = [0] * slots
        self._arange = np.arange(limits.max_num_batched_tokens, dtype=np.int64)

    def __len__(self) -> int:
        """How many sequences there are."""
        return len(self._slot_of)

    @property
    def nbytes(self) -> int:
        """Memory of the arrays that grow with the longest sequence, when all of it has been written."""
        return self.token_ids.nbytes + self._block_table.nbytes

    def update(self, plan: StepPlan) -> None:
        """Release, then take in what ``plan`` says."""
        for seq_id in plan.released:
            slot = self._slot_of.pop(seq_id)
            self.sampling.remove(slot)
            self._free.append(slot)
        for sequence in plan.new:
            self._introduce(sequence)
        for seq_id, block_ids in plan.new_block_ids.items():
            self._append_blocks(self._slot_of[seq_id], block_ids)

    def _introduce(self, sequence: NewSequence) -> None:
        slot = self._free.pop()
        self._slot_of[sequence.seq_id] = slot
        known = len(sequence.token_ids)
        self.token_ids[slot, :known] = sequence.token_ids
        self._num_tokens[slot] = known
        self._num_prompt_tokens[slot] = sequence.num_prompt_tokens
        self._num_computed_tokens[slot] = sequence.num_computed_tokens
        self._num_blocks[slot] = 0
        self._append_blocks(slot, sequence.block_ids)
        self.sampling.add(
            slot, sequence.params, sequence.choice, self.token_ids[slot, :known], sequence.num_prompt_tokens
        )

    def _append_blocks(self, slot: int, block_ids: list[int]) -> None:
        start = self._num_blocks[slot]
        end = start + len(block_ids)
        self._block_table[slot, start:end] = block_ids
        self._num_blocks[slot] = end

    def prompt_token_ids(self, slot: int) -> npt.NDArray[np.int32]:
        """The prompt of the sequence in ``slot``."""
        return self.token_ids[slot, : self._num_prompt_tokens[slot]]

    def prepare(self, plan: StepPlan) -> StepInputs:
        """The inputs of the step; call after ``update``."""
        slots = np.array([self._slot_of[seq_id] for seq_id in plan.seq_ids], np.intp)
        num_tokens = np.array(plan.num_tokens, np.int64)
        first = self._num_computed_tokens[slots]
        lengths = first + num_tokens
        starts = np.zeros(len(slots) + 1, np.int32)
        np.cumsum(num_tokens, out=starts[1:])
        if int(starts[-1]) == len(slots):
            row_slots, positions = slots, first
        else:
            row_slots = np.repeat(slots, num_tokens)
            positions = self._arange[: starts[-1]] + np.repeat(first - starts[:-1], num_tokens)
        longest = int(lengths.max())
        block_size = self._limits.block_size
        tables = self._block_table[:, : -(-longest // block_size)]
        kv_slots = tables[row_slots, positions // block_size].astype(np.int64) * block_size + positions % block_size
        metadata = AttentionMetadata(
            query_starts=torch.from_numpy(starts),
            seq_lens=torch.from_numpy(lengths.astype(np.int32)),
            block_tables=torch.from_numpy(tables[slots]),
            slot_mapping=torch.from_numpy(kv_slots),
            max_query_len=int(num_tokens.max()),
            max_seq_len=longest,
        )
        sampled = np.flatnonzero(plan.samples)
        sampled_slots = slots[sampled]
        return StepInputs(
            input_ids=torch.from_numpy(self.token_ids[row_slots, positions].astype(np.int64)),
            positions=torch.from_numpy(positions),
            metadata=metadata,
            slots=slots,
            first_positions=first,
            query_starts=starts,
            sampled=sampled,
            sampling_rows=SamplingRows(
                sampled_slots, self.token_ids, self._num_tokens[sampled_slots], self._num_prompt_tokens[sampled_slots]
            ),
        )

    def advance(self, inputs: StepInputs, token_ids: npt.NDArray[np.int64]) -> None:
        """Note that the step was computed and drew ``token_ids`` [R]."""
        self._num_computed_tokens[inputs.slots] += np.diff(inputs.query_starts)
        drawn_for = inputs.sampling_rows.slots
        self.token_ids[drawn_for, self._num_tokens[drawn_for]] = token_ids
        self._num_tokens[drawn_for] += 1
        self.sampling.count(drawn_for, token_ids)
