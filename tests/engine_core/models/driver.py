"""Runs a model over token sequences as a worker would: paged cache, mixed batches, prompts in chunks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import torch

from engine_core.attention.base import AttentionBackend, AttentionMetadata
from engine_core.attention.selector import choose_attention
from engine_core.attention.torch_reference import TorchAttention
from engine_core.config import LoadConfig, ModelConfig
from engine_core.layers.base import LayerBackend
from engine_core.layers.native_backend import NativeBackend
from engine_core.layers.selector import choose_layers, choose_quant_method
from engine_core.model_loader.checkpoint import Checkpoint, open_checkpoint
from engine_core.model_loader.digest import WeightsDigest
from engine_core.model_loader.loader import load_weights, make_model
from engine_core.model_loader.weights import ProgressCallback
from engine_core.models.base import CausalLM

CPU = torch.device("cpu")
BLOCK_SIZE = 16


def open_at(directory: Path, load_format: str = "auto", **options: object) -> Checkpoint:
    return open_checkpoint(ModelConfig(model=str(directory), **options), LoadConfig(load_format=load_format))


def layers_of(checkpoint: Checkpoint) -> LayerBackend:
    """Those that an engine would choose."""
    return choose_layers(checkpoint.config.head_dim, checkpoint.dtype)[0]


def build_model(
    checkpoint: Checkpoint,
    layers: LayerBackend | None = None,
    attention: AttentionBackend | None = None,
    on_progress: ProgressCallback | None = None,
    digest: WeightsDigest | None = None,
) -> CausalLM:
    """The checkpoint's model with its weights, by default as an engine on CPU would compute it."""
    quant_method, _ = choose_quant_method(checkpoint.quantization)
    layers = layers or layers_of(checkpoint)
    if attention is None:
        attention = chosen_attention() if isinstance(layers, NativeBackend) else TorchAttention()
    model = make_model(checkpoint, attention, layers, CPU, quant_method)
    load_weights(model, checkpoint, CPU, on_progress, digest)
    return model


def load(
    directory: Path,
    dtype: str = "float32",
    quantization: str | None = None,
    layers: LayerBackend | None = None,
    attention: AttentionBackend | None = None,
) -> CausalLM:
    """The model of the checkpoint in that directory."""
    return build_model(open_at(directory, dtype=dtype, quantization=quantization), layers, attention)


@cache
def chosen_attention() -> AttentionBackend:
    """That which an engine would choose."""
    return choose_attention(16, torch.float32)[0]


class Driver:
    """A model with a cache of scattered blocks, poisoned with NaN until written."""

    def __init__(
        self, model: CausalLM, lengths: Sequence[int], seed: int = 0, attention: AttentionBackend | None = None
    ) -> None:
        """``lengths``: the most tokens that each sequence will have. ``attention``: what the model was loaded with."""
        self.model = model
        blocks = [-(-length // BLOCK_SIZE) for length in lengths]
        order = torch.randperm(sum(blocks) + 5, generator=torch.Generator().manual_seed(seed)).int()
        self.tables = list(order[: sum(blocks)].split(blocks))
        allocate = (attention or model._factory.attention_backend).allocate
        self.caches = allocate(model.kv_cache_spec(BLOCK_SIZE), sum(blocks) + 5, CPU)
        for kv_cache in self.caches:
            kv_cache.fill_(torch.nan)
        self.computed = [0] * len(lengths)

    def step(self, work: Sequence[tuple[int, torch.Tensor]], last_alone: bool = False) -> list[torch.Tensor]:
        """Compute the next tokens of some sequences, each ``(sequence, ids [n])``; returns their logits [n, V], or
        those of the last token [1, V].
        """
        counts = [len(ids) for _, ids in work]
        starts = [self.computed[sequence] for sequence, _ in work]
        positions = [torch.arange(start, start + count) for start, count in zip(starts, counts, strict=True)]
        width = max(len(self.tables[sequence]) for sequence, _ in work)
        tables = torch.full((len(work), width), 2**30, dtype=torch.int32)
        for row, (sequence, _) in enumerate(work):
            used = -(-(starts[row] + counts[row]) // BLOCK_SIZE)
            tables[row, :used] = self.tables[sequence][:used]
        slots = [
            tables[row].long()[places // BLOCK_SIZE] * BLOCK_SIZE + places % BLOCK_SIZE
            for row, places in enumerate(positions)
        ]
        lens = [start + count for start, count in zip(starts, counts, strict=True)]
        metadata = AttentionMetadata(
            query_starts=torch.tensor([0, *counts]).cumsum(0).int(),
            seq_lens=torch.tensor(lens, dtype=torch.int32),
            block_tables=tables,
            slot_mapping=torch.cat(slots),
            max_query_len=max(counts),
            max_seq_len=max(lens),
        )
        ids = torch.cat([ids for _, ids in work])
        wanted = metadata.query_starts[1:].long() - 1 if last_alone else None
        hidden = self.model.forward(ids, torch.cat(positions), self.caches, metadata, wanted)
        for (sequence, _), length in zip(work, lens, strict=True):
            self.computed[sequence] = length
        return list(self.model.compute_logits(hidden).split([1] * len(counts) if last_alone else counts))


def logits_of(model: CausalLM, ids: torch.Tensor, chunks: Sequence[int] | None = None) -> torch.Tensor:
    """Logits [T, V] of one sequence alone, computed in chunks of the given sizes (default: in one step)."""
    driver = Driver(model, [len(ids)])
    return torch.cat([driver.step([(0, part)])[0] for part in ids.split(list(chunks or [len(ids)]))])
