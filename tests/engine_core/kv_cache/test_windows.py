"""Sliding windows in the cache: what is held, what is given back, what is found again."""

from __future__ import annotations

import pytest

from engine_core.errors import OutOfMemoryError
from tests.engine_core.scheduling.harness import Harness

WINDOW = 6
"""One and a half blocks of 4 tokens, so that up to three are read."""


def test_a_sequence_holds_what_its_window_shows() -> None:
    engine = Harness(windows=[WINDOW])
    engine.add("a", 9, max_tokens=40)
    held = set()
    engine.step()
    while engine.scheduler.has_work():
        held.add(engine.used)
        engine.step()
    assert held == {2}  # the third comes with a step and goes with its results
    engine.finish()


def test_every_group_has_blocks_of_its_own() -> None:
    engine = Harness(windows=[None, WINDOW])
    engine.add("a", 9, max_tokens=40)
    engine.step_until(lambda: engine.plan is not None and engine.plan.step_id == 31)
    assert engine.used == 10 + 2  # 40 tokens are computed
    engine.finish()


def test_a_prompt_longer_than_the_whole_cache() -> None:
    """It is computed in chunks, and no chunk needs more than the window before it."""
    engine = Harness(windows=[WINDOW], blocks=8, max_num_batched_tokens=8)
    engine.add("a", 50, max_tokens=10)
    engine.finish()
    assert engine.scheduler.stats().preemptions == 0
    with pytest.raises(OutOfMemoryError, match="has 7 blocks of 4 tokens, fewer than the 8 that a sequence of"):
        Harness(windows=[WINDOW], blocks=7, max_num_batched_tokens=8)


@pytest.mark.parametrize("windows", [[WINDOW], [None, WINDOW], [WINDOW, 11, None]])
def test_prefixes_are_found_across_and_behind_the_window(windows: list[int | None]) -> None:
    """Blocks that a window has left can be found as long as nobody has taken them."""
    engine = Harness(windows=windows, prefix_caching=True, max_num_batched_tokens=8)
    prompt = [2 + at % 30 for at in range(40)]
    engine.add("first", prompt, max_tokens=1)
    engine.finish()
    for length in (41, 24, 13, 5):
        engine.add(f"{length}", [*prompt[: length - 1], 33], max_tokens=3)
        engine.finish()
        assert engine.streams[f"{length}"].cached_tokens == (length - 1) // 4 * 4


def test_a_prefix_ends_where_a_window_lacks_a_block() -> None:
    engine = Harness(windows=[WINDOW, None], prefix_caching=True)
    prompt = [2 + at % 30 for at in range(40)]
    engine.add("first", prompt, max_tokens=1)
    engine.finish()
    engine.add("again", [*prompt, 33], max_tokens=1)
    seq = engine.scheduler._queue.peek(set())
    prefix = engine.scheduler._kv.find_prefix(seq)
    assert prefix.num_blocks == 10
    assert [table.count(-1) for table in prefix.block_tables] == [8, 0]  # the token at 40 sees from 35 on
    # Without block 8 of the window's group the longest prefix is 8 blocks: a token at 36 would read it, too.
    pool = engine.scheduler._kv.pool
    del pool._by_hash[seq.block_hashes[8]]
    pool._hash[prefix.block_tables[0][8]] = None
    shorter = engine.scheduler._kv.find_prefix(seq)
    assert shorter.num_blocks == 8
    assert [table.count(-1) for table in shorter.block_tables] == [6, 0]


def test_choices_start_from_the_window_behind_their_prompt() -> None:
    engine = Harness(windows=[WINDOW, None], max_num_seqs=2)
    engine.add("a", 21, n=5, max_tokens=12)
    engine.finish()
    introduced = [new for plan in engine.executor.plans for new in plan.new]
    assert [new.num_computed_tokens for new in introduced] == [0, 20, 20, 20, 20]
    assert [table.count(-1) for table in introduced[1].block_ids] == [3, 0]  # the token at 20 sees from 15 on


def test_a_prompt_that_reports_on_itself_is_shared_when_a_chunk_ends_in_its_last_block() -> None:
    engine = Harness(windows=[5], max_num_seqs=2, max_num_batched_tokens=27)
    engine.add("a", 30, n=3, max_tokens=6, prompt_logprobs=0)  # 28 tokens are shared, 29 must be computed before
    engine.finish()
    introduced = [new for plan in engine.executor.plans for new in plan.new]
    assert [new.num_computed_tokens for new in introduced] == [0, 28, 28]


@pytest.mark.parametrize("prompt_logprobs", [None, 0])
def test_a_prompt_that_finds_no_room_to_move_on_is_not_admitted(prompt_logprobs: int | None) -> None:
    """Else its first chunk would be computed again and again, until others have ended."""
    engine = Harness(windows=[12], blocks=16, max_num_batched_tokens=8, prefix_caching=True)
    for name in "abc":
        engine.add(name, 12, max_tokens=40)
    engine.step_until(lambda: len(engine.batch) == 3)
    engine.add("late", 50, max_tokens=2, prompt_logprobs=prompt_logprobs)
    engine.finish()
    assert engine.scheduler.stats().preemptions == 0
    assert engine.scheduler.stats().computed_tokens == 3 * (12 + 39) + 50 + 1


def test_a_preempted_choice_whose_window_has_moved_on_computes_its_prompt_again() -> None:
    engine = Harness(windows=[WINDOW, None], blocks=26, max_num_seqs=3, max_num_batched_tokens=16)
    engine.add("a", 9, n=3, max_tokens=40)
    engine.finish()
    assert engine.scheduler.stats().preemptions > 0
