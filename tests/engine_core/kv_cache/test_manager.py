"""The prefix cache: what is found again, what must not be, and what it costs whom."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine_core.kv_cache.manager import block_hashes, root_hash

from ..scheduling.harness import Harness

PROMPT = tuple(range(2, 24))  # 22 tokens: five full blocks and a half


def caching(**config):
    return Harness(prefix_caching=True, **config)


def cached(engine, name, prompt, **kwargs):
    """Run a request to its end; its cached tokens."""
    engine.add(name, prompt, **kwargs)
    engine.finish()
    return engine.streams[name].cached_tokens


def test_full_blocks_of_an_equal_prefix_are_found_again():
    engine = caching()
    assert cached(engine, "a", PROMPT) == 0
    assert cached(engine, "b", PROMPT) == 20
    assert cached(engine, "c", PROMPT[:9] + (39,) * 8) == 8
    assert cached(engine, "d", PROMPT[1:]) == 0
    stats = engine.scheduler.stats()
    assert (stats.prefix_query_tokens, stats.prefix_hit_tokens) == (22 + 22 + 17 + 21, 28)


def test_a_hit_leaves_at_least_one_token_to_compute():
    engine = caching()
    cached(engine, "a", PROMPT)
    assert cached(engine, "b", PROMPT[:20]) == 16
    assert cached(engine, "c", PROMPT[:4]) == 0
    assert cached(engine, "d", PROMPT[:5]) == 4


def test_output_is_found_again_as_part_of_a_longer_prompt():
    engine = caching()
    engine.add("a", PROMPT, max_tokens=12)
    tokens = engine.finish()["a"][0]
    # 33 of 34 tokens were computed, in eight full blocks.
    assert cached(engine, "b", PROMPT + tuple(tokens) + (5,)) == 32


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


def test_nothing_is_found_before_it_is_computed():
    engine = caching()
    engine.add("a", PROMPT)
    engine.add("b", PROMPT)
    engine.step()
    assert [new.num_computed_tokens for new in engine.plan.new] == [0, 0]
    engine.finish()


def test_a_salt_keeps_requests_apart():
    engine = caching()
    assert cached(engine, "a", PROMPT, salt=b"x") == 0
    assert cached(engine, "b", PROMPT, salt=b"y") == 0
    assert cached(engine, "c", PROMPT) == 0
    assert cached(engine, "d", PROMPT, salt=b"x") == 20


def test_requests_for_prompt_logprobs_compute_their_whole_prompt_but_serve_others():
    engine = caching()
    cached(engine, "a", PROMPT)
    assert cached(engine, "b", PROMPT, prompt_logprobs=0) == 0
    assert len(engine.streams["b"].prompt_logprobs) == len(PROMPT) - 1
    assert engine.scheduler.stats().prefix_query_tokens == len(PROMPT), "who does not ask does not miss"
    engine.scheduler.reset_prefix_cache()
    cached(engine, "c", PROMPT, prompt_logprobs=0)
    assert cached(engine, "d", PROMPT) == 20


def test_a_cache_that_is_off_is_not_asked():
    engine = Harness()
    engine.add("a", 20)
    engine.finish()
    assert engine.scheduler.stats().prefix_query_tokens == 0


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
    cached(engine, "old", 40)
    cached(engine, "new", 36)
    assert 0 < cached(engine, "again", engine.streams["old"].request.prompt_token_ids) < 36


def test_reset_forgets_everything_also_what_is_in_use():
    engine = caching()
    cached(engine, "a", PROMPT)
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
        assert cached(engine, f"again {choice}", PROMPT + tuple(output[:8])) == 20 * choice
        assert cached(engine, f"longer {choice}", PROMPT + tuple(output)) == 28


def test_a_choice_that_starts_from_forgotten_blocks_publishes_nothing():
    engine = caching(max_num_seqs=1)
    engine.add("r", PROMPT, n=2, max_tokens=12)
    engine.step()
    engine.scheduler.reset_prefix_cache()
    output = engine.finish()["r"][1]
    assert cached(engine, "fresh", PROMPT) == 0
    assert cached(engine, "after", PROMPT + tuple(output)) == 20


def test_a_prompt_shorter_than_a_block_has_no_blocks_to_forget():
    engine = caching(max_num_seqs=1)
    prompt = PROMPT[:2]
    engine.add("r", prompt, n=2, max_tokens=12)
    engine.step()
    engine.scheduler.reset_prefix_cache()
    output = engine.finish()["r"][1]
    assert cached(engine, "after", prompt + tuple(output)) == 12


def test_a_choice_that_starts_from_forgotten_blocks_finds_none_that_were_computed_since():
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
    assert cached(engine, "again", engine.streams["second"].request.prompt_token_ids) == 24


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


def test_without_prefix_caching_nothing_is_found():
    engine = Harness(prefix_caching=False)
    cached(engine, "a", PROMPT)
    assert cached(engine, "b", PROMPT) == 0


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
