"""Steps to measure attention with: sequences of equal length, of which the last tokens are computed."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engine_core.attention.base import AttentionMetadata

BLOCK_SIZE = 16


@dataclass(frozen=True, slots=True)
class AttentionStep:
    """One step. Its cache leaves out blocks that no row attends to."""

    sequences: int
    new: int
    """Computed tokens of each sequence."""
    context: int
    """Tokens of each sequence, including the computed ones."""
    window: int | None = None

    @property
    def rows(self) -> int:
        """Computed tokens of all sequences."""
        return self.sequences * self.new

    @property
    def seen(self) -> float:
        """Average number of tokens that a row attends to."""
        return min(self.context - (self.new - 1) / 2, self.window or self.context)

    @property
    def read(self) -> int:
        """Tokens of all sequences that some row attends to."""
        return self.sequences * (self.context - self._first_seen)

    @property
    def num_blocks(self) -> int:
        """Blocks of all sequences that some row attends to."""
        return self.sequences * (-(-self.context // BLOCK_SIZE) - self._first_seen // BLOCK_SIZE)

    @property
    def _first_seen(self) -> int:
        return 0 if self.window is None else max(0, self.context - self.new - self.window + 1)

    def metadata(self) -> AttentionMetadata:
        """The step's metadata, with blocks scattered over the cache."""
        places = torch.randperm(self.num_blocks, generator=torch.Generator().manual_seed(0)).view(self.sequences, -1)
        tables = torch.nn.functional.pad(places, (self._first_seen // BLOCK_SIZE, 0))
        positions = torch.arange(self.context - self.new, self.context)
        return AttentionMetadata(
            query_starts=torch.arange(0, self.rows + 1, self.new, dtype=torch.int32),
            seq_lens=torch.full((self.sequences,), self.context, dtype=torch.int32),
            block_tables=tables.int(),
            slot_mapping=(tables[:, positions // BLOCK_SIZE] * BLOCK_SIZE + positions % BLOCK_SIZE).flatten(),
            max_query_len=self.new,
            max_seq_len=self.context,
        )

    def __str__(self) -> str:
        return f"{self.sequences} × {self.context}" + (f", window {self.window}" if self.window else "")
