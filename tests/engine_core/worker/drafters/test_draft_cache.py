"""The blocks of a drafter's cache: which tokens they hold, for models that begin anywhere in a sequence."""

import numpy as np
import numpy.typing as npt
import torch

from engine_core.attention.base import KVCacheSpec
from engine_core.attention.torch_reference import TorchAttention
from engine_core.kv_cache_interface import AttentionSpec, KVCacheGroup
from engine_core.worker.drafters.draft_cache import DraftCache, in_one_group

SPEC = KVCacheSpec((AttentionSpec(2, 8), AttentionSpec(1, 8)), 4, torch.float32, (KVCacheGroup((0, 1)),))


def make_cache(num_blocks: int = 6, num_groups: int = 1) -> DraftCache:
    return DraftCache(
        SPEC,
        TorchAttention(),
        torch.device("cpu"),
        num_blocks=num_blocks,
        num_slots=3,
        max_model_len=16,
        num_groups=num_groups,
    )


def counts(*values: int) -> npt.NDArray[np.int64]:
    return np.array(values, np.int64)


def slots(*values: int) -> npt.NDArray[np.intp]:
    return np.array(values, np.intp)


def test_grow_takes_all_blocks_or_none() -> None:
    cache = make_cache()
    assert cache.grow(0, 16)
    assert cache.num_free_blocks == 2
    assert not cache.grow(1, 9)
    assert cache.num_free_blocks == 2
    assert cache.grow(1, 8)
    cache.forget(0)
    assert cache.num_free_blocks == 4


def test_no_sequence_is_longer_than_its_table() -> None:
    assert not make_cache(num_blocks=100).grow(0, 17)


def test_truncating_frees_what_only_dropped_tokens_need() -> None:
    cache = make_cache()
    assert cache.grow(0, 10)
    cache.advance(cache.rows(slots(0), counts(10)))
    cache.truncate(0, 5)
    assert cache.num_computed[0] == 5
    assert cache.num_free_blocks == 4
    cache.truncate(0, 7)  # drops nothing that is there
    assert cache.num_computed[0] == 5


def test_a_step_writes_behind_the_tokens_held() -> None:
    cache = make_cache(num_groups=2)
    assert cache.grow(2, 3)
    assert cache.grow(1, 6)
    cache.advance(cache.rows(slots(2, 1), counts(3, 5)))
    assert cache.grow(2, 5)
    rows = cache.rows(slots(1, 2), counts(1, 2))
    assert rows.positions.tolist() == [5, 3, 4]
    assert rows.first_positions.tolist() == [5, 3]
    assert rows.row_slots.tolist() == [1, 2, 2]
    assert rows.last_rows.tolist() == [0, 2]
    first, second = rows.metadata
    assert [first.group, second.group] == [0, 1]
    assert first.seq_lens.tolist() == [6, 5]
    assert (first.max_seq_len, first.max_query_len) == (6, 2)
    written = first.slot_mapping.tolist()
    tables = first.block_tables.tolist()
    assert written == [tables[0][1] * 4 + 1, tables[1][0] * 4 + 3, tables[1][1] * 4]


def test_positions_of_a_slot_that_begins_in_the_middle_are_those_of_its_sequence() -> None:
    cache = make_cache()
    cache.begin(0, 100)
    assert cache.grow(0, 105)  # five tokens
    assert cache.num_free_blocks == 4
    rows = cache.rows(slots(0), counts(5))
    assert rows.positions.tolist() == [100, 101, 102, 103, 104]
    assert rows.metadata[0].seq_lens.tolist() == [5]
    cache.advance(rows)
    assert cache.num_computed[0] == 105
    cache.truncate(0, 50)
    assert (cache.num_computed[0], cache.num_free_blocks) == (100, 6)
    cache.begin(0, 7)
    assert cache.rows(slots(0), counts(1)).positions.tolist() == [7]


def test_no_token_is_overwritten_while_it_is_held() -> None:
    cache, random = make_cache(), np.random.default_rng(0)
    places: dict[tuple[int, int], int] = {}
    for _ in range(500):
        slot, length = int(random.integers(3)), int(random.integers(1, 17))
        more = length - int(cache.num_computed[slot])
        if more > 0 and cache.grow(slot, length):
            rows = cache.rows(slots(slot), counts(more))
            cache.advance(rows)
            for position, place in zip(rows.positions.tolist(), rows.metadata[0].slot_mapping.tolist(), strict=True):
                places[slot, position] = place
        elif random.random() < 0.5:
            cache.truncate(slot, length)
        else:
            cache.forget(slot)
        places = {key: place for key, place in places.items() if key[1] < cache.num_computed[key[0]]}
        assert len(places) == cache.num_computed.sum() == len(set(places.values()))


def test_one_group_of_all_layers_has_room_for_each_at_every_block() -> None:
    two_groups = KVCacheSpec(SPEC.layers, 4, torch.float32, (KVCacheGroup((0,)), KVCacheGroup((1,), 8)))
    assert in_one_group(two_groups) == SPEC
