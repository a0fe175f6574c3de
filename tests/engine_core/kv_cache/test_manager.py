"""Blocks of sequences: what the prefix cache finds again, and what it must not; what windows hold and give back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_core.errors import OutOfMemoryError
from engine_core.kv_cache.manager import KVCacheManager
from engine_core.kv_cache.prefix_hashes import block_hashes, root_hash
from engine_core.kv_cache_interface import NO_BLOCK, KVCacheConfig, group_layers
from engine_core.media import MediaItem, VisionShape
from engine_core.sequence import Sequence, SequenceGroup, SequenceState

from ..scheduling.checked_executor import make_picture, model_spec
from ..scheduling.harness import Harness, make_request

WINDOW = 6
"""One and a half blocks of 4 tokens, so that up to three are read."""
PROMPT = tuple(range(2, 24))  # 22 tokens: five full blocks and a half


def caching(**config):
    return Harness(prefix_caching=True, **config)


def test_full_blocks_of_an_equal_prefix_are_found_again():
    engine = caching()
    assert engine.cached("a", PROMPT) == 0
    assert engine.cached("b", PROMPT) == 20
    assert engine.cached("c", PROMPT[:9] + (39,) * 8) == 8
    assert engine.cached("d", PROMPT[1:]) == 0
    stats = engine.scheduler.stats()
    assert (stats.prefix_query_tokens, stats.prefix_hit_tokens) == (22 + 22 + 17 + 21, 28)


def test_a_hit_leaves_at_least_one_token_to_compute():
    engine = caching()
    engine.cached("a", PROMPT)
    assert engine.cached("b", PROMPT[:20]) == 16
    assert engine.cached("c", PROMPT[:4]) == 0
    assert engine.cached("d", PROMPT[:5]) == 4


def test_output_is_found_again_as_part_of_a_longer_prompt():
    engine = caching()
    engine.add("a", PROMPT, max_tokens=12)
    tokens = engine.finish()["a"][0]
    # 33 of 34 tokens were computed, in eight full blocks.
    assert engine.cached("b", PROMPT + tuple(tokens) + (5,)) == 32


def test_blocks_are_shared_while_their_first_user_still_runs():
    engine = caching()
    engine.add("a", PROMPT, max_tokens=20)
    engine.step()
    assert engine.used == 6
    engine.add("b", PROMPT, max_tokens=20)
    engine.step()
    assert engine.used == 7
    engine.cancel("a")
    engine.cancel("b")
    assert engine.used == 0


def test_a_salt_keeps_requests_apart():
    engine = caching()
    assert engine.cached("a", PROMPT, salt=b"x") == 0
    assert engine.cached("b", PROMPT, salt=b"y") == 0
    assert engine.cached("c", PROMPT) == 0
    assert engine.cached("d", PROMPT, salt=b"x") == 20


def test_requests_for_prompt_logprobs_compute_their_whole_prompt_but_serve_others():
    engine = caching()
    engine.cached("a", PROMPT)
    assert engine.cached("b", PROMPT, prompt_logprobs=0) == 0
    assert len(engine.streams["b"].prompt_logprobs) == len(PROMPT) - 1
    assert engine.scheduler.stats().prefix_query_tokens == len(PROMPT), "who does not ask does not miss"
    engine.scheduler.reset_prefix_cache()
    engine.cached("c", PROMPT, prompt_logprobs=0)
    assert engine.cached("d", PROMPT) == 20


def test_a_preempted_sequence_finds_what_is_left_of_its_own_blocks():
    engine = caching(blocks=16)
    engine.add("first", 30, max_tokens=30)
    engine.step()
    engine.add("second", 26, max_tokens=30)
    engine.step_until_preemption()
    engine.step_until(lambda: engine.plan.new)
    assert engine.plan.new[0].num_computed_tokens > 0
    engine.finish()
    assert engine.streams["second"].cached_tokens == 0
    assert engine.scheduler.stats().prefix_hit_tokens == 0  # its own work is no hit


def test_the_tail_of_an_old_prefix_is_evicted_before_its_head():
    engine = caching(blocks=16)
    engine.cached("old", 40)
    engine.cached("new", 36)
    assert 0 < engine.cached("again", engine.streams["old"].request.prompt_token_ids) < 36


def test_reset_forgets_everything_also_what_is_in_use():
    engine = caching()
    engine.cached("a", PROMPT)
    engine.add("running", PROMPT, max_tokens=30)
    engine.step()
    engine.scheduler.reset_prefix_cache()
    engine.add("b", PROMPT)
    engine.step()
    assert engine.streams["b"].cached_tokens == 0
    engine.finish()


def test_nothing_that_rests_on_forgotten_blocks_is_found():
    engine = caching()
    engine.add("running", PROMPT, max_tokens=20, n=2)
    engine.step()
    engine.scheduler.reset_prefix_cache()
    tokens = engine.finish()["running"]
    for choice, output in tokens.items():
        # The first 28 tokens are found again once another request has computed them; what followed them is not.
        assert engine.cached(f"again {choice}", PROMPT + tuple(output[:8])) == 20 * choice
        assert engine.cached(f"longer {choice}", PROMPT + tuple(output)) == 28


@pytest.mark.parametrize(("prompt", "found"), [(PROMPT, 20), (PROMPT[:2], 12)])
def test_a_choice_that_starts_from_forgotten_blocks_publishes_nothing(prompt, found):
    """One whose prompt is shorter than a block starts from none, and publishes all that it computes."""
    engine = caching(max_num_seqs=1)
    engine.add("r", prompt, n=2, max_tokens=12)
    engine.step()
    engine.scheduler.reset_prefix_cache()
    output = engine.finish()["r"][1]
    assert engine.cached("fresh", prompt) == 0
    assert engine.cached("after", prompt + tuple(output)) == found


def test_a_choice_that_starts_from_forgotten_blocks_finds_no_later_ones():
    """They may be of other weights."""
    engine = caching(max_num_seqs=2)
    output = (30, 31) * 4
    engine.add("r", PROMPT, n=2, resume={0: (), 1: output}, max_tokens=20)
    engine.step()
    engine.scheduler.reset_prefix_cache()
    assert engine.batch == [("r", 0, 22)]
    engine.add("fresh", PROMPT + output + (32,), priority=-1, max_tokens=1)
    engine.step()
    assert engine.streams["fresh"].done
    engine.step()
    assert engine.batch[-1] == ("r", 1, 10)
    engine.finish()


def test_a_preempted_sequence_publishes_again_what_it_computes_after_a_reset():
    engine = caching(blocks=16)
    engine.add("first", 30, max_tokens=30)
    engine.step()
    engine.add("second", 26, max_tokens=30)
    engine.scheduler.reset_prefix_cache()
    engine.step_until_preemption()
    engine.finish()
    assert engine.cached("again", engine.streams["second"].request.prompt_token_ids) == 24


def test_a_prompt_is_found_as_long_as_one_of_those_who_computed_it_runs():
    engine = caching(blocks=16)
    engine.add("a", PROMPT, max_tokens=1)
    engine.add("b", PROMPT, max_tokens=12)
    engine.step()
    engine.add("evicts", 36, max_tokens=1)
    engine.step()
    assert engine.streams["evicts"].done
    engine.add("c", PROMPT)
    engine.step()
    assert engine.streams["c"].cached_tokens == 20
    engine.finish()


def test_a_choice_whose_prompt_is_held_is_not_kept_out_by_copies_of_it():
    engine = caching(blocks=13, max_model_len=52)
    engine.add("a", PROMPT[:21], max_tokens=6)
    engine.add("b", PROMPT[:21], n=2, max_tokens=30)
    engine.step_until_preemption()
    assert engine.used == 12, "b's choices wait, and its prompt is held for them beside a's equal one"
    engine.finish()


def test_a_sequence_holds_what_its_window_shows():
    engine = Harness(windows=[WINDOW])
    engine.add("a", 9, max_tokens=40)
    held = set()
    engine.step()
    while engine.scheduler.has_work():
        held.add(engine.used)
        engine.step()
    assert held == {2}  # the third comes with a step and goes with its results
    engine.finish()


def test_every_group_has_blocks_of_its_own():
    engine = Harness(windows=[None, WINDOW])
    engine.add("a", 9, max_tokens=40)
    engine.step_until(lambda: engine.plan is not None and engine.plan.step_id == 31)
    assert engine.used == 10 + 2  # 40 tokens are computed
    engine.finish()


def test_a_prompt_longer_than_the_whole_cache():
    """It is computed in chunks, and no chunk needs more than the window before it."""
    engine = Harness(windows=[WINDOW], blocks=8, max_num_batched_tokens=8)
    engine.add("a", 50, max_tokens=10)
    engine.finish()
    assert engine.scheduler.stats().preemptions == 0
    with pytest.raises(OutOfMemoryError, match="has 7 blocks of 4 tokens, fewer than the 8 that a sequence of"):
        Harness(windows=[WINDOW], blocks=7, max_num_batched_tokens=8)


@pytest.mark.parametrize(
    ("windows", "chunks"),
    [([WINDOW], False), ([None, WINDOW], False), ([WINDOW, 11, None], False), ([None, WINDOW], True)],
)
def test_prefixes_are_found_across_and_behind_the_window(windows, chunks):
    """Blocks that a window has left can be found as long as nobody has taken them."""
    engine = Harness(windows=windows, window_chunks=chunks, prefix_caching=True, max_num_batched_tokens=8)
    prompt = [2 + at % 30 for at in range(40)]
    engine.cached("first", prompt, max_tokens=1)
    for length in (41, 24, 13, 5):
        found = engine.cached(f"{length}", [*prompt[: length - 1], 33], max_tokens=3)
        assert found == (length - 1) // 4 * 4


def test_a_prefix_ends_where_a_window_lacks_a_block():
    config = KVCacheConfig(64, 4, 1, group_layers([WINDOW, None]))
    manager = KVCacheManager(config, step_tokens=64, prefix_caching=True)
    group = SequenceGroup(make_request("r", 41), model_spec(), 0.0, 4, priority=0, tenant="")
    first, again = (Sequence(number, group, 0, SequenceState.QUEUED) for number in range(2))
    manager.admit(first, manager.find_prefix(first), headroom=0)
    manager.publish(first, 40)
    prefix = manager.find_prefix(again)
    assert prefix.num_blocks == 10
    assert [table.count(NO_BLOCK) for table in prefix.block_tables] == [8, 0]  # the token at 40 sees from 35 on
    # Without block 8 of the window's group the longest prefix is 8 blocks: a token at 36 would read it, too.
    manager.pool.release([first.block_tables[0][8]])
    manager.pool.allocate(manager.pool.num_free)
    shorter = manager.find_prefix(again)
    assert shorter.num_blocks == 8
    assert [table.count(NO_BLOCK) for table in shorter.block_tables] == [6, 0]


def test_a_prefix_that_ends_with_a_chunk_needs_no_block_of_it():
    """Of groups that see all, it needs every block."""
    config = KVCacheConfig(64, 4, 1, group_layers([8, None], chunked=True))
    manager = KVCacheManager(config, step_tokens=64, prefix_caching=True)
    group = SequenceGroup(make_request("r", 41), model_spec(), 0.0, 4, priority=0, tenant="")
    first, again = (Sequence(number, group, 0, SequenceState.QUEUED) for number in range(2))
    manager.admit(first, manager.find_prefix(first), headroom=0)
    assert (first.num_computed, manager.next_change(first)) == (0, 4)
    manager.publish(first, 40)
    manager.release_skipped_blocks(first, 39)
    assert [table.count(NO_BLOCK) for table in first.block_tables] == [8, 0]
    assert manager.next_change(first) == 40  # a new chunk begins
    manager.release_skipped_blocks(first, 40)
    manager.pool.allocate(manager.pool.num_free)
    chunks, everything = manager.find_prefix(again).block_tables
    assert chunks == [NO_BLOCK] * 10  # the token at 40 sees itself alone
    assert everything == first.block_tables[1][:10]


def test_choices_start_from_the_window_behind_their_prompt():
    engine = Harness(windows=[WINDOW, None], max_num_seqs=2)
    engine.add("a", 21, n=5, max_tokens=12)
    engine.finish()
    introduced = [new for plan in engine.executor.plans for new in plan.new]
    assert [new.num_computed_tokens for new in introduced] == [0, 20, 20, 20, 20]
    assert [table.count(NO_BLOCK) for table in introduced[1].block_ids] == [3, 0]  # the token at 20 sees from 15 on


def test_a_prompt_with_logprobs_is_shared_when_a_chunk_ends_in_its_last_block():
    engine = Harness(windows=[5], max_num_seqs=2, max_num_batched_tokens=27)
    engine.add("a", 30, n=3, max_tokens=6, prompt_logprobs=0)  # 28 tokens are shared, 29 must be computed before
    engine.finish()
    introduced = [new for plan in engine.executor.plans for new in plan.new]
    assert [new.num_computed_tokens for new in introduced] == [0, 28, 28]


@pytest.mark.parametrize("prompt_logprobs", [None, 0])
def test_a_prompt_that_finds_no_room_to_move_on_is_not_admitted(prompt_logprobs):
    """Else its first chunk would be computed again and again, until others have ended."""
    engine = Harness(windows=[12], blocks=16, max_num_batched_tokens=8, prefix_caching=True)
    for name in "abc":
        engine.add(name, 12, max_tokens=40)
    engine.step_until(lambda: len(engine.batch) == 3)
    engine.add("late", 50, max_tokens=2, prompt_logprobs=prompt_logprobs)
    engine.finish()
    assert engine.scheduler.stats().preemptions == 0
    assert engine.scheduler.stats().computed_tokens == 3 * (12 + 39) + 50 + 1


@given(st.lists(st.integers(0, 2**31), max_size=24), st.integers(1, 5), st.integers(0, 24))
def test_the_hash_chain_continues_where_it_stopped_and_depends_on_all_before(tokens, block_size, cut):
    root = root_hash(b"salt")
    chain = block_hashes(root, tokens, block_size)
    assert len(set(chain)) == len(chain) == len(tokens) // block_size
    blocks = min(cut, len(chain))
    rest = block_hashes(chain[blocks - 1] if blocks else root, tokens[blocks * block_size :], block_size)
    assert chain[:blocks] + rest == chain
    assert not set(chain) & set(block_hashes(root_hash(b"other"), tokens, block_size))
    if len(tokens) > block_size:
        changed = [tokens[0] + 1, *tokens[1:]]
        assert not set(chain) & set(block_hashes(root, changed, block_size))


def pictures_at(*places):
    """``places``: number, tokens and offset of each picture."""
    return tuple(MediaItem(make_picture(number, tokens), offset) for number, tokens, offset in places)


@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(1, 6), st.integers(0, 3)), min_size=1, max_size=5),
    st.integers(1, 5),
    st.integers(0, 40),
    st.data(),
)
def test_hashes_from_a_picture_on_depend_on_it_and_its_place(places, block_size, cut, data):
    media, end = [], 0
    for gap, tokens, number in places:
        [item] = pictures_at((number, tokens, end + gap))
        media.append(item)
        end = item.end
    root, tokens = root_hash(b"salt"), [7] * (end + block_size)
    chain = block_hashes(root, tokens, block_size, media)
    blocks = min(cut, len(chain))
    parent = chain[blocks - 1] if blocks else root
    rest = block_hashes(parent, tokens[blocks * block_size :], block_size, media, blocks * block_size)
    assert chain[:blocks] + rest == chain
    place = data.draw(st.integers(0, len(media) - 1))
    item = media[place]
    other = MediaItem(make_picture(9, item.picture.shape.num_tokens), item.offset)
    moved = MediaItem(item.picture, item.offset + 1)  # it may overlap the next, which does not matter here
    before = item.offset // block_size
    for changed in (other, moved):
        hashes = block_hashes(root, tokens, block_size, [*media[:place], changed, *media[place + 1 :]])
        same = before if changed is other else min(before, moved.offset // block_size)
        assert hashes[:same] == chain[:same]
        assert not set(hashes[same:]) & set(chain[same:])


def test_equal_tokens_with_other_pictures_share_no_blocks():
    engine = caching(vision=VisionShape(8))
    first = (make_picture(0, 8), 6)
    assert engine.cached("a", PROMPT, media=[first]) == 0
    assert engine.cached("b", PROMPT, media=[first]) == 20
    assert engine.cached("c", PROMPT, media=[(make_picture(1, 8), 6)]) == 4, "those before the picture's first"
    assert engine.cached("d", PROMPT, media=[(make_picture(0, 8), 7)]) == 4
    assert engine.cached("e", PROMPT) == 4
    assert engine.cached("f", PROMPT, media=[first], salt=b"s") == 0


def test_blocks_of_output_behind_a_picture_are_its_own():
    """The block in which the prompt ends has a picture's last tokens."""
    engine = caching(vision=VisionShape(8))
    prompt, outputs = PROMPT[:10], []
    for number in (0, 1):
        name = f"{number}"
        engine.add(name, prompt, media=[(make_picture(number, 2), 8)], max_tokens=11)
        outputs.append(tuple(engine.finish()[name][0]))
        assert engine.streams[name].cached_tokens == (0 if number == 0 else 8)
    for number in (0, 1):
        longer = (*prompt, *outputs[0])
        found = engine.cached(f"again {number}", longer, media=[(make_picture(number, 2), 8)])
        assert found == (20 if number == 0 else 8)
