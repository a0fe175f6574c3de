"""The persistent batch: what the worker remembers of each sequence, in arrays that are filled once and then advanced.

A sequence takes a slot (a row of every array) when a plan brings it and leaves it when a plan releases it. A step
reads the arrays by slot; nothing is rebuilt, and no step loops over tokens in Python.

``advance`` notes that a step is on its way, ``settle`` what it drew. A further step may be prepared between the two:
``awaited`` says which of its rows take a token that only the device knows by then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from engine_core.attention.base import AttentionMetadata
from engine_core.sampling.metadata import MIN_TOKENS, PASSING, PROMPT_LOGPROBS, SamplingMetadata
from engine_core.sampling.sampler import SamplingRows
from engine_core.step import NewSequence, StepPlan

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

    @property
    def max_rows(self) -> int:
        """Of a step; as many sequences as there may be can have fewer than ``max_num_batched_tokens``."""
        return min(self.max_num_batched_tokens, self.max_num_seqs * max(1, self.max_model_len - 1))


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
    lengths: npt.NDArray[np.int64]
    """[S]: tokens of each sequence that are computed after the step."""
    query_starts: npt.NDArray[np.int32]
    """[S + 1], as in the metadata."""
    sampled: Index
    """[R]: places in the plan of the sequences that sample."""
    sampling_rows: SamplingRows
    """Aligned with ``sampled``."""
    introductions: int
    """How many sequences had been introduced by then."""

    @property
    def sampled_rows(self) -> npt.NDArray[np.int64]:
        """[R]: the rows that are sampled, each the last one of its sequence."""
        return self.query_starts[self.sampled + 1].astype(np.int64) - 1


class InputBatch:
    """Slots of sequences and their state. N slots."""

    def __init__(self, limits: BatchLimits, vocab_size: int, eos_token_ids: Sequence[int]) -> None:
        """Arrays for the largest batch; their memory is taken by the system only as far as it is written."""
        slots, length = limits.max_num_seqs, limits.max_model_len
        self._limits = limits
        self._slot_of: dict[int, int] = {}
        self._free = list(range(slots - 1, -1, -1))
        self.sampling = SamplingMetadata(slots, vocab_size, eos_token_ids)
        self.token_ids = np.zeros((slots, length + 1), np.int32)
        """[N, longest + 1]: prompt, then output; the token after the last position is never computed."""
        self._num_tokens = np.zeros(slots, np.int64)
        """Tokens that a step on its way draws included."""
        self._num_prompt_tokens = np.zeros(slots, np.int64)
        self._num_computed_tokens = np.zeros(slots, np.int64)
        self._block_table = np.zeros((slots, limits.max_blocks_per_seq), np.int32)
        self._num_blocks = [0] * slots
        self._introductions = 0
        self._introduced_as = np.zeros(slots, np.int64)
        """Number of the introduction of each slot's sequence."""
        self._counting = np.arange(max(slots, limits.max_num_batched_tokens) + 1)
        self._starts_of_single_rows = np.arange(slots + 1, dtype=np.int32)
        self._seq_ids: list[int] = []
        self._slots = np.empty(0, np.intp)
        """Slots of ``_seq_ids``, which are the last step's: mostly the next one's too."""

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
            self._seq_ids = []
        for sequence in plan.new:
            self._introduce(sequence)
        for seq_id, block_ids in plan.new_block_ids.items():
            self._append_blocks(self._slot_of[seq_id], block_ids)

    def _introduce(self, sequence: NewSequence) -> None:
        slot = self._free.pop()
        self._slot_of[sequence.seq_id] = slot
        self._introductions += 1
        self._introduced_as[slot] = self._introductions
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
        slots = self._slots_of(plan.seq_ids)
        count, total = len(slots), plan.total_tokens
        first = self._num_computed_tokens.take(slots)
        if total == count:
            rows_of, positions, starts = self._counting[:count], first, self._starts_of_single_rows[: count + 1]
            row_slots, lengths = slots, first + 1
        else:
            num_tokens = np.array(plan.num_tokens)
            rows_of = np.repeat(self._counting[:count], num_tokens)
            starts = np.zeros(count + 1, np.int32)
            np.cumsum(num_tokens, out=starts[1:])
            positions = self._counting[:total] + (first - starts[:-1]).take(rows_of)
            row_slots, lengths = slots.take(rows_of), first + num_tokens
        longest, block_size = int(lengths.max()), self._limits.block_size
        tables = self._block_table[:, : -(-longest // block_size)].take(slots, axis=0)
        blocks, offsets = np.divmod(positions, block_size)
        metadata = AttentionMetadata(
            query_starts=torch.from_numpy(starts),
            seq_lens=torch.from_numpy(lengths.astype(np.int32)),
            block_tables=torch.from_numpy(tables),
            slot_mapping=torch.from_numpy(tables[rows_of, blocks] * np.int64(block_size) + offsets),
            max_query_len=1 if total == count else max(plan.num_tokens),
            max_seq_len=longest,
        )
        sampled = self._counting[:count] if all(plan.samples) else np.flatnonzero(plan.samples)
        sampled_slots = slots if len(sampled) == count else slots[sampled]
        return StepInputs(
            input_ids=torch.from_numpy(self.token_ids[row_slots, positions].astype(np.int64)),
            positions=torch.from_numpy(positions),
            metadata=metadata,
            slots=slots,
            first_positions=first,
            lengths=lengths,
            query_starts=starts,
            sampled=sampled,
            sampling_rows=SamplingRows(
                sampled_slots,
                self.token_ids,
                self._num_tokens.take(sampled_slots),
                self._num_prompt_tokens.take(sampled_slots),
            ),
            introductions=self._introductions,
        )

    def _slots_of(self, seq_ids: list[int]) -> Index:
        if seq_ids != self._seq_ids:
            self._seq_ids = seq_ids
            self._slots = np.array([self._slot_of[seq_id] for seq_id in seq_ids], np.intp)
        return self._slots

    def advance(self, inputs: StepInputs) -> None:
        """Note that the step is on its way."""
        self._num_computed_tokens[inputs.slots] = inputs.lengths
        rows = inputs.sampling_rows
        self._num_tokens[rows.slots] = rows.num_tokens + 1
        if self.sampling.asked & PASSING:
            self._drop_what_is_over(inputs)

    def _drop_what_is_over(self, inputs: StepInputs) -> None:
        """Of sequences whose prompt is computed, or whose output has its minimum length, less is asked from now on."""
        slots = inputs.slots
        prompts = self._num_prompt_tokens[slots]
        self.sampling.drop(slots[inputs.lengths >= prompts - 1], PROMPT_LOGPROBS)
        outputs = self._num_tokens[slots] - prompts
        self.sampling.drop(slots[outputs >= self.sampling.min_tokens[slots]], MIN_TOKENS)

    def awaited(self, inputs: StepInputs, unsettled: StepInputs) -> tuple[Index, Index]:
        """Rows of ``inputs`` that take what a step before it draws, which is not settled, and their places in that."""
        drawn = unsettled.sampling_rows.slots
        place_of = np.full(self._limits.max_num_seqs, -1, np.intp)
        place_of[drawn] = self._counting[: len(drawn)]
        place_of[self._introduced_as > unsettled.introductions] = -1
        places = place_of[inputs.sampling_rows.slots]
        taken = np.flatnonzero(places >= 0)
        # A sequence that samples computes its newest token in its last row.
        return inputs.sampled_rows[taken], places[taken]

    def settle(self, inputs: StepInputs, token_ids: npt.NDArray[np.int64]) -> None:
        """Note that the step drew ``token_ids`` [R]; those of slots that others have taken since belong to nobody."""
        slots, positions = inputs.sampling_rows.slots, inputs.sampling_rows.num_tokens
        if self._introductions > inputs.introductions:
            kept = np.flatnonzero(self._introduced_as[slots] <= inputs.introductions)
            slots, positions, token_ids = slots[kept], positions[kept], token_ids[kept]
        self.token_ids[slots, positions] = token_ids
        self.sampling.count(slots, token_ids)
