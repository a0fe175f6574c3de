"""The interface of an attention backend.

The backend owns the layout of the KV cache: nothing else indexes into it. Symbols in shapes below: T rows (tokens) and
S sequences of a step, Hq query heads, Hkv key/value heads, D head size. For latent attention (MLA): R, the width of the
latent from which all heads' keys and values are made, and P, the width of the rotated part.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch

from engine_core.kv_cache_interface import KVCacheGroup, LayerCacheSpec


@dataclass(frozen=True, slots=True)
class KVCacheSpec:
    """What the cache of a model must hold.

    Each layer of a group has a *place*. Groups have the same places: one tensor per place serves all groups, because a
    block belongs to one group at a time. Either all layers keep heads, or all keep latents.
    """

    layers: tuple[LayerCacheSpec, ...]
    """Each layer's cache data per token, padded."""
    block_size: int
    dtype: torch.dtype
    """The model's, in which attention is computed."""
    groups: tuple[KVCacheGroup, ...] = (KVCacheGroup((0,)),)
    cache_dtype: str = "auto"
    """The stored type: auto (``dtype``), or int8 or fp8 with scales, where the backend supports them."""
    takes_turns: bool = False
    """Whether all layers have one place, as each reads only what it has written in the same step."""

    @property
    def num_places(self) -> int:
        """Number of layers of the largest group."""
        if self.takes_turns:
            return min(1, len(self.layers))
        return max((len(group.layers) for group in self.groups), default=0)

    @property
    def elements(self) -> int:
        """Values per token at each place: as many as the layer with the most needs."""
        return max((layer.elements for layer in self.layers), default=0)

    def caches(
        self, memories: Sequence[torch.Tensor], view: Callable[[torch.Tensor, LayerCacheSpec], torch.Tensor]
    ) -> list[torch.Tensor]:
        """The cache of each layer: its ``view`` of the tensor in ``memories`` at its place."""
        places = {layer: place for group in self.groups for place, layer in enumerate(group.layers)}
        if self.takes_turns:
            places = dict.fromkeys(places, 0)
        return [view(memories[places[index]], layer) for index, layer in enumerate(self.layers)]


