"""The persistent batch: the worker's state of each sequence, in arrays that are filled once and then advanced.

A sequence takes a slot (a row of every array) when a plan introduces it and leaves it when a plan releases it. A step
reads the arrays by slot; nothing is rebuilt, and no step loops over tokens in Python.

``advance`` records that a step is in flight, ``commit`` its sampled tokens. Another step may be prepared between the
two: ``pending_tokens`` finds its rows whose tokens only the device knows. A sequence with drafts is not part of such a
step, because only ``commit`` finds how many drafts are accepted. If another rank samples, ``commit`` may come several
steps later: until then no sampled sequence is part of a step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from engine_core.attention.base import AttentionMetadata
from engine_core.forward_context import MediaRows
from engine_core.kv_cache_interface import KVCacheGroup, blocks_of_longest
from engine_core.media import Placeholder, VisionShape
from engine_core.pooling.facts import PoolingFacts
from engine_core.request import SamplingParams
from engine_core.sampling.grammar_mask import Following
from engine_core.sampling.logits_processors import ProcessorSetup, SamplingRows
from engine_core.sampling.logprobs import report_bytes
from engine_core.sampling.metadata import TEMPORARY, SamplingMetadata
from engine_core.states.base import StateMetadata
from engine_core.step import Fork, NewSequence, StepPlan
from engine_core.structured_output.compiler import GrammarCompiler
from engine_core.validation import MAX_LOGPROBS
from engine_core.worker.adapters import NO_ADAPTER, AdapterRows
from engine_core.worker.media_inputs import NO_MEDIA, BatchMedia, MediaSpan
from engine_core.worker.state_inputs import state_metadata

Index = npt.NDArray[np.intp]
_WARM_UP_PROMPT = 64


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """Limits of steps and sequences."""

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    block_size: int
    kv_cache_groups: tuple[KVCacheGroup, ...] = (KVCacheGroup((0,)),)
    min_batched_tokens: int = 1
    """The least that ``max_num_batched_tokens`` could be lowered to with the other options."""
    keeps_states: bool = False
    """Whether any layer keeps a state."""
    num_speculative_tokens: int = 0
    """The most drafts that a step proposes for a sequence's next step."""
    attends_both_ways: bool = False
    """Whether a token sees those after it: then nothing is read from the cache after the step that wrote it."""
    concurrent_steps: int = 1
    """The most steps in flight."""
    vision: VisionShape | None = None
    """None: no sequence has a picture."""
    encoder_step_tokens: int = 0
    """The most tokens of pictures that a step encodes."""
    encoder_cache_tokens: int = 0
    """The most tokens of pictures whose embeddings are kept."""
    pooling: PoolingFacts | None = None
    """None: tokens are sampled."""
    max_lora_rank: int = 0
    """The largest rank of an adapter; 0: no sequence has one."""

    @property
    def max_blocks_per_table(self) -> int:
        """Entries of the longest sequence's block table."""
        return -(-self.max_model_len // self.block_size)

    @property
    def max_blocks_per_seq(self) -> int:
        """The most blocks that the longest sequence has at a time, in all of its tables."""
        return blocks_of_longest(self.kv_cache_groups, self.max_model_len, self.max_num_batched_tokens, self.block_size)

    @property
    def most_blocks(self) -> int:
        """The most blocks that all sequences together have at a time."""
        if not self.attends_both_ways:
            return self.max_num_seqs * self.max_blocks_per_seq
        rows, seqs = self.max_num_batched_tokens, min(self.max_num_seqs, self.max_num_batched_tokens)
        # The last block of each sequence may be almost empty.
        return self.concurrent_steps * (-(-rows // self.block_size) + seqs)

    @property
    def max_rows(self) -> int:
        """The most rows of a step: fewer than ``max_num_batched_tokens`` if all sequences together have fewer."""
        return min(self.max_num_batched_tokens, self.max_num_seqs * self.longest_prompt)

    @property
    def longest_prompt(self) -> int:
        """In tokens; one that is sampled needs a place behind it."""
        return self.max_model_len if self.pooling is not None else max(1, self.max_model_len - 1)

    def warm_up_tokens(self, vocab_size: int) -> list[int]:
        """The warm-up's prompt."""
        longest = min(_WARM_UP_PROMPT, self.max_num_batched_tokens, self.longest_prompt)
        return [position % vocab_size for position in range(longest)]


@dataclass(frozen=True, slots=True)
class StepInputs:
    """Inputs of the model and sampler in one step: T rows, of which R sample, and S sequences."""

    input_ids: torch.Tensor
    """[T] int64"""
    positions: torch.Tensor
    """[T] int64: places in sequences; where rotations count pictures by their sides, the positions that follow."""
    metadata: list[AttentionMetadata]
    """By KV cache group; groups differ only in block tables and cache slots."""
    state_metadata: StateMetadata | None
    """None: no layer keeps a state."""
    slots: Index
    """[S]: the slot of each sequence of the plan, in order."""
    first_positions: npt.NDArray[np.int64]
    """[S]: the position of each sequence's first row."""
    lengths: npt.NDArray[np.int64]
    """[S]: computed tokens of each sequence after the step."""
    query_starts: npt.NDArray[np.int32]
    """[S + 1], as in the metadata."""
    num_drafts: npt.NDArray[np.int64] | None
    """[S]: drafts of each sequence, its last rows; None if no sequence has any."""
    sampled: Index
    """[R]: places in the plan of the sampled rows' sequences, ascending."""
    sampled_rows: npt.NDArray[np.int64]
    """[R]: the last row of each sequence that samples, after as many rows as it has drafts."""
    sampling_rows: SamplingRows
    """Aligned with ``sampled``."""
    introductions: int
    """Number of sequences introduced before the step was prepared."""
    spans: tuple[MediaSpan, ...] = ()
    """The rows that lie in pictures."""
    rotary_positions: torch.Tensor | None = None
    """As in ``ForwardContext``."""
    media: MediaRows | None = None
    """What takes the place of the rows in ``spans``, once it is gathered."""
    token_types: torch.Tensor | None = None
    """As in ``ForwardContext``."""
    adapters: AdapterRows | None = None
    """None: no row has an adapter."""

    @property
    def is_of_text(self) -> bool:
        """Whether no row needs more than its token and its position."""
        return not self.spans and self.rotary_positions is None and self.token_types is None


@dataclass(frozen=True, slots=True)
class _ForkedSequence:
    """A beam that goes on from another one; as ``NewSequence``."""

    seq_id: int
    token_ids: npt.NDArray[np.int32]
    num_prompt_tokens: int
    num_computed_tokens: int
    block_ids: list[list[int]]
    params: SamplingParams
    media: tuple[Placeholder, ...]
    adapter_id: int | None
    choice: int = 0
    """Only noise depends on it, and beams have none."""


class InputBatch:
    """Slots of sequences and their state. N slots."""

    def __init__(
        self,
        limits: BatchLimits,
        vocab_size: int,
        eos_token_ids: Sequence[int],
        grammars: GrammarCompiler | None = None,
    ) -> None:
        """Arrays for the largest batch; the system allocates their memory only as it is written.

        ``grammars``: on the rank that samples; without them no grammar is followed.
        """
        slots, length = limits.max_num_seqs, limits.max_model_len
        self._limits = limits
        self._slot_of: dict[int, int] = {}
        self._free = list(range(slots - 1, -1, -1))
        self.sampling = SamplingMetadata(ProcessorSetup(slots, vocab_size, tuple(eos_token_ids), grammars))
        self.token_ids = np.zeros((slots, length + 1), np.int32)
        """[N, longest + 1]: prompt, then output; the token after the last position is never computed."""
        self._num_tokens = np.zeros(slots, np.int64)
        """Includes the token that a step in flight samples."""
        self._num_prompt_tokens = np.zeros(slots, np.int64)
        self._num_computed_tokens = np.zeros(slots, np.int64)
        groups = len(limits.kv_cache_groups)
        self._block_tables = np.zeros((groups, slots, limits.max_blocks_per_table), np.int32)
        self._num_blocks = [[0] * slots for _ in range(groups)]
        self._of_beams: dict[int, tuple[SamplingParams, tuple[Placeholder, ...], int | None]] = {}
        """Parameters, pictures and adapters of the beams, by slot, for their forks."""
        self._adapter_ids = np.full(slots, NO_ADAPTER)
        self._with_adapters: set[int] = set()
        """Slots whose sequences have adapters."""
        self._introductions = 0
        self._introduced_as = np.zeros(slots, np.int64)
        """Number of the introduction of each slot's sequence."""
        self._counting = np.arange(max(slots, limits.max_num_batched_tokens) + 1)
        self._no_drafts = np.zeros(slots, np.int64)
        self._starts_of_single_rows = np.arange(slots + 1, dtype=np.int32)
        self._media = None if limits.vision is None else BatchMedia(slots, limits.vision)
        self._second_texts = np.zeros(slots, np.int64)
        """The first token of type 1; behind all tokens if there is none. Only for encoders."""
        self._seq_ids: list[int] = []
        self._slots = np.empty(0, np.intp)
        """Slots of ``_seq_ids``, the last step's sequences, which are mostly the next step's, too."""

    def __len__(self) -> int:
        """Number of sequences."""
        return len(self._slot_of)

    @property
    def nbytes(self) -> int:
        """Bytes that grow with the longest sequence or the largest step, once all are written."""
        of_tokens = self.sampling.most_bytes(self._limits.max_model_len)
        reports = report_bytes(self._limits.max_rows, MAX_LOGPROBS)
        return self.token_ids.nbytes + self._block_tables.nbytes + of_tokens + reports

    def update(self, plan: StepPlan) -> None:
        """Release sequences, fork others, then introduce new ones and append blocks, as ``plan`` says."""
        forked = [self._forked(fork) for fork in plan.forks if fork.parent != fork.seq_id]
        for seq_id in plan.released:
            slot = self._slot_of.pop(seq_id)
            self.sampling.remove(slot)
            self._of_beams.pop(slot, None)
            self._with_adapters.discard(slot)
            self._free.append(slot)
            self._seq_ids = []
        for fork in plan.forks:
            if fork.parent == fork.seq_id:
                slot = self._slot_of[fork.seq_id]
                self.token_ids[slot, self._num_tokens[slot] - 1] = fork.token_id
        introduced: list[NewSequence | _ForkedSequence] = [*forked, *plan.new]
        for sequence in introduced:
            self._introduce(sequence)
        for seq_id, block_ids in plan.new_block_ids.items():
            self._append_blocks(self._slot_of[seq_id], block_ids)

    def _forked(self, fork: Fork) -> _ForkedSequence:
        slot = self._slot_of[fork.parent]
        token_ids = self.known_token_ids(slot).copy()
        token_ids[-1] = fork.token_id
        shared = self._block_tables[:, slot, : fork.num_blocks].tolist()
        return _ForkedSequence(
            fork.seq_id,
            token_ids,
            int(self._num_prompt_tokens[slot]),
            int(self._num_computed_tokens[slot]),
            [[*table, *own] for table, own in zip(shared, fork.block_ids, strict=True)],
            *self._of_beams[slot],
        )

    def _introduce(self, sequence: NewSequence | _ForkedSequence) -> None:
        slot = self._free.pop()
        self._slot_of[sequence.seq_id] = slot
        self._introductions += 1
        self._introduced_as[slot] = self._introductions
        known = len(sequence.token_ids)
        self.token_ids[slot, :known] = sequence.token_ids
        self._num_tokens[slot] = known
        self._num_prompt_tokens[slot] = sequence.num_prompt_tokens
        self._num_computed_tokens[slot] = sequence.num_computed_tokens
        for num_blocks in self._num_blocks:
            num_blocks[slot] = 0
        self._append_blocks(slot, sequence.block_ids)
        if self._media is not None:
            self._media.set(slot, sequence.media)
        self._adapter_ids[slot] = NO_ADAPTER if sequence.adapter_id is None else sequence.adapter_id
        if sequence.adapter_id is not None:
            self._with_adapters.add(slot)
        if isinstance(sequence, NewSequence):
            self._second_texts[slot] = known if sequence.second_text is None else sequence.second_text
            if sequence.pooling is not None:
                return  # nothing is sampled
        self.sampling.add(slot, sequence.params, sequence.choice, known - sequence.num_prompt_tokens)
        if sequence.params.beam_search is not None:
            self._of_beams[slot] = sequence.params, sequence.media, sequence.adapter_id

    def _append_blocks(self, slot: int, block_ids: list[list[int]]) -> None:
        for group, added in enumerate(block_ids):
            start = self._num_blocks[group][slot]
            end = start + len(added)
            self._block_tables[group, slot, start:end] = added
            self._num_blocks[group][slot] = end

    def slot_of(self, seq_id: int) -> int | None:
        """None: the sequence is not here."""
        return self._slot_of.get(seq_id)

    def known_token_ids(self, slot: int) -> npt.NDArray[np.int32]:
        """Prompt and output of the sequence in ``slot``, with the token that a step in flight samples, if any."""
        return self.token_ids[slot, : self._num_tokens[slot]]

    def prompt_token_ids(self, slot: int) -> npt.NDArray[np.int32]:
        """The prompt of the sequence in ``slot``."""
        return self.token_ids[slot, : self._num_prompt_tokens[slot]]

    def rows_behind(self, slots: Index, num_drafts: npt.NDArray[np.int64]) -> SamplingRows:
        """Rows [R] that sample behind the known tokens of ``slots`` and ``num_drafts`` [R] drafts, written there."""
        return SamplingRows(
            slots, self.token_ids, self._num_tokens[slots] + num_drafts, self._num_prompt_tokens[slots], num_drafts
        )

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
        media = NO_MEDIA if self._media is None else self._media.of_step(slots, first, lengths, starts, positions)
        longest, block_size = int(lengths.max()), self._limits.block_size
        tables = [every[:, : -(-longest // block_size)].take(slots, axis=0) for every in self._block_tables]
        blocks, offsets = np.divmod(positions, block_size)
        query_starts, seq_lens = torch.from_numpy(starts), torch.from_numpy(lengths.astype(np.int32))
        max_query_len = 1 if total == count else max(plan.num_tokens)
        visible_until = None if media.visible_until is None else torch.from_numpy(media.visible_until)
        metadata = [
            AttentionMetadata(
                query_starts,
                seq_lens,
                block_tables=torch.from_numpy(table),
                slot_mapping=torch.from_numpy(table[rows_of, blocks] * np.int64(block_size) + offsets),
                max_query_len=max_query_len,
                max_seq_len=longest,
                group=group,
                visible_until=visible_until,
            )
            for group, table in enumerate(tables)
        ]
        drafts = self._write_drafts(plan, slots) if plan.draft_token_ids else None
        sampled = self._counting[:count] if all(plan.samples) else np.flatnonzero(plan.samples)
        if drafts is None:
            sampled_rows, behind = starts[sampled + 1].astype(np.int64) - 1, self._no_drafts[: len(sampled)]
        else:
            counts = 1 + drafts[sampled]
            behind = self._counting[: counts.sum()] - np.repeat(counts.cumsum() - counts, counts)
            sampled_rows = np.repeat(starts[sampled + 1] - counts, counts) + behind
            sampled = np.repeat(sampled, counts)
        sampled_slots = slots if len(sampled) == count and drafts is None else slots[sampled]
        return StepInputs(
            input_ids=torch.from_numpy(self.token_ids[row_slots, positions].astype(np.int64)),
            positions=torch.from_numpy(positions if media.positions is None else media.positions),
            metadata=metadata,
            state_metadata=None if plan.states is None else state_metadata(plan.states, plan.seq_ids, starts),
            slots=slots,
            first_positions=first,
            lengths=lengths,
            query_starts=starts,
            num_drafts=drafts,
            sampled=sampled,
            sampled_rows=sampled_rows,
            sampling_rows=SamplingRows(
                sampled_slots,
                self.token_ids,
                self._num_tokens.take(sampled_slots) + behind,
                self._num_prompt_tokens.take(sampled_slots),
                behind,
            ),
            introductions=self._introductions,
            spans=media.spans,
            rotary_positions=None if media.rotary_positions is None else torch.from_numpy(media.rotary_positions),
            token_types=self._token_types(row_slots, positions) if self._limits.attends_both_ways else None,
            adapters=AdapterRows.of(self._adapter_ids.take(row_slots)) if self._with_adapters else None,
        )

    def _token_types(self, row_slots: Index, positions: npt.NDArray[np.int64]) -> torch.Tensor:
        """[T] int64 for rows at ``positions`` [T] of the sequences in ``row_slots`` [T]."""
        return torch.from_numpy((positions >= self._second_texts.take(row_slots)).astype(np.int64))

    def _write_drafts(self, plan: StepPlan, slots: Index) -> npt.NDArray[np.int64]:
        """Write drafts after the known tokens; return the number of each sequence's drafts [S]."""
        counts = np.zeros(len(slots), np.int64)
        for place, (seq_id, slot) in enumerate(zip(plan.seq_ids, slots.tolist(), strict=True)):
            drafts = plan.draft_token_ids.get(seq_id, ())
            known = self._num_tokens[slot]
            self.token_ids[slot, known : known + len(drafts)] = drafts
            counts[place] = len(drafts)
        return counts

    def _slots_of(self, seq_ids: list[int]) -> Index:
        if seq_ids != self._seq_ids:
            self._seq_ids = seq_ids
            self._slots = np.array([self._slot_of[seq_id] for seq_id in seq_ids], np.intp)
        return self._slots

    def advance(self, inputs: StepInputs) -> None:
        """Record that the step is in flight. No draft counts as accepted yet, but one sampled token does."""
        rows, computed = inputs.sampling_rows, inputs.lengths
        slots, num_tokens = rows.slots, rows.num_tokens
        if inputs.num_drafts is not None:
            computed = computed - inputs.num_drafts
            first = rows.num_drafts == 0
            slots, num_tokens = slots[first], num_tokens[first]
        self._num_computed_tokens[inputs.slots] = computed
        self._num_tokens[slots] = num_tokens + 1
        if self.sampling.asked & TEMPORARY:
            prompts = self._num_prompt_tokens[inputs.slots]
            self.sampling.prompts_computed(inputs.slots[computed >= prompts - 1])
            self.sampling.expire(inputs.slots, self._num_tokens[inputs.slots] - prompts)

    def pending_tokens(self, inputs: StepInputs, previous: StepInputs) -> tuple[Index, Index]:
        """Rows of ``inputs`` whose tokens the uncommitted ``previous`` samples, and their indices in its tokens.

        Sequences that had drafts in ``previous`` are not in ``inputs``.
        """
        sampled = previous.sampling_rows.slots
        index_of = np.full(self._limits.max_num_seqs, -1, np.intp)
        index_of[sampled] = self._counting[: len(sampled)]
        index_of[self._introduced_as > previous.introductions] = -1
        indices = index_of[inputs.sampling_rows.slots]
        taken = np.flatnonzero(indices >= 0)
        # A sequence that samples computes its newest token in its last row.
        return inputs.sampled_rows[taken], indices[taken]

    def commit(self, inputs: StepInputs, token_ids: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Record that the step sampled ``token_ids`` [R]; return which of them are accepted [R].

        A token after a draft is accepted if the draft equals the token sampled in its place, and that is accepted.
        Tokens of slots that other sequences have taken since are not recorded.
        """
        rows = inputs.sampling_rows
        accepted = np.ones(len(token_ids), np.bool_)
        if inputs.num_drafts is not None:
            drafts = inputs.input_ids.numpy()[inputs.sampled_rows]
            for row in np.flatnonzero(rows.num_drafts).tolist():
                accepted[row] = accepted[row - 1] and token_ids[row - 1] == drafts[row]
        slots, positions = rows.slots, rows.num_tokens
        noted = accepted if inputs.num_drafts is not None else None
        if self._introductions > inputs.introductions:
            noted = accepted & (self._introduced_as[slots] <= inputs.introductions)
        if noted is not None:
            slots, positions, token_ids = slots[noted], positions[noted], token_ids[noted]
        self.token_ids[slots, positions] = token_ids
        if inputs.num_drafts is not None:
            behind = slots[rows.num_drafts[noted] > 0]
            np.add.at(self._num_tokens, behind, 1)
            np.add.at(self._num_computed_tokens, behind, 1)
            self.sampling.expire(slots, self._num_tokens[slots] - self._num_prompt_tokens[slots])
        return accepted

    def follow_grammars(self, inputs: StepInputs, accepted: npt.NDArray[np.bool_]) -> dict[int, Following]:
        """What grammars allow after the ``accepted`` [R] tokens of a committed step, by place in the plan.

        From where a grammar fails, its sequence's rows are removed from ``accepted``. Sequences that have left since
        are not in the result.
        """
        if not len(accepted) or not self.sampling.any_grammar:
            return {}
        rows, grammars = inputs.sampling_rows, self.sampling.grammar_mask
        places, firsts = np.unique(inputs.sampled, return_index=True)
        followed: dict[int, Following] = {}
        for place, first, end in zip(
            places.tolist(), firsts.tolist(), [*firsts[1:].tolist(), len(accepted)], strict=True
        ):
            slot, prompt = int(rows.slots[first]), int(rows.num_prompt_tokens[first])
            if not grammars.follows(slot) or self._introduced_as[slot] > inputs.introductions:
                continue
            known = int(rows.num_tokens[first])
            output = self.token_ids[slot, prompt : known + int(accepted[first:end].sum())]
            following = followed[place] = grammars.following(slot, output, self._limits.num_speculative_tokens)
            if following.failed_at is not None:
                accepted[max(first, first + following.failed_at + prompt - known) : end] = False
        return followed
