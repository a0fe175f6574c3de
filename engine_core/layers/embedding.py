"""Token embedding: rows of a table, or of the output projection's packed weight where the two are tied.

A checkpoint with tied embeddings has one matrix for both uses, but the projection wants it packed (twice as fast at
small batches) while a lookup wants rows. A second copy would cost a quarter more memory on a 0.6 B model, so rows are
read back out of the packed weight. Layers that pack it themselves know where its rows are. oneDNN's layout is blocks of
B rows, in which V consecutive columns of all B rows lie together; which B and V is found by comparing rows at load, and
where none or several fit, a plain copy is kept.
"""

from __future__ import annotations

import ctypes
from typing import Protocol

import torch

from engine_core.layers.linear import Linear

_ROWS_PER_BLOCK = (64, 48, 32, 24, 16, 8)
_COLUMNS_TOGETHER = (1, 2, 4)
_ROWS_COMPARED = 256


class Embedding:
    """Rows of a table of its own."""

    def __init__(self, table: torch.Tensor) -> None:
        """Keep a copy of ``table`` [V, H]."""
        self.table = table.clone()

    @property
    def nbytes(self) -> int:
        """Memory of the table."""
        return self.table.nbytes

    def __call__(self, token_ids: torch.Tensor) -> torch.Tensor:
        """[T, H] of ``token_ids`` [T] int64."""
        return torch.nn.functional.embedding(token_ids, self.table)


class TiedEmbedding:
    """Rows of the output projection's weight, sharing its memory where that can be read row by row."""

    def __init__(self, head: Linear, table: torch.Tensor) -> None:
        """``head`` was made from ``table`` [V, H]; a copy of ``table`` is kept only if ``head`` cannot be read."""
        self._head = head
        self._blocks = _blocks_of(head, table) if head.packed_dtype is not None else None
        self._copy = table.clone() if head.packed_dtype is not None and self._blocks is None else None

    @property
    def shares_storage(self) -> bool:
        """Whether no second copy of the matrix exists."""
        return self._copy is None

    @property
    def nbytes(self) -> int:
        """Memory beyond that of the output projection."""
        return 0 if self._copy is None else self._copy.nbytes

    def __call__(self, token_ids: torch.Tensor) -> torch.Tensor:
        """[T, H] of ``token_ids`` [T] int64."""
        if self._blocks is not None:
            return _read_rows(self._blocks, token_ids, self._head.in_features).to(self._head.dtype)
        table = self._head.weight if self._copy is None else self._copy
        return torch.nn.functional.embedding(token_ids, table)


class PackedRows(Protocol):
    """A layer whose packed weight [V, H] can be read row by row."""

    def rows(self, indices: torch.Tensor) -> torch.Tensor:
        """Rows [T, H] for ``indices`` [T] int64."""


class PackedEmbedding:
    """Rows of the output projection's packed weight; there is no other copy."""

    nbytes = 0

    def __init__(self, head: PackedRows) -> None:
        """Read from ``head``."""
        self._head = head

    def __call__(self, token_ids: torch.Tensor) -> torch.Tensor:
        """[T, H] of ``token_ids`` [T] int64."""
        return self._head.rows(token_ids)


def _read_rows(blocks: torch.Tensor, rows: torch.Tensor, width: int) -> torch.Tensor:
    """Rows [T, width] out of ``blocks`` [V / B, H / V, B, V] (both padded up)."""
    rows_per_block = blocks.shape[2]
    found = blocks[rows // rows_per_block, :, rows % rows_per_block]
    return found.flatten(1)[:, :width]


def _blocks_of(head: Linear, table: torch.Tensor) -> torch.Tensor | None:
    """The packed weight's memory, seen as blocks; None unless exactly one layout explains it."""
    memory = _memory_of(head.weight)
    num_rows, width = table.shape
    rows = torch.linspace(0, num_rows - 1, min(num_rows, _ROWS_COMPARED)).long()
    expected = table[rows].to(memory.dtype)
    fitting = []
    for rows_per_block in _ROWS_PER_BLOCK:
        num_blocks = -(-num_rows // rows_per_block)
        for together in _COLUMNS_TOGETHER:
            panels, rest = divmod(memory.numel(), num_blocks * rows_per_block * together)
            if rest or panels * together < width:
                continue
            blocks = memory.view(num_blocks, panels, rows_per_block, together)
            if torch.equal(_read_rows(blocks, rows, width), expected):
                fitting.append(blocks)
    return fitting[0] if len(fitting) == 1 else None


def _memory_of(packed: torch.Tensor) -> torch.Tensor:
    """The bytes of an oneDNN tensor as a flat tensor; valid while ``packed`` lives."""
    size = torch.ops.mkldnn._nbytes.default(packed)
    address = torch.ops.mkldnn.data_ptr.default(packed)
    return torch.frombuffer((ctypes.c_char * size).from_address(address), dtype=packed.dtype)