@dataclass(frozen=True, slots=True)
class AttentionMetadata:
    """Which sequence and cache slot each row belongs to, for the layers of one group.

    Rows of one sequence are adjacent, in position order.
    """

    query_starts: torch.Tensor
    """[S + 1] int32: sequence s owns rows query_starts[s] … query_starts[s + 1] − 1."""
    seq_lens: torch.Tensor
    """[S] int32: tokens of each sequence after this step (cached ones and this step's rows)."""
    block_tables: torch.Tensor
    """[S, ≥ blocks of the longest sequence] int32: block ids in order. Entries past a sequence's end, and those of
    blocks that no row sees, are unspecified."""
    slot_mapping: torch.Tensor
    """[T] int64: block_id · block_size + offset where each row's key and value go."""
    max_query_len: int
    max_seq_len: int
    group: int = 0
    """The group's index."""
    visible_until: torch.Tensor | None = None
    """[T] int32: for rows in pictures, the position behind the picture, all of which is in the step; 0 for others.
    In layers that attend ``both_ways``, keys before it are visible. None: all 0."""

    @staticmethod
    def of_sequences(
        lengths: Sequence[int], counts: Sequence[int], block_tables: torch.Tensor, block_size: int, group: int = 0
    ) -> AttentionMetadata:
        """Metadata on the host for sequences of ``lengths`` tokens; the last ``counts`` of each are rows of the step.

        ``block_tables`` [S, N] int32.
        """
        slots = []
        for table, length, count in zip(block_tables.long(), lengths, counts, strict=True):
            places = torch.arange(length - count, length)
            slots.append(table[places // block_size] * block_size + places % block_size)
        return AttentionMetadata(
            query_starts=torch.tensor([0, *counts]).cumsum(0).int(),
            seq_lens=torch.tensor(lengths, dtype=torch.int32),
            block_tables=block_tables,
            slot_mapping=torch.cat(slots),
            max_query_len=max(counts),
            max_seq_len=max(lengths),
            group=group,
        )

    def on(self, device: torch.device) -> AttentionMetadata:
        return AttentionMetadata(
            self.query_starts.to(device),
            self.seq_lens.to(device),
            self.block_tables.to(device),
            self.slot_mapping.to(device),
            self.max_query_len,
            self.max_seq_len,
            self.group,
            None if self.visible_until is None else self.visible_until.to(device),
        )


class Angles(NamedTuple):
    """The rotations of the T rows of a step."""

    cos: torch.Tensor
    """[T, 1, rotary_dim / 2] float32, like ``sin``."""
    sin: torch.Tensor
    query_scales: torch.Tensor | None = None
    """[T, 1, 1] float32: factors for the queries."""


@dataclass(frozen=True, slots=True)
class AttentionOptions:
    """The variant of attention that a layer computes."""

    scale: float
    """Factor for the scores; positive."""
    sliding_window: int | None = None
    """Number of tokens that a token attends to, itself included; None: all before it."""
    logit_softcap: float | None = None
    """Scaled scores s become c · tanh(s / c)."""
    sinks: torch.Tensor | None = None
    """[Hq] float32: extra logits in the softmax, without values
    (Xiao et al., 2023, https://arxiv.org/abs/2309.17453)."""
    chunked: bool = False
    """Whether the window is a chunk: ``kv_cache_interface.first_seen``."""
    both_ways: bool = False
    """Whether rows in a picture also see the rest of it: ``AttentionMetadata.visible_until``."""


class RotaryOp(Protocol):
    """Rotary embedding of queries and keys, after the normalization of heads if the model has one."""

    @property
    def nbytes(self) -> int: ...

    def __call__(self, heads: torch.Tensor, angles: Angles | None) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Split ``heads`` [T, Hq + 2 · Hkv, D] into queries [T, Hq, D], keys and values [T, Hkv, D], and rotate.

        May overwrite ``heads``. ``angles`` is None if nothing is rotated; Hkv is 0 if there are only queries.
        """


class AttentionBackend(ABC):
    """Writes keys and values to the cache and attends over it, causally."""

    batch_invariant = False
    """Whether a row's bits are meant to be independent of the other rows and of the number of threads."""
    cache_dtype = "auto"
    """As in ``KVCacheSpec``; chosen with the backend."""

    @staticmethod
    def bytes_per_block(spec: KVCacheSpec) -> int:
        """Bytes one block takes at all places."""
        return spec.num_places * spec.block_size * spec.elements * spec.dtype.itemsize

    @staticmethod
    def allocate(spec: KVCacheSpec, num_blocks: int, device: torch.device) -> list[torch.Tensor]:
        """A cache for each of ``spec.layers``; unspecified until written.

        Default layout: [2 (keys, values), blocks, Hkv, block size, D], or [1, blocks, 1, block size, R + P] for
        latents. The distance between blocks is that of the layer with the most values.
        """
        if not spec.layers:
            return []
        planes = spec.layers[0].shape[0]
        whole = (planes, num_blocks, spec.block_size * spec.elements // planes)
        memories = [torch.empty(whole, dtype=spec.dtype, device=device) for _ in range(spec.num_places)]

        def view(memory: torch.Tensor, layer: LayerCacheSpec) -> torch.Tensor:
            _, heads, width = layer.shape
            used = memory[..., : heads * spec.block_size * width]
            return used.view(planes, num_blocks, heads, spec.block_size, width)

        return spec.caches(memories, view)

    @staticmethod
    def copy_blocks(kv_cache: torch.Tensor, sources: torch.Tensor, targets: torch.Tensor) -> None:
        """Copy the blocks ``sources`` [N] to ``targets`` [N], all at once; int64, on the device.

        ``kv_cache`` is of any layer at a place; what others there keep in the blocks is copied, too.
        """
        planes, blocks, distance = *kv_cache.shape[:2], kv_cache.stride(1)
        whole = kv_cache.as_strided((planes, blocks, distance), (kv_cache.stride(0), distance, 1))
        whole[:, targets] = whole[:, sources]

    @abstractmethod
    def numerics(self, spec: KVCacheSpec) -> str:
        """A description, equal for backends and caches that give a row the same bits on the same processor."""

    @abstractmethod
    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        metadata: AttentionMetadata,
        options: AttentionOptions,
    ) -> torch.Tensor:
        """Store ``key`` and ``value`` [T, Hkv, D], then attend with ``query`` [T, Hq, D]; returns [T, Hq · D].

        A row at position p attends to positions 0 … p of its own sequence, or those of its window, and, ``both_ways``,
        to those up to its picture's end. Blocks are visited in one fixed order, so a row's result does not depend on
        the rest of the step. Changes ``kv_cache`` only.
        Without keys ([T, 0, D]) nothing is stored: another layer has written the step's.
        """

    @abstractmethod
    def forward_latents(
        self,
        query: torch.Tensor,
        query_rope: torch.Tensor,
        latent: torch.Tensor,
        rope: torch.Tensor,
        kv_cache: torch.Tensor,
        metadata: AttentionMetadata,
        options: AttentionOptions,
    ) -> torch.Tensor:
        """Store ``latent`` [T, R] and ``rope`` [T, P], then attend over them; returns weighted latents [T, Hq, R].

        A score is ``query`` [T, Hq, R] · latent + ``query_rope`` [T, Hq, P] · rotated part. Otherwise as ``forward``.
        """

    def forward_heads(
        self,
        heads: torch.Tensor,
        rotate: RotaryOp,
        angles: Angles | None,
        kv_cache: torch.Tensor,
        metadata: AttentionMetadata,
        options: AttentionOptions,
    ) -> torch.Tensor:
        """Like ``forward``, for ``heads`` not rotated yet; may overwrite them."""
        query, key, value = rotate(heads, angles)
        return self.forward(query, key, value, kv_cache, metadata, options)

    def plan(self, metadata: AttentionMetadata, size: int | None = None) -> None:  # noqa: B027
        """Prepare the next step of a model whose layers are one group; ``metadata`` is on the host.

        ``size``: of the CUDA graph that will compute the step, if any. Only for backends that plan on the host.
        """


def with_dense_rows(x: torch.Tensor) -> torch.Tensor:
    """``x`` [T, heads, D], copied unless each row is contiguous; rows may lie apart."""
    return x if x.stride(2) == 1 and x.stride(1) == x.shape[2] else x.contiguous()
