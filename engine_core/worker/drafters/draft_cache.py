"""The KV cache of a model that drafts: its own blocks, a table for each slot of the batch, and what they hold.

A slot's tokens need not begin with the first of its sequence: a drafter that learns of a sequence in its middle begins
there. Positions are those in the sequence all the same; only attention sees no token before the first one held.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch

from engine_core.attention.base import AttentionBackend, AttentionMetadata, KVCacheSpec
from engine_core.forward_context import Caches
from engine_core.kv_cache_interface import KVCacheGroup
from engine_core.models.language_model import LanguageModel

Index = npt.NDArray[np.intp]
Counts = npt.NDArray[np.int64]


def draft_cache_spec(model: LanguageModel, block_size: int) -> KVCacheSpec:
    """The cache of ``model`` as a drafter: one group, so that a block has room for all layers.

    Groups save the memory behind windows, which in a model so small is not worth a table for each.
    """
    return in_one_group(model.kv_cache_spec(block_size))


def in_one_group(spec: KVCacheSpec) -> KVCacheSpec:
    """``spec`` with all of its layers in one group."""
    return replace(spec, groups=(KVCacheGroup(tuple(range(len(spec.layers)))),))


@dataclass(frozen=True, slots=True)
class DraftRows:
    """Rows of a drafter's step: T rows of S sequences."""

    slots: Index
    """[S]"""
    row_slots: Index
    """[T]"""
    positions: Counts
    """[T]: in the sequence."""
    first_positions: Counts
    """[S]: of each sequence's first row."""
    lengths: Counts
    """[S]: tokens of each sequence in the cache after the step."""
    query_starts: npt.NDArray[np.int32]
    """[S + 1]: sequence s has the rows query_starts[s] … query_starts[s + 1] − 1."""
    metadata: list[AttentionMetadata]
    """On the host, one for each group of the model's layers; they differ only in their ``group``."""

    @property
    def last_rows(self) -> Counts:
        """[S]: the last row of each sequence."""
        return self.query_starts[1:].astype(np.int64) - 1


class DraftCache:
    """Which tokens of each slot are in the cache, and in which blocks; ``caches`` is the memory."""

    def __init__(
        self,
        spec: KVCacheSpec,
        attention: AttentionBackend,
        device: torch.device,
        *,
        num_blocks: int,
        num_slots: int,
        max_model_len: int,
        num_groups: int = 1,
    ) -> None:
        """Allocate ``num_blocks`` blocks of ``spec``, which has one group. Raises ``RuntimeError`` if the system
        refuses the memory.

        ``num_groups``: of the model's layers, which share the tables.
        """
        self.caches = Caches(attention.allocate(spec, num_blocks, device))
        self.start = np.zeros(num_slots, np.int64)
        """[slots]: the position of the first token held, or to be held."""
        self.num_computed = np.zeros(num_slots, np.int64)
        """[slots]: the position behind the last token held; ``start`` if none is."""
        self._block_size = spec.block_size
        self._num_groups = num_groups
        self._tables = np.zeros((num_slots, -(-max_model_len // spec.block_size)), np.int32)
        self._num_blocks = [0] * num_slots
        self._free = list(range(num_blocks - 1, -1, -1))

    @property
    def num_free_blocks(self) -> int:
        return len(self._free)

    def begin(self, slot: int, start: int) -> None:
        """Drop what ``slot`` holds; the first token that it will hold is at the position ``start``."""
        self._keep_blocks(slot, 0)
        self.start[slot] = self.num_computed[slot] = start

    def grow(self, slot: int, length: int) -> bool:
        """Provide blocks for the tokens before the position ``length``; False, and nothing changes, without enough."""
        needed = self._blocks_for(slot, length)
        held = self._num_blocks[slot]
        if needed > self._tables.shape[1] or needed - held > len(self._free):
            return False
        for place in range(held, needed):
            self._tables[slot, place] = self._free.pop()
        self._num_blocks[slot] = max(held, needed)
        return True

    def truncate(self, slot: int, length: int) -> None:
        """Drop the tokens from the position ``length`` on, and the blocks that only they need."""
        start, computed = int(self.start[slot]), int(self.num_computed[slot])
        self.num_computed[slot] = max(start, min(length, computed))
        self._keep_blocks(slot, self._blocks_for(slot, length))

    def forget(self, slot: int) -> None:
        """Drop all that ``slot`` holds."""
        self.begin(slot, 0)

    def rows(self, slots: Index, counts: Counts) -> DraftRows:
        """The next ``counts`` [S] tokens of ``slots`` [S] as rows of a step; ``grow`` has provided blocks for them."""
        first, places = self.num_computed[slots], np.arange(len(slots))
        starts = np.zeros(len(slots) + 1, np.int32)
        np.cumsum(counts, out=starts[1:])
        rows_of = np.repeat(places, counts)
        positions = np.arange(starts[-1]) + (first - starts[:-1])[rows_of]
        lengths = first + counts - self.start[slots]
        longest = int(lengths.max())
        table = self._tables[slots, : -(-longest // self._block_size)]
        blocks, offsets = np.divmod(positions - self.start[slots][rows_of], self._block_size)
        metadata = AttentionMetadata(
            torch.from_numpy(starts),
            torch.from_numpy(lengths.astype(np.int32)),
            block_tables=torch.from_numpy(table),
            slot_mapping=torch.from_numpy(table[rows_of, blocks] * np.int64(self._block_size) + offsets),
            max_query_len=int(counts.max()),
            max_seq_len=longest,
        )
        groups = [replace(metadata, group=group) for group in range(self._num_groups)]
        return DraftRows(slots, slots[rows_of], positions, first, lengths, starts, groups)

    def advance(self, rows: DraftRows) -> None:
        """Record that ``rows`` are computed."""
        self.num_computed[rows.slots] = self.start[rows.slots] + rows.lengths

    def _blocks_for(self, slot: int, length: int) -> int:
        return -(-max(0, length - int(self.start[slot])) // self._block_size)

    def _keep_blocks(self, slot: int, count: int) -> None:
        """Free the blocks of ``slot`` behind its first ``count``."""
        held = self._num_blocks[slot]
        if count < held:
            self._free += self._tables[slot, count:held][::-1].tolist()
            self._num_blocks[slot] = count
