"""Layers that are cut into the parts of several ranks, which compute one after the other in this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product

import pytest
import torch

from engine_core.distributed.collectives import TensorCollectives
from engine_core.distributed.ranks import UNIT, cut
from engine_core.kernels.capture import BufferPool, Captured, capturing, kernel_output
from engine_core.kernels.library import load_kernels
from engine_core.ops.base import ExpertsOp, ExpertsSplit, LinearOp, UnloadedExperts
from engine_core.weights.experts import ExpertsShape, ExpertWeights

from .experts import chosen, load, numbers, weights_of

MakeLinear = Callable[[torch.Tensor, torch.Tensor | None], LinearOp]
MakeExperts = Callable[[ExpertsShape, torch.dtype, ExpertsSplit | None], ExpertsOp]

by_ranks = pytest.mark.parametrize("ranks", [3, *(pytest.param(ranks, marks=pytest.mark.wide) for ranks in (2, 4))])
by_kind = pytest.mark.parametrize("expert_parallel", [False, True], ids=["outputs", "experts"])


def assert_same_bits(x: torch.Tensor, y: torch.Tensor) -> None:
    """Of −0 and 0, too, which are equal."""
    assert x.shape == y.shape
    assert x.dtype == y.dtype
    bits = torch.int32 if x.itemsize == 4 else torch.int16
    assert torch.equal(x.contiguous().view(bits), y.contiguous().view(bits))


class LateRank(TensorCollectives):
    """A rank whose collectives return what there is: what all ranks have sent is known when each has computed once,
    and right results come of computing a second time.
    """

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self.sent: torch.Tensor
        self.received: torch.Tensor
        self.combine: Callable[[list[torch.Tensor], int], torch.Tensor]
        self.known: torch.Tensor | None = None

    def all_gather(
        self, x: torch.Tensor, widths: Sequence[int], *, groups: int = 1, writer: int | None = None
    ) -> torch.Tensor:
        assert x.shape[1] == groups * widths[self.rank]

        def combine(parts: list[torch.Tensor], rows: int) -> torch.Tensor:
            grouped = [_stretched(x, rows).view(rows, groups, width) for x, width in zip(parts, widths, strict=True)]
            return torch.cat(grouped, 2).view(rows, groups * sum(widths))

        return self._exchange(x, kernel_output(len(x), groups * sum(widths), x.dtype), combine)

    def gather_rows(
        self, x: torch.Tensor, ids: torch.Tensor, owned: Sequence[range], *, groups: int = 1
    ) -> torch.Tensor:
        assert x.shape[0] == len(ids)

        def combine(parts: list[torch.Tensor], rows: int) -> torch.Tensor:
            of_row = _stretched(ids, rows * groups)
            result = torch.empty(rows * groups, x.shape[1], dtype=x.dtype, device=x.device)
            for part, own in zip(parts, owned, strict=True):
                here = (of_row >= own.start) & (of_row < own.stop)
                result[here] = _stretched(part, rows * groups)[here]
            return result

        room = kernel_output(len(x) // groups, groups * x.shape[1], x.dtype)  # rows of the step are those of a pool
        return self._exchange(x, room.view(x.shape), combine)

    def _exchange(
        self, x: torch.Tensor, room: torch.Tensor, combine: Callable[[list[torch.Tensor], int], torch.Tensor]
    ) -> torch.Tensor:
        self.sent, self.combine = x, combine
        # Captured calls read the same memory in every replay.
        self.received = room if self.known is None else self.known
        return self.received

    def barrier(self) -> None:
        raise NotImplementedError

    abort = close = barrier


def _stretched(x: torch.Tensor, rows: int) -> torch.Tensor:
    """The first ``rows`` of a tensor in a ``BufferPool``, of which ``x`` has fewer or more."""
    return x.as_strided((rows, *x.shape[1:]), x.stride())


def combined(ranks: Sequence[LateRank], rows: int) -> torch.Tensor:
    return ranks[0].combine([rank.sent for rank in ranks], rows)


@dataclass(frozen=True, slots=True)
class Parts:
    """Experts of several ranks, and the whole."""

    whole: ExpertsOp
    ranks: list[LateRank]
    splits: list[ExpertsSplit]
    ops: list[ExpertsOp]

    @classmethod
    def make(
        cls, make: MakeExperts, shape: ExpertsShape, dtype: torch.dtype, size: int, *, expert_parallel: bool
    ) -> Parts:
        ranks = [LateRank(rank, size) for rank in range(size)]
        splits = [ExpertsSplit.of(shape, rank, expert_parallel=expert_parallel) for rank in ranks]
        whole, *ops = (make(shape, dtype, split) for split in (None, *splits))
        if isinstance(whole, UnloadedExperts):
            load(whole, shape, dtype)
        for op, split in zip(ops, splits, strict=True):
            if isinstance(op, UnloadedExperts):
                load_part(op, shape, dtype, split)
        return cls(whole, ranks, splits, ops)

    def residuals(self, residual: torch.Tensor | None) -> list[torch.Tensor | None]:
        """The columns of each rank."""
        if residual is None or self.splits[0].expert_parallel:
            return [residual] * len(self.ranks)
        ends = [split.own.hidden.stop for split in self.splits[:-1]]  # whole panels
        return list(residual.tensor_split(ends, 1))

    def compute(
        self, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, residual: torch.Tensor | None
    ) -> list[torch.Tensor]:
        """What each rank puts out."""
        residuals, known, results = self.residuals(residual), None, []
        for _ in range(2):
            for rank in self.ranks:
                rank.known = known
            results = [op(x, ids, weights, own) for op, own in zip(self.ops, residuals, strict=True)]
            known = combined(self.ranks, len(x))
        return results

    def put_together(self, results: list[torch.Tensor]) -> torch.Tensor:
        """The whole output; ranks that all have it have the same."""
        if not self.splits[0].expert_parallel:
            return torch.cat(results, 1)
        for result in results:
            assert_same_bits(result, results[0])
        return results[0]


def load_part(experts: UnloadedExperts, shape: ExpertsShape, dtype: torch.dtype, split: ExpertsSplit) -> None:
    own = split.own
    inner, hidden = (slice(part.start, part.stop) for part in (own.inner, own.hidden))

    def part_of(expert: int) -> ExpertWeights:
        (*expanding, down), biases = weights_of(shape, expert, dtype)
        if biases is not None:
            of_gate, of_up, of_down = biases
            biases = of_gate[inner], of_up[inner], of_down[hidden]
        return ExpertWeights(iter((*(each[inner] for each in expanding), down[hidden])), biases)

    experts.load(map(part_of, own.experts))


def rows_of(
    shape: ExpertsShape, rows: int, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """x, experts, their weights and a residual, padded to whole panels."""
    ids, weights = chosen(shape, rows, seed=rows)
    width, padding = shape.hidden_size, -shape.hidden_size % UNIT
    x, residual = (numbers(rows, width, dtype=dtype, seed=seed) for seed in (rows, rows + 1))
    return torch.nn.functional.pad(x, (0, padding)), ids, weights, torch.nn.functional.pad(residual, (0, padding))


def check_experts(
    make: MakeExperts, shape: ExpertsShape, dtype: torch.dtype, size: int, *, expert_parallel: bool
) -> None:
    """Parts put out the bits of the whole."""
    parts = Parts.make(make, shape, dtype, size, expert_parallel=expert_parallel)
    for rows, added in product((1, 2, 23), (False, True)):
        x, ids, weights, residual = rows_of(shape, rows, dtype)
        whole = parts.whole(x, ids, weights, residual if added else None)
        for threads in (1, 3):
            torch.set_num_threads(threads)
            results = parts.compute(x, ids, weights, residual if added else None)
            assert_same_bits(parts.put_together(results), whole)


def check_replayed_experts(
    make: MakeExperts, shape: ExpertsShape, dtype: torch.dtype, *, expert_parallel: bool
) -> None:
    """Parts that are captured, and replayed for other numbers of rows, put out the bits of the whole."""
    parts = Parts.make(make, shape, dtype, 3, expert_parallel=expert_parallel)
    pool, width = BufferPool(100), shape.hidden_size + -shape.hidden_size % UNIT
    x, ids = pool.take(100, width, dtype), pool.take(100, shape.top_k, torch.int32)
    weights, residual = pool.take(100, shape.top_k, torch.float32), pool.take(100, width, dtype)
    captured, results = [], []
    for op, own in zip(parts.ops, parts.residuals(residual), strict=True):
        captured.append(Captured(pool, load_kernels().replay))
        with capturing(captured[-1]):
            results.append(op(x[:5], ids[:5], weights[:5], own if own is None else own[:5]))
    for rows, threads in ((1, 2), (100, 1), (33, 3)):
        filled = rows_of(shape, rows, dtype)
        for room, given in zip((x, ids, weights, residual), filled, strict=True):
            room[:rows] = given
        for each in captured:
            each.replay(rows=rows, num_threads=threads)
        known = combined(parts.ranks, rows)
        for rank, each in zip(parts.ranks, captured, strict=True):
            _stretched(rank.received, len(known)).copy_(known)
            each.replay(rows=rows, num_threads=threads)
        put_out = [_stretched(result, rows) for result in results]
        assert_same_bits(parts.put_together(put_out), parts.whole(*filled))


def check_linear(make: MakeLinear, dtype: torch.dtype, outputs: int, inputs: int, size: int, *, bias: bool) -> None:
    """Parts of a linear layer put out the bits of the whole, with columns of a wider residual, and with none."""
    weight, offset = numbers(outputs, inputs, dtype=dtype), numbers(outputs, dtype=dtype, seed=1) if bias else None
    whole, columns = make(weight, offset), cut(outputs, size, UNIT)
    owned = [slice(own.start, own.stop) for own in columns]
    parts = [make(weight[own], None if offset is None else offset[own]) for own in owned]
    for rows, added, wanted in product((1, 7, 40), (False, True), {dtype, torch.float32}):
        x, residual = numbers(rows, inputs, dtype=dtype, seed=rows), numbers(rows, outputs, dtype=dtype, seed=9)
        expected = whole(x, residual=residual.clone() if added else None, scale=1.5, dtype=wanted)
        computed = [
            part(x, residual=residual[:, own] if added else None, scale=1.5, dtype=wanted)
            for part, own in zip(parts, owned, strict=True)
        ]
        assert_same_bits(torch.cat(computed, 1), expected)
