"""The layers of a model to which adapters may add (LoRA; Hu et al., 2021, https://arxiv.org/abs/2106.09685)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from engine_core.async_copy import upload
from engine_core.errors import AdapterError
from engine_core.layers.lora_experts import LoRAExperts
from engine_core.layers.lora_latents import LatentsShape, LoRALatents
from engine_core.layers.lora_merged import LoRAMerged
from engine_core.lora.adapter import Adapter, LoRAMatrices
from engine_core.lora.targets import LinearTarget, LoRATargets, Table, TableTarget
from engine_core.ops.base import LinearOp, OpsBackend
from engine_core.ops.lora import LoRAOp, LoRAOutputs, LoRAWeights, PackedAdapter, RowsByAdapter, StepAdapters
from engine_core.weights.expert_tensors import ExpertTensors
from engine_core.weights.experts import ExpertsShape, ExpertsShard
from engine_core.weights.features import Features, LinearShape
from engine_core.weights.source import TensorRows

_RANKS_TOGETHER = 16
"""Ranks are packed in units of so many, as ``AdapterFile.nbytes`` counts."""


@dataclass(frozen=True, slots=True)
class _Linear:
    op: LoRAOp
    shape: LinearShape


@dataclass(frozen=True, slots=True)
class _Embedding:
    rows: TensorRows
    features: Features
    scale: float


@dataclass(frozen=True, slots=True, eq=False)
class _EmbeddingRanks:
    """What an adapter adds to embeddings."""

    a: torch.Tensor
    """[V, r] float32"""
    b: torch.Tensor
    """[r, H] float32, padded, with the scales of adapter and table."""


@dataclass(frozen=True, slots=True, eq=False)
class LoadedAdapter:
    """An adapter's weights for one model, or one rank's part of it."""

    packed: PackedAdapter
    table: torch.Tensor | None
    """[V, H]: embeddings in place of the model's; None: those stay."""
    embedding: _EmbeddingRanks | None
    """None: nothing is added to embeddings."""
    head: LinearOp | None
    """In place of the model's; None: that stays."""
    changes_head: bool
    """Whether it has a ``head``, or adds to its outputs."""

    @property
    def nbytes(self) -> int:
        of_embedding = 0 if (ranks := self.embedding) is None else ranks.a.nbytes + ranks.b.nbytes
        own = (0 if each is None else each.nbytes for each in (self.table, self.head))
        return self.packed.nbytes + of_embedding + sum(own)


@dataclass(frozen=True, slots=True, eq=False)
class RowAdapters:
    """The adapters of rows that are computed together."""

    adapters: tuple[LoadedAdapter, ...]
    places: npt.NDArray[np.intp]
    """[M]: the place in ``adapters`` of each row's; −1: it has none."""

    def of(self, rows: slice | npt.NDArray[np.int64]) -> RowAdapters:
        """Those of some rows."""
        return RowAdapters(self.adapters, self.places[rows])

    @property
    def change_head(self) -> bool:
        """Whether the head of any row is another than the model's."""
        return any(self.adapters[place].changes_head for place in np.unique(self.places[self.places >= 0]))


