"""Runs a model over token sequences as a worker would: paged cache, mixed batches, prompts in chunks."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import torch

from engine_core.attention.base import AttentionBackend, AttentionMetadata
from engine_core.attention.selector import choose_attention
from engine_core.attention.torch_reference import TorchAttention
from engine_core.config import LoadConfig, ModelConfig
from engine_core.distributed.collectives import TensorCollectives
from engine_core.distributed.ranks import Rank
from engine_core.forward_context import ForwardContext
from engine_core.kv_cache_interface import NO_STATE
from engine_core.model_loader.checkpoint import Checkpoint, open_checkpoint
from engine_core.model_loader.digest import Digest
from engine_core.model_loader.loader import load_weights, make_model
from engine_core.models.language_model import LanguageModel
from engine_core.ops.base import OpsBackend
from engine_core.ops.native import NativeBackend
from engine_core.ops.selector import choose_ops
from engine_core.quantization.selector import choose_quantization
from engine_core.states.base import StateMetadata
from engine_core.weights.source import ProgressCallback

CPU = torch.device("cpu")
BLOCK_SIZE = 16
_SLOTS = 2
"""For the states of a sequence."""


def open_at(directory: Path, load_format: str = "auto", **options: object) -> Checkpoint:
    return open_checkpoint(ModelConfig(model=str(directory), **options), LoadConfig(load_format=load_format))


def layers_of(checkpoint: Checkpoint) -> OpsBackend:
    """Those that an engine would choose."""
    head_dim, dtype = checkpoint.config.head_dim, checkpoint.dtype
    return choose_ops(head_dim, dtype, int8_activations=checkpoint.int8_activations)[0]


def build_model(
    checkpoint: Checkpoint,
    layers: OpsBackend | None = None,
    attention: AttentionBackend | None = None,
    on_progress: ProgressCallback | None = None,
    digest: Digest | None = None,
    rank: Rank | None = None,
    collectives: TensorCollectives | None = None,
) -> LanguageModel:
    """The checkpoint's model, or a rank's part, with its weights, by default as an engine on CPU would compute it."""
    quantization = choose_quantization(
        checkpoint.quantization, checkpoint.stored_quantization, group_size=checkpoint.group_size
    )
    layers = layers or layers_of(checkpoint)
    if attention is None:
        attention = chosen_attention() if isinstance(layers, NativeBackend) else TorchAttention()
    model = make_model(checkpoint, attention, layers, CPU, quantization, rank, collectives)
    load_weights(model, checkpoint, CPU, on_progress, digest)
    return model


def load(
    directory: Path,
    dtype: str = "float32",
    quantization: str | None = None,
    layers: OpsBackend | None = None,
    attention: AttentionBackend | None = None,
) -> LanguageModel:
    """The model of the checkpoint in that directory."""
    return build_model(open_at(directory, dtype=dtype, quantization=quantization), layers, attention)


@cache
def chosen_attention() -> AttentionBackend:
    """That which an engine would choose."""
    return choose_attention(16, torch.float32)[0]


class Driver:
    """A model with a cache of scattered blocks, and states in scattered slots, poisoned with NaN until written."""

    def __init__(
        self, model: LanguageModel, lengths: Sequence[int], seed: int = 0, attention: AttentionBackend | None = None
    ) -> None:
        """``lengths``: the most tokens that each sequence will have. ``attention``: what the model was loaded with."""
        self.model = model
        self.groups = model.kv_cache_groups
        blocks = [-(-length // BLOCK_SIZE) for length in lengths] * len(self.groups)
        self.num_blocks = sum(blocks) + 5
        order = torch.randperm(self.num_blocks, generator=torch.Generator().manual_seed(seed)).int()
        self.tables = list(order[: sum(blocks)].split(blocks))
        """Of all sequences for the first group, then for the next."""
        allocate = (attention or model._factory.attention_backend).allocate
        self.caches = allocate(model.kv_cache_spec(BLOCK_SIZE), self.num_blocks, CPU)
        for kv_cache in self.caches:
            kv_cache.fill_(torch.nan)
        self.computed = [0] * len(lengths)
        self._rng = random.Random(seed)
        self._slots = self._rng.sample(range(_SLOTS * len(lengths)), _SLOTS * len(lengths))
        spec = model.state_cache_spec
        self.states = [] if spec is None else spec.allocate(len(self._slots), CPU)
        self._poison(self._slots)
        self._held = [NO_STATE] * len(lengths)
        """The slot of each sequence's state."""

    def step(self, work: Sequence[tuple[int, torch.Tensor]], last_alone: bool = False) -> list[torch.Tensor]:
        """Compute the next tokens of some sequences, each ``(sequence, ids [n])``; returns their logits [n, V], or
        those of the last token [1, V].
        """
        counts = [len(ids) for _, ids in work]
        starts = [self.computed[sequence] for sequence, _ in work]
        positions = [torch.arange(start, start + count) for start, count in zip(starts, counts, strict=True)]
        metadata = [
            self._metadata(group, [sequence for sequence, _ in work], positions) for group in range(len(self.groups))
        ]
        ids = torch.cat([ids for _, ids in work])
        wanted = torch.tensor(counts).cumsum(0) - 1 if last_alone else None
        states = self._move_states([sequence for sequence, _ in work], counts)
        hidden = self.model.forward(
            ids,
            torch.cat(positions),
            ForwardContext(self.caches, metadata, wanted, states=self.states, state_metadata=states),
        )
        for (sequence, _), count in zip(work, counts, strict=True):
            self.computed[sequence] += count
        return list(self.model.compute_logits(hidden).split([1] * len(counts) if last_alone else counts))

    def _move_states(self, sequences: Sequence[int], counts: Sequence[int]) -> StateMetadata | None:
        """Each state stays in its slot or moves to another; one that it left is poisoned before the next step."""
        if not self.states:
            return None
        sources = [self._held[sequence] for sequence in sequences]
        self._poison(sorted(set(self._slots) - set(self._held)))
        for sequence in sequences:
            self._held[sequence] = self._rng.choice(self._slots[_SLOTS * sequence : _SLOTS * (sequence + 1)])
        return StateMetadata.of_sequences(counts, sources, [self._held[sequence] for sequence in sequences])

    def _poison(self, slots: Sequence[int]) -> None:
        for state in self.states:
            for memory in (state.conv, state.recurrent):
                if memory is not None:
                    memory[slots] = torch.nan

    def _metadata(self, group: int, sequences: Sequence[int], positions: Sequence[torch.Tensor]) -> AttentionMetadata:
        """Blocks behind a window are gone from the tables, and poisoned as if another sequence had written to them."""
        first_table = group * len(self.computed)
        tables = torch.full((len(sequences), max(map(len, self.tables))), 2**30, dtype=torch.int32)
        for row, (sequence, places) in enumerate(zip(sequences, positions, strict=True)):
            table = self.tables[first_table + sequence]
            seen, used = self.groups[group].first_block(int(places[0]), BLOCK_SIZE), int(places[-1]) // BLOCK_SIZE + 1
            tables[row, seen:used] = table[seen:used]
            for kv_cache in self.caches:
                of_blocks = kv_cache if kv_cache.shape[0] == self.num_blocks else kv_cache.transpose(0, 1)
                of_blocks[table[:seen].long()] = torch.nan
        counts, lens = [len(places) for places in positions], [int(places[-1]) + 1 for places in positions]
        return AttentionMetadata.of_sequences(lens, counts, tables, BLOCK_SIZE, group)


def logits_of(model: LanguageModel, ids: torch.Tensor, chunks: Sequence[int] | None = None) -> torch.Tensor:
    """Logits [T, V] of one sequence alone, computed in chunks of the given sizes (default: in one step)."""
    driver = Driver(model, [len(ids)])
    return torch.cat([driver.step([(0, part)])[0] for part in ids.split(list(chunks or [len(ids)]))])
