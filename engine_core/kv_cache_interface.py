"""What the scheduler and the workers both know of the KV cache: its groups of layers, and its size; no torch.

Layers that see the same tokens share a block table: they are a *group*. Groups are of equal size (the last one of a
kind may be smaller), so that a block takes as many bytes in any of them, and one pool of blocks serves them all. This
is how vLLM's hybrid KV cache manager divides a cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

NO_BLOCK = -1
"""In a block table: nothing reads these tokens any more, or ever did."""


@dataclass(frozen=True, slots=True)
class KVCacheGroup:
    """Layers with one block table."""

    layers: tuple[int, ...]
    """Their numbers in the model."""
    sliding_window: int | None = None
    """How many tokens a token sees, itself included; None: all before it."""

    def first_block(self, position: int, block_size: int) -> int:
        """The first block that the token at ``position`` reads."""
        return 0 if self.sliding_window is None else max(0, position - self.sliding_window + 1) // block_size

    def most_blocks(self, num_tokens: int, step_tokens: int, block_size: int) -> int:
        """Blocks that a sequence of ``num_tokens`` has at most at a time, computed by ``step_tokens`` a step.

        Beside the window and the step, these are a window behind the prompt, held for other choices of the request.
        """
        blocks = -(-num_tokens // block_size)
        if self.sliding_window is None:
            return blocks
        behind = self.sliding_window - 1
        return min(blocks, -(-(behind + step_tokens) // block_size) + 1 + -(-behind // block_size) + 1)


@dataclass(frozen=True, slots=True)
class KVCacheConfig:
    """The KV cache as allocated."""

    num_blocks: int
    block_size: int
    bytes_per_block: int
    groups: tuple[KVCacheGroup, ...] = (KVCacheGroup((0,)),)
    layout: str = ""
    """How a block lies in memory, and what of: equal where blocks could be exchanged."""


def group_layers(sliding_windows: Sequence[int | None]) -> tuple[KVCacheGroup, ...]:
    """The groups of a model whose layers have these windows.

    The kind with the fewest layers tells the size of a group, unless kinds have about as many layers: then the largest
    does, and less room is left empty than further groups would take.
    """
    kinds: dict[int | None, list[int]] = {}
    for layer, window in enumerate(sliding_windows):
        kinds.setdefault(window, []).append(layer)
    counts = [len(layers) for layers in kinds.values()]
    size = max(counts) if 4 * max(counts) <= 5 * min(counts) else min(counts)
    return tuple(
        KVCacheGroup(tuple(layers[first : first + size]), window)
        for window, layers in kinds.items()
        for first in range(0, len(layers), size)
    )


def blocks_of_longest(groups: Sequence[KVCacheGroup], max_model_len: int, step_tokens: int, block_size: int) -> int:
    """Blocks that the longest sequence has at most at a time, computed by up to ``step_tokens`` a step."""
    return sum(group.most_blocks(max_model_len, step_tokens, block_size) for group in groups)