class LoRALayers:
    """What adapters can add to, in one model or one rank's part of it, and the adapters of what is being computed."""

    def __init__(self, backend: OpsBackend, dtype: torch.dtype) -> None:
        """``dtype``: the model's, in which adapters are kept."""
        self._ops = backend.lora_ops()
        self._backend = backend
        self._dtype = dtype
        self._linear: list[_Linear] = []
        self._latents: list[LoRALatents] = []
        self._experts: list[LoRAExperts] = []
        self._merged: list[LoRAMerged] = []
        self._head: _Linear | None = None
        self._embedding: _Embedding | None = None
        self._computing: RowAdapters | None = None

    def linear(self, shape: LinearShape) -> LoRAOp:
        """What adds to the outputs of a linear layer of ``shape``."""
        op = self._ops.linear(self._width(shape.inputs), self._width(shape.outputs))
        self._linear.append(_Linear(op, shape))
        return op

    def latents(self, shape: LatentsShape) -> LoRALatents:
        """What adds to keys and values made from latents."""
        self._latents.append(LoRALatents(shape, self._ops, self._backend.padded))
        return self._latents[-1]

    def experts(self, shape: ExpertsShape, shard: ExpertsShard, tensors: ExpertTensors) -> LoRAExperts:
        """What adds to the products of this rank's ``shard`` of experts."""
        padded, dtype = self._backend.padded, self._dtype
        self._experts.append(LoRAExperts(shape, shard, tensors, self._ops, padded, dtype))
        return self._experts[-1]

    def merged(self, name: str, outputs: int, inputs: int) -> LoRAMerged:
        """What adds to the weight of a small layer in float32."""
        target = LinearTarget(outputs=outputs, inputs=inputs)
        self._merged.append(LoRAMerged(name, target, self._ops.merged(), self._dtype))
        return self._merged[-1]

    def head(self, shape: LinearShape) -> LoRAOp:
        """What adds to the logits of a head of ``shape``."""
        op = self._ops.linear(self._width(shape.inputs), self._width(shape.outputs))
        self._head = _Linear(op, shape)
        return op

    def embedding(self, rows: TensorRows, features: Features, scale: float) -> None:
        """The model has a table of embeddings with all its ``rows``, times ``scale``."""
        self._embedding = _Embedding(rows, features, scale)

    def _width(self, features: Features) -> int:
        return features.groups * features.padded(self._backend)

    @property
    def targets(self) -> LoRATargets:
        """What an adapter of this part of the model may add to, by the names of the checkpoint."""
        linear = {
            piece.name: LinearTarget(outputs=piece.count, inputs=each.shape.inputs.count)
            for each in self._linear
            for piece in each.shape.pieces
        }
        linear |= {each.shape.rows.name: each.shape.target for each in self._latents}
        linear |= {each.name: each.target for each in self._merged}
        embedding = head = None
        if (table := self._embedding) is not None:
            name = table.rows.name.removesuffix(".weight")
            embedding = TableTarget(name, table.rows.count, table.features.count)
        if self._head is not None:
            [piece], shape = self._head.shape.pieces, self._head.shape
            head = TableTarget("lm_head", piece.count, shape.inputs.count)
        dtype = str(self._dtype).removeprefix("torch.")
        experts = {each.prefix: each.target for each in self._experts}
        return LoRATargets(linear=linear, experts=experts, embedding=embedding, head=head, dtype=dtype)

    def most_bytes(self, rank: int) -> int:
        """Bytes of an adapter that adds to all linear layers but the head and experts, ``rank`` ranks each."""
        numbers, rank = 0, -(-rank // _RANKS_TOGETHER) * _RANKS_TOGETHER
        for each in self._linear:
            names, shape = len(each.shape.names), each.shape
            numbers += rank * (names * self._width(shape.inputs) + self._width(shape.outputs))
        numbers += sum(each.most_numbers(rank) for each in self._latents)
        return numbers * self._dtype.itemsize + sum(each.nbytes for each in self._merged)

    def load(self, adapter: Adapter) -> LoadedAdapter:
        """The adapter as the layers read it. From any thread."""
        small = [each for each in self._merged if each.name in adapter.linear]
        if adapter.experts and not self._backend.adapts_experts:
            raise _not_on_this_device(f"the experts {min(adapter.experts)!r:.200}")
        if small and not self._backend.adapts_streams:
            raise _not_on_this_device(f"the coefficients {small[0].name!r:.200}")
        layers = {}
        for each in self._linear:
            if (weights := self._of_linear(each.shape, adapter.linear)) is not None:
                layers[each.op.layer] = weights
        for latents in self._latents:
            if (matrices := adapter.linear.get(latents.shape.rows.name)) is not None:
                layers |= {op.layer: weights for op, weights in latents.weights(matrices)}
        for experts in self._experts:
            layers |= experts.weights(adapter.experts.get(experts.prefix, {}))
        head = None
        if self._head is not None:
            [piece] = self._head.shape.pieces
            if (matrices := adapter.tables.get(Table.HEAD)) is not None:
                weights = self._of_linear(self._head.shape, {piece.name: matrices})
                assert weights is not None
                layers[self._head.op.layer] = weights
            if (saved := adapter.saved.get(Table.HEAD)) is not None:
                rows = saved[piece.rows.start : piece.rows.stop].to(self._dtype)
                head = self._backend.linear(self._ops.place(self._head.shape.inputs.pad(rows, 1, self._backend)))
        changes_head = Table.HEAD in adapter.tables or Table.HEAD in adapter.saved
        merged = {each.op.layer: each.merged(adapter.linear[each.name]) for each in small}
        packed = self._ops.pack(layers, self._dtype, merged)
        return LoadedAdapter(packed, self._table_of(adapter), self._ranks_of(adapter), head, changes_head)

    def _table_of(self, adapter: Adapter) -> torch.Tensor | None:
        if self._embedding is None or (saved := adapter.saved.get(Table.EMBEDDING)) is None:
            return None
        return self._ops.place(self._embedding.features.pad(saved.to(self._dtype, copy=True), 1, self._backend))

    def _ranks_of(self, adapter: Adapter) -> _EmbeddingRanks | None:
        if self._embedding is None or (ranks := adapter.tables.get(Table.EMBEDDING)) is None:
            return None
        a, b = (each.to(self._dtype).float() for each in (ranks.a.T, ranks.b.T))
        scale = torch.tensor(self._embedding.scale, dtype=self._dtype).item() * ranks.scaling
        b = self._embedding.features.pad(b * scale, 1, self._backend)
        return _EmbeddingRanks(self._ops.place(a.contiguous()), self._ops.place(b))

    def _of_linear(self, shape: LinearShape, matrices: Mapping[str, LoRAMatrices]) -> LoRAWeights | None:
        """None: the adapter adds nothing to the layer."""
        found = {name: matrices[name] for name in shape.names if name in matrices}
        if not found:
            return None
        owners, rows = self._origins(shape)
        outputs, ranks = [], 0
        for number, name in enumerate(shape.names, 1):
            if name not in found:
                continue
            each = found[name]
            columns = torch.nonzero(owners == number).flatten()
            rank = len(each.a)
            outputs.append(LoRAOutputs(range(ranks, ranks + rank), columns, each.b[rows[columns]]))
            ranks += rank
        a = torch.cat([each.a.to(torch.float32) for each in found.values()])
        scales = torch.cat([torch.full((len(each.a),), each.scaling) for each in found.values()])
        return LoRAWeights(shape.inputs.pad(a, 1, self._backend), scales, tuple(outputs))

    def _origins(self, shape: LinearShape) -> tuple[torch.Tensor, torch.Tensor]:
        """For each padded output: the number of its tensor in ``shape.names``, from 1 on (0: padding), and its row."""
        numbers = {name: number for number, name in enumerate(shape.names, 1)}
        owners = torch.cat([torch.full((len(piece.rows),), numbers[piece.name]) for piece in shape.pieces])
        rows = torch.cat([torch.arange(piece.rows.start, piece.rows.stop) for piece in shape.pieces])
        return shape.outputs.pad(owners, 0, self._backend), shape.outputs.pad(rows, 0, self._backend)

    @contextmanager
    def computing(self, rows: RowAdapters, wanted: npt.NDArray[np.int64] | None = None) -> Iterator[None]:
        """Let layers add what the adapters of ``rows`` add, while these rows are computed.

        ``wanted``: those whose results are needed; None: all are.
        """
        count = len(rows.adapters)
        of_all = RowsByAdapter.of(rows.places, count)
        of_wanted = of_all if wanted is None else RowsByAdapter.of(rows.places[wanted], count)
        packed = tuple(each.packed for each in rows.adapters)
        self._computing = rows
        try:
            with self._ops.computing(StepAdapters(packed, len(rows.places), of_all, of_wanted)):
                yield
        finally:
            self._computing = None

    @property
    def change_embeddings(self) -> bool:
        """Whether adapters of what is being computed do, for which ``embed`` takes their rows from the host."""
        adapters = () if self._computing is None else self._computing.adapters
        return any(each.table is not None or each.embedding is not None for each in adapters)

    def rehearsing(self, rows: int, rank: int) -> AbstractContextManager[None]:
        """As ``LoRAOps.rehearsing``, for adapters of up to ``rank``."""
        widest = max((len(each.shape.names) for each in self._linear), default=1)
        return self._ops.rehearsing(rows, widest * -(-rank // _RANKS_TOGETHER) * _RANKS_TOGETHER)

    def embed(self, token_ids: torch.Tensor, embedded: torch.Tensor) -> torch.Tensor:
        """[T, H]: ``embedded``, the model's embeddings of ``token_ids`` [T], with what the rows' adapters change."""
        if self.change_embeddings:
            embedded = embedded.clone()  # those that ranks gather are memory that none may write
        for rows, adapter in self._rows_by_adapter(token_ids.device):
            ids = token_ids[rows]
            if (table := adapter.table) is not None:
                assert self._embedding is not None
                scale = self._embedding.scale
                embedded[rows] = table[ids] if scale == 1.0 else table[ids] * torch.tensor(scale, dtype=table.dtype)
            if (ranks := adapter.embedding) is not None:
                # Rank by rank: a product of matrices would add in an order that depends on the number of rows.
                factors, total = ranks.a[ids], embedded[rows].float()
                for rank in range(factors.shape[1]):
                    total += factors[:, rank, None] * ranks.b[rank]
                embedded[rows] = total.to(embedded.dtype)
        return embedded

    def replace_logits(self, hidden: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        """``logits`` [R, V] of ``hidden`` [R, H], with those of adapters that have heads of their own."""
        for rows, adapter in self._rows_by_adapter(hidden.device):
            if adapter.head is not None:
                logits[rows] = adapter.head(hidden[rows], dtype=torch.float32)
        return logits

    def _rows_by_adapter(self, device: torch.device) -> Iterator[tuple[torch.Tensor, LoadedAdapter]]:
        """The rows, on ``device``, of each adapter of what is being computed."""
        if (computing := self._computing) is None:
            return
        for place, adapter in enumerate(computing.adapters):
            rows = np.flatnonzero(computing.places == place)
            if len(rows):
                yield upload([rows], device)[0], adapter


def _not_on_this_device(what: str) -> AdapterError:
    return AdapterError(
        f"the adapter adds to {what}, which this device does not do: serve it on a CPU, or train it for other layers"
    )
