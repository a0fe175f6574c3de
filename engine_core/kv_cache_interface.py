"""The KV cache as both the scheduler and the workers know it: data per token and layer, layer groups, states, size; no
torch.

Layers that attend to the same tokens and store the same amount per token form a *group* with one block table. Groups
are of equal size (the last one of a kind may be smaller), so that one pool of blocks serves them all: a block takes the
bytes of the largest group in each of them. vLLM's hybrid KV cache manager divides a cache in the same way.

Layers with a recurrence or a short convolution keep a *state* per sequence instead of data per token. A *slot* holds
one state of all these layers: a running sequence's working state, or a snapshot of one at a block's end.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Self

NO_BLOCK = -1
"""Entry of a block table for tokens that are never read again."""
_UNIT = 16
"""Channels that ranks share are cut in multiples of this: ``distributed.ranks.UNIT``."""
NO_STATE = -1
"""The slot of a sequence's state before its first token: all zeros."""
SPARE_SLOTS = 2
"""Free slots that snapshots and drafts leave: a sequence takes as many to start, one to work in and its source."""


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """The cache data of a layer per token: a key and a value for each head."""

    num_kv_heads: int
    head_dim: int

    @property
    def shape(self) -> tuple[int, int, int]:
        """Shape of a token's cache data: (keys and values, heads, width)."""
        return 2, self.num_kv_heads, self.head_dim

    @property
    def elements(self) -> int:
        """Number of values in a token's cache data."""
        return math.prod(self.shape)

    def operations(self, num_heads: int) -> int:
        """Additions and multiplications per token and token that it attends to, with ``num_heads`` query heads."""
        return 4 * num_heads * self.head_dim

    def padded(self, pad: Callable[[int], int]) -> Self:
        """A copy with ``pad`` applied to every width that kernels work on."""
        return type(self)(self.num_kv_heads, pad(self.head_dim))

    def of_rank(self, ranks: int) -> Self:
        """The part kept by one of ``ranks`` ranks: its heads, or a copy of one that several ranks need."""
        return type(self)(max(1, self.num_kv_heads // ranks), self.head_dim)


@dataclass(frozen=True, slots=True)
class MLAAttentionSpec:
    """The cache data of a multi-head latent attention layer per token, for all heads: a latent and a rotated part."""

    kv_lora_rank: int
    """Width of the latent."""
    qk_rope_head_dim: int

    @property
    def shape(self) -> tuple[int, int, int]:
        """Shape of a token's cache data, with the axes of ``AttentionSpec.shape``."""
        return 1, 1, self.kv_lora_rank + self.qk_rope_head_dim

    @property
    def elements(self) -> int:
        """Number of values in a token's cache data."""
        return math.prod(self.shape)

    def operations(self, num_heads: int) -> int:
        """Additions and multiplications per token and token that it attends to, with ``num_heads`` query heads."""
        return 2 * num_heads * (self.elements + self.kv_lora_rank)

    def padded(self, pad: Callable[[int], int]) -> Self:
        """A copy with ``pad`` applied to every width that kernels work on."""
        return type(self)(pad(self.kv_lora_rank), pad(self.qk_rope_head_dim))

    def of_rank(self, ranks: int) -> Self:
        """The part kept by one of ``ranks`` ranks: all of it, as every head reads all."""
        return self


LayerCacheSpec = AttentionSpec | MLAAttentionSpec


@dataclass(frozen=True, slots=True)
class ShortConvSpec:
    """The state of a layer with a short convolution alone: the last inputs of each channel."""

    channels: int
    conv_width: int
    """Inputs kept of each channel: one fewer than the convolution has taps."""

    @property
    def conv_shape(self) -> tuple[int, int]:
        """Shape of the last inputs, in the model's type: (inputs, channels)."""
        return self.conv_width, self.channels

    @property
    def recurrent_shape(self) -> None:
        """There is no recurrence."""
        return None

    @property
    def operations(self) -> int:
        """Of a token: two per multiply-add."""
        return 2 * self.channels * (self.conv_width + 1)

    def nbytes(self, itemsize: int) -> int:
        """Bytes of a state; ``itemsize`` is that of the model's type."""
        return math.prod(self.conv_shape) * itemsize

    def padded(self, pad: Callable[[int], int]) -> Self:
        """A copy with ``pad`` applied to every width that kernels work on."""
        return type(self)(pad(self.channels), self.conv_width)

    def of_rank(self, ranks: int) -> Self:
        """The most that one of ``ranks`` ranks keeps: its channels, cut in units of ``UNIT``."""
        return type(self)(-(-self.channels // (ranks * _UNIT)) * _UNIT if ranks > 1 else self.channels, self.conv_width)


@dataclass(frozen=True, slots=True)
class RecurrentSpec:
    """The state of a layer with a linear recurrence (Gated DeltaNet, Mamba-2) after a short convolution.

    Mamba-2's B and C are its keys and queries; its groups are key heads, and its state size is their width.
    """

    num_key_heads: int
    num_heads: int
    """Value heads; neighbouring ones share a key head."""
    key_dim: int
    value_dim: int
    conv_width: int
    """As in ``ShortConvSpec``."""

    @property
    def channels(self) -> int:
        """Channels of the convolution: queries, keys and values of all heads."""
        return 2 * self.num_key_heads * self.key_dim + self.num_heads * self.value_dim

    @property
    def conv_shape(self) -> tuple[int, int]:
        """As in ``ShortConvSpec``."""
        return self.conv_width, self.channels

    @property
    def recurrent_shape(self) -> tuple[int, int, int]:
        """Shape of the recurrent state, in float32: (heads, width of a key, width of a value)."""
        return self.num_heads, self.key_dim, self.value_dim

    @property
    def operations(self) -> int:
        """As in ``ShortConvSpec``. Recalls a key, adds one, and reads by a query, after a factor for all."""
        return 2 * self.channels * (self.conv_width + 1) + 7 * math.prod(self.recurrent_shape)

    def nbytes(self, itemsize: int) -> int:
        """As in ``ShortConvSpec``."""
        return math.prod(self.conv_shape) * itemsize + math.prod(self.recurrent_shape) * 4

    def padded(self, pad: Callable[[int], int]) -> Self:
        """A copy with ``pad`` applied to every width that kernels work on."""
        return replace(self, key_dim=pad(self.key_dim), value_dim=pad(self.value_dim))

    def of_rank(self, ranks: int) -> Self:
        """The part kept by one of ``ranks`` ranks: its heads, and a copy of a key head that several ranks need."""
        return replace(self, num_key_heads=max(1, self.num_key_heads // ranks), num_heads=self.num_heads // ranks)


StateSpec = ShortConvSpec | RecurrentSpec


@dataclass(frozen=True, slots=True)
class KVCacheGroup:
    """Layers with one block table."""

    layers: tuple[int, ...]
    """Their indices among the layers that have a KV cache."""
    sliding_window: int | None = None
    """Number of tokens that a token attends to, itself included; None: all before it."""
    chunked: bool = False
    """Whether the window is a chunk, as ``first_seen`` says."""

    def first_block(self, position: int, block_size: int) -> int:
        """The first block that the token at ``position`` reads."""
        return first_seen(position, self.sliding_window, chunked=self.chunked) // block_size

    def first_position_after(self, block: int, block_size: int) -> int:
        """The first position whose token does not read ``block``. Only for groups with a window."""
        assert self.sliding_window is not None
        end = (block + 1) * block_size
        return -(-end // self.sliding_window) * self.sliding_window if self.chunked else end + self.sliding_window - 1

    def held_blocks(self, num_tokens: int, step_tokens: int, block_size: int) -> int:
        """Most blocks that the only sequence of a request holds at a time.

        With a window, these are the blocks of a step and of the window before it; with a chunk, at most.
        """
        blocks = -(-num_tokens // block_size)
        if self.sliding_window is None:
            return blocks
        return min(blocks, -(-(self.sliding_window - 1 + step_tokens) // block_size) + 1)

    def most_blocks(self, num_tokens: int, step_tokens: int, block_size: int) -> int:
        """Most blocks that a sequence of ``num_tokens`` holds at a time, with up to ``step_tokens`` per step.

        Besides ``held_blocks``, these include a window at the prompt's end, held for the request's other choices.
        """
        held = self.held_blocks(num_tokens, step_tokens, block_size)
        behind = 0 if self.sliding_window is None else -(-(self.sliding_window - 1) // block_size) + 1
        return min(-(-num_tokens // block_size), held + behind)


@dataclass(frozen=True, slots=True)
class KVCacheConfig:
    """The KV cache as allocated."""

    num_blocks: int
    block_size: int
    bytes_per_block: int
    groups: tuple[KVCacheGroup, ...] = (KVCacheGroup((0,)),)
    layout: str = ""
    """Content and memory layout of a block; two caches could exchange blocks only if these are equal."""
    num_states: int = 0
    """Slots for the states of sequences and for snapshots; 0: no layer keeps a state."""
    bytes_per_state: int = 0

    @property
    def nbytes(self) -> int:
        """Bytes of all blocks and slots."""
        return self.num_blocks * self.bytes_per_block + self.num_states * self.bytes_per_state

    def most_running(self, max_num_seqs: int) -> int:
        """How many sequences can run at a time, of ``max_num_seqs``: each works in a slot for its state, if any."""
        if not self.num_states:
            return max_num_seqs
        return min(max_num_seqs, self.num_states - spare_slots(self.num_states))

    def describe(self) -> str:
        """The size of its blocks, for a person; with several groups or windows, also the layers of a block."""
        if not self.groups:
            return "no keys and values, as no layer attends"
        blocks = f"{self.num_blocks} blocks of {self.block_size}"
        if len(self.groups) == 1 and self.groups[0].sliding_window is None:
            return f"{blocks}: {self.num_blocks * self.block_size} tokens"
        kinds = [
            f"{count} group{'s' if count > 1 else ''} of {layers} layer{'s' if layers > 1 else ''} over {seen}"
            for (layers, seen), count in Counter((len(each.layers), _seen(each)) for each in self.groups).items()
        ]
        return f"{blocks} tokens, each for one group of layers: {', '.join(kinds)}"


def _seen(group: KVCacheGroup) -> str:
    """The tokens that one attends to, for a person."""
    if group.sliding_window is None:
        return "all tokens"
    return f"{'chunks' if group.chunked else 'a window'} of {group.sliding_window}"


def first_seen(position: int, window: int | None, *, chunked: bool) -> int:
    """The first token that the one at ``position`` attends to.

    A window slides with the token, or, ``chunked``, begins at a multiple of its size (chunked attention).
    """
    if window is None:
        return 0
    return position // window * window if chunked else max(0, position - window + 1)


def spare_slots(num_states: int) -> int:
    """Slots, of ``num_states``, in which no sequence works: ``SPARE_SLOTS``, and a quarter for snapshots and drafts.

    Without snapshots no prefix would be found just when all places are taken, and most is to be computed.
    """
    return SPARE_SLOTS + num_states // 4


def group_layers(
    sliding_windows: Sequence[int | None],
    specs: Sequence[LayerCacheSpec] | None = None,
    *,
    chunked: bool = False,
) -> tuple[KVCacheGroup, ...]:
    """The groups of a model whose layers have these windows and cache data (None: the same for all).

    ``chunked``: whether windows are chunks.

    A group is as large as the kind with the fewest layers or, if all kinds have about the same number of layers, as the
    largest kind, because that wastes less memory than further groups.
    """
    kinds: dict[tuple[int | None, LayerCacheSpec | None], list[int]] = {}
    for layer, window in enumerate(sliding_windows):
        kinds.setdefault((window, None if specs is None else specs[layer]), []).append(layer)
    if not kinds:
        return ()
    counts = [len(layers) for layers in kinds.values()]
    size = max(counts) if 4 * max(counts) <= 5 * min(counts) else min(counts)
    return tuple(
        KVCacheGroup(tuple(layers[first : first + size]), window, chunked and window is not None)
        for (window, _), layers in kinds.items()
        for first in range(0, len(layers), size)
    )


def blocks_of_longest(groups: Sequence[KVCacheGroup], max_model_len: int, step_tokens: int, block_size: int) -> int:
    """Most blocks that the longest sequence holds at a time, with up to ``step_tokens`` per step."""
    return sum(group.most_blocks(max_model_len, step_tokens, block_size) for group in groups)
