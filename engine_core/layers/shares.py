"""Which part of a layer a rank has, and how the parts of all ranks are gathered.

Every cut is along outputs: an output is one chain of additions on one rank, so its bits are those of a single process.
Cuts are between whole panels of the kernels, so padding follows the last rank's columns, as with a single rank.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from engine_core.distributed.collectives import TensorCollectives
from engine_core.distributed.ranks import UNIT, Rank, cut
from engine_core.ops.base import ExpertsSplit, HeadsShape, OpsBackend
from engine_core.weights.experts import ExpertsShape, ExpertsShard
from engine_core.weights.features import Features

Gather = Callable[[torch.Tensor], torch.Tensor]
"""[T, all columns] from a rank's columns [T, its width]."""


def _as_it_is(x: torch.Tensor) -> torch.Tensor:
    return x


@dataclass(frozen=True, slots=True)
class GatheredOutputs:
    """The place of a rank's outputs among all, and the function that gathers them."""

    columns: slice
    gather: Gather


@dataclass(frozen=True, slots=True)
class TokenShares:
    """The tokens whose rows of the vocabulary each rank has."""

    tokens: tuple[range, ...]
    rank: int
    collectives: TensorCollectives | None

    @property
    def own(self) -> range:
        return self.tokens[self.rank]

    @property
    def others(self) -> TensorCollectives | None:
        """Gathers the ranks' rows; None if each rank has all rows."""
        return self.collectives if len(self.tokens) > 1 else None


@dataclass(frozen=True, slots=True)
class OwnHeads:
    """The heads this rank owns."""

    heads: range
    gather: Gather | None
    """[T, all heads · D] from a rank's [T, its heads · D]; None if one rank has them all."""


class Shares:
    """The shares of one rank of a stage."""

    def __init__(self, rank: Rank, collectives: TensorCollectives | None, backend: OpsBackend) -> None:
        self.rank = rank
        self.collectives = collectives
        self._backend = backend

    def columns(self, count: int) -> range:
        """The columns that this rank has, of ``count``."""
        return cut(count, self.rank.tp_size, UNIT)[self.rank.tp]

    def groups(self, count: int) -> range:
        """The heads, or other indivisible groups, that this rank has, of ``count``."""
        return cut(count, self.rank.tp_size)[self.rank.tp]

    def query_heads(self, shape: HeadsShape) -> range:
        return self.groups(shape.num_heads)

    def kv_heads(self, shape: HeadsShape) -> range:
        """KV heads for this rank's query heads; several ranks may need the same one."""
        return _heads_of(shape.num_kv_heads, self.rank.tp_size)[self.rank.tp]

    def own_heads(self, features: Features) -> OwnHeads:
        """The heads that this rank has, of ``features``."""
        heads, width = _heads_of(features.groups, self.rank.tp_size), features.padded(self._backend)
        if len(heads) == 1:
            return OwnHeads(heads[0], None)
        # A head that several ranks have comes from the first of them.
        firsts = [rank == 0 or heads[rank] != heads[rank - 1] for rank in range(len(heads))]
        widths = [width * len(each) if first else 0 for each, first in zip(heads, firsts, strict=True)]
        gather, own = self._gather(widths), widths[self.rank.tp]
        return OwnHeads(heads[self.rank.tp], lambda x: gather(x[:, :own]))

    def of_heads(self, shape: HeadsShape) -> HeadsShape:
        """``shape`` with only this rank's heads."""
        return replace(shape, num_heads=len(self.query_heads(shape)), num_kv_heads=len(self.kv_heads(shape)))

    def of_outputs(self, outputs: Features) -> tuple[range, Features, list[int]]:
        """The range of ``outputs`` that this rank has, the same as features, and all ranks' padded widths.

        If there are too few for all ranks, each rank has all outputs, and there is one width.
        """
        units = outputs.groups if outputs.groups > 1 else -(-outputs.size // UNIT)
        if self.rank.tp_size == 1 or units < self.rank.tp_size:
            return range(outputs.count), outputs, [outputs.groups * outputs.padded(self._backend)]
        if outputs.groups > 1:
            parts = cut(outputs.groups, self.rank.tp_size)
            features = [replace(outputs, groups=len(part)) for part in parts]
            taken = [range(part.start * outputs.size, part.stop * outputs.size) for part in parts]
        else:
            taken = cut(outputs.size, self.rank.tp_size, UNIT)
            features = [replace(outputs, size=len(part)) for part in taken]
        widths = [each.groups * each.padded(self._backend) for each in features]
        return taken[self.rank.tp], features[self.rank.tp], widths

    def of_experts(self, shape: ExpertsShape) -> ExpertsShard:
        return shape.shards(self.rank.tp_size, expert_parallel=self.rank.expert_parallel)[self.rank.tp]

    def split_experts(self, shape: ExpertsShape) -> ExpertsSplit | None:
        """How ranks share the computation of experts; None if one rank has them all."""
        if self.rank.tp_size == 1:
            return None
        assert self.collectives is not None
        return ExpertsSplit.of(shape, self.collectives, expert_parallel=self.rank.expert_parallel)

    def of_tokens(self, vocab_size: int) -> TokenShares:
        """Shares of a table's rows; if there are too few for all ranks, each rank has all rows."""
        parts = cut(vocab_size, self.rank.tp_size, UNIT)
        if not all(parts):
            return TokenShares((range(vocab_size),), 0, None)
        return TokenShares(tuple(parts), self.rank.tp, self.collectives)

    def gather(self, widths: Sequence[int]) -> GatheredOutputs | None:
        """How to gather outputs of these padded widths, by rank; None for one width: every rank has all outputs."""
        if len(widths) == 1:
            return None
        first = sum(widths[: self.rank.tp])
        return GatheredOutputs(slice(first, first + widths[self.rank.tp]), self._gather(tuple(widths)))

    def gather_heads(self, num_heads: int, head_dim: int) -> Gather:
        """[T, all heads · D] from this rank's heads; ``head_dim`` is not padded."""
        width = self._backend.padded(head_dim)
        return self._gather([len(heads) * width for heads in cut(num_heads, self.rank.tp_size)])

    def gather_columns(self, count: int) -> Gather:
        """[T, padded ``count``] from this rank's ``columns(count)``, padded."""
        return self._gather([self._backend.padded(len(part)) for part in cut(count, self.rank.tp_size, UNIT)])

    def _gather(self, widths: Sequence[int]) -> Gather:
        if self.rank.tp_size == 1:
            return _as_it_is
        collectives = self.collectives

        def gather(x: torch.Tensor) -> torch.Tensor:
            assert collectives is not None
            return collectives.all_gather(x, widths)

        return gather


def _heads_of(count: int, ranks: int) -> list[range]:
    """Each rank's heads, of ``count``; if there are fewer heads than ranks, neighbouring ranks have the same head."""
    if count == 0 or count >= ranks:
        return cut(count, ranks)
    return [range(rank * count // ranks, rank * count // ranks + 1) for rank in range(ranks)]
