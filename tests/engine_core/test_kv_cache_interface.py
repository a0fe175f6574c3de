"""Groups of layers: which share a block table, how many blocks they hold, and how they are described."""

from __future__ import annotations

import pytest

from engine_core.kv_cache_interface import KVCacheConfig, KVCacheGroup, blocks_of_longest, first_seen, group_layers

WINDOW = 6
"""One and a half blocks of 4 tokens, so that up to three are read."""


def test_layers_of_a_kind_are_a_group() -> None:
    assert group_layers([None] * 3) == (KVCacheGroup((0, 1, 2)),)
    assert group_layers([8] * 2) == (KVCacheGroup((0, 1), 8),)
    assert group_layers([None, 8, None, 8]) == (KVCacheGroup((0, 2)), KVCacheGroup((1, 3), 8))


def test_the_smallest_kind_tells_the_size_of_groups_unless_kinds_are_about_alike() -> None:
    assert [group.layers for group in group_layers([8, 8, None, 8, 8, 8])] == [(0,), (1,), (3,), (4,), (5,), (2,)]
    assert [group.layers for group in group_layers([None, None, 8, 8, 8])] == [(0, 1), (2, 3), (4,)]
    assert [group.layers for group in group_layers([None] * 4 + [8] * 5)] == [(0, 1, 2, 3), (4, 5, 6, 7, 8)]


def test_blocks_of_the_longest_sequence() -> None:
    assert blocks_of_longest(group_layers([None]), 64, step_tokens=8, block_size=4) == 16
    # Five tokens behind and a step of eight, wherever they begin in a block; and as much behind a prompt that is held.
    assert blocks_of_longest(group_layers([WINDOW]), 64, step_tokens=8, block_size=4) == 5 + 3
    assert blocks_of_longest(group_layers([WINDOW]), 64, step_tokens=200, block_size=4) == 16
    assert blocks_of_longest(group_layers([WINDOW, None]), 64, step_tokens=8, block_size=4) == 16 + 8


def test_blocks_held_by_a_sequence_alone() -> None:
    window, everything = KVCacheGroup((0,), WINDOW), KVCacheGroup((0,))
    assert [everything.held_blocks(tokens, 1, 4) for tokens in (1, 4, 5, 64)] == [1, 1, 2, 16]
    assert [window.held_blocks(tokens, 1, 4) for tokens in (1, 4, 5, 64)] == [1, 1, 2, 3]
    assert [window.held_blocks(64, step, 4) for step in (8, 200)] == [5, 16]


def test_a_chunk_begins_at_a_multiple_of_its_size() -> None:
    chunks, everything = group_layers([WINDOW, None], chunked=True)
    assert (chunks.chunked, everything.chunked) == (True, False)
    assert [first_seen(position, WINDOW, chunked=True) for position in (0, 5, 6, 11, 12)] == [0, 0, 6, 6, 12]
    assert [chunks.first_block(position, 4) for position in (5, 6, 11, 12, 17, 18)] == [0, 1, 1, 3, 3, 4]
    for group in (chunks, KVCacheGroup((0,), WINDOW), KVCacheGroup((0,), 1), KVCacheGroup((0,), 8, chunked=True)):
        for block in range(9):
            first = group.first_position_after(block, 4)
            assert group.first_block(first - 1, 4) <= block < group.first_block(first, 4)


@pytest.mark.parametrize(
    ("windows", "described"),
    [
        ((None, None), "9 blocks of 4: 36 tokens"),
        ((20, 20, 20), "9 blocks of 4 tokens, each for one group of layers: 1 group of 3 layers over a window of 20"),
        (
            (20, None, 20, 20),
            "9 blocks of 4 tokens, each for one group of layers: "
            "3 groups of 1 layer over a window of 20, 1 group of 1 layer over all tokens",
        ),
    ],
)
def test_equal_groups_of_layers_are_described_once(windows: tuple[int | None, ...], described: str) -> None:
    assert KVCacheConfig(9, 4, 1, group_layers(windows)).describe() == described
