"""What n-grams find: the longest run, the newest of equal ones, in bounded memory and time."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from engine_core.request import Request, SamplingParams
from engine_core.scheduling import ngram
from engine_core.scheduling.ngram import NgramDrafter, RunIndex
from engine_core.sequence import Sequence, SequenceGroup, SequenceState
from engine_core.speculation import read_speculative_config

from .checked_executor import model_spec

MODEL = model_spec(vocab_size=1000, max_model_len=1 << 20)


def sequence(seq_id, prompt, *, tenant="", salt=b""):
    request = Request(f"r{seq_id}", tuple(prompt), SamplingParams(max_tokens=1 << 20), tenant=tenant, cache_salt=salt)
    group = SequenceGroup(request, MODEL, 0.0, 16, priority=0, tenant=tenant)
    return Sequence(seq_id, group, 0, SequenceState.RUNNING)


def drafter(**fields):
    options = {"prompt_lookup_min": 2, "prompt_lookup_max": 4} | fields
    config = read_speculative_config('{"method": "ngram"}')
    assert config is not None
    return NgramDrafter(replace(config, **options))


def index_of(tokens, *, least=2, capacity=1024):
    index = RunIndex(least, capacity)
    index.extend(tokens)
    return index


@given(
    tokens=st.lists(st.integers(0, 3), min_size=1, max_size=60),
    least=st.integers(1, 3),
    most=st.integers(0, 4),
)
def test_the_run_found_is_the_longest_and_of_equal_ones_the_newest(tokens, least, most):
    """Beside a search of everything; only with many equal runs the index looks at the newest alone."""
    most += least
    tail = tuple(tokens[-ngram.STRONGEST :])
    position, length = index_of(tokens, least=least).find(tail, most)

    def run_before(position):
        longest = min(position, len(tail))
        return next((n for n in range(longest) if tokens[position - 1 - n] != tail[-1 - n]), longest)

    lengths = [run_before(each) for each in range(len(tokens))]
    candidates = [each for each in range(len(tokens)) if lengths[each] >= least]
    if len(tail) < least or not candidates:
        assert (position, length) == (0, 0)
        return
    assert lengths[position] == length
    newest = candidates[-ngram._CANDIDATES :]
    best = max(min(lengths[each], most) for each in newest)
    assert min(length, most) == best
    assert position == max(each for each in newest if min(lengths[each], most) == best)


def test_drafts_go_on_where_the_text_ends():
    index = index_of([1, 2, 3, 4, 1, 2])
    position, length = index.find((3, 4, 1, 2), 4)
    assert (position, length) == (2, 2)
    assert index.following(position, 3, repeat=False) == [3, 4, 1]
    assert index.following(position, 9, repeat=False) == [3, 4, 1, 2]
    assert index.following(position, 9, repeat=True) == [3, 4, 1, 2, 3, 4, 1, 2, 3]


def test_an_index_keeps_the_newest_tokens():
    index = index_of([*range(20, 40), *range(40, 80)], capacity=32)
    assert index.find((30, 31), 4) == (0, 0)
    assert index.find((70, 71), 4) == (52, 2)
    assert index.following(52, 4, repeat=False) == [72, 73, 74, 75]
    assert index.following(1, 4, repeat=False) == []


def test_a_sequence_follows_the_run_that_comes_true():
    """Longer runs would be found meanwhile; the newer one only when a draft was wrong."""
    text = sequence(0, [1, 2, 3, 4, 5, 6, 7, 9, 1, 2])
    lookup = drafter()
    lookup.begin_step()
    assert lookup.look_up(text, 4) == ([3, 4, 5, 6], 2)
    text.output += [3, 4]
    lookup.judged(text, 2, all_right=True)
    assert lookup.look_up(text, 4) == ([5, 6, 7, 9], 4)
    text.output += [7]
    lookup.judged(text, 0, all_right=False)
    assert lookup.look_up(text, 4) == ([], 0)
    text.output += [9, 1]
    assert lookup.look_up(text, 3) == ([2, 3, 4], 3)


def test_tokens_that_were_not_compared_move_no_drafts():
    """Those that a grammar forces, and those of steps in which nothing could pay."""
    text, lookup = sequence(0, [1, 2, 3, 4, 5, 6, 1, 2]), drafter()
    lookup.begin_step()
    assert lookup.look_up(text, 2) == ([3, 4], 2)
    text.output += [9, 5, 6]
    lookup.begin_step()
    assert lookup.look_up(text, 2) == ([1, 2], 2)


def test_a_long_prompt_is_indexed_over_several_steps():
    prompt = [token % 997 for token in range(3 * ngram.STEP_TOKENS - 100)]
    text, lookup, steps = sequence(0, prompt), drafter(), 0
    while True:
        lookup.begin_step()
        steps += 1
        drafts, _ = lookup.look_up(text, 2)
        if drafts:
            break
        assert lookup._texts[0].num_indexed <= steps * ngram.STEP_TOKENS
    assert steps == 3
    assert drafts == [(prompt[-1] + 1) % 997, (prompt[-1] + 2) % 997]


def test_many_long_prompts_and_tenants_get_their_indexes_over_several_steps():
    prompt = tuple(range(100_000))
    texts, lookup = [sequence(seq_id, prompt) for seq_id in range(40)], drafter(prompt_lookup_scope="tenant")
    for step in range(1, 6):
        lookup.begin_step()
        for text in texts:
            lookup.look_up(text, 1)
        assert len(lookup._texts) <= 8 * step
    for text in texts:
        lookup.end(text)
        lookup.end(sequence(100 + text.seq_id, [1, 2, 3], tenant=f"t{text.seq_id}"))
    lookup._ended = deque(each for each in lookup._ended if each.key[0])
    for step in range(1, 4):
        lookup.begin_step()
        assert len(lookup._tenants) <= 8 * step


def test_an_index_grows_with_its_text():
    text, lookup = sequence(0, [1, 2]), drafter()
    for token in range(2000):
        text.output.append(token % 700)
        lookup.begin_step()
        lookup.look_up(text, 1)
    assert lookup._texts[0].index.capacity == 2048
    assert lookup.nbytes == lookup._texts[0].index.nbytes
    lookup.end(text)
    assert lookup.nbytes == 0


def test_requests_of_a_tenant_find_what_others_of_it_have_said():
    lookup = drafter(prompt_lookup_scope="tenant")
    said = sequence(0, [1, 2, 3], tenant="a", salt=b"s")
    said.output += [4, 5, 6]
    lookup.begin_step()
    lookup.look_up(said, 4)
    lookup.end(said)
    lookup.begin_step()
    for seq_id, tenant, salt, found in ((1, "a", b"s", True), (2, "a", b"", False), (3, "b", b"s", False)):
        assert lookup.look_up(sequence(seq_id, [9, 2, 3], tenant=tenant, salt=salt), 9)[0] == (
            [4, 5, 6] if found else []
        )
    alone = drafter()
    alone.end(said)
    alone.begin_step()
    assert alone.look_up(sequence(4, [9, 2, 3], tenant="a", salt=b"s"), 9)[0] == []


def test_runs_do_not_reach_from_one_text_into_the_next():
    lookup = drafter(prompt_lookup_scope="tenant")
    for seq_id, tokens in enumerate(([1, 2, 3], [4, 5, 6])):
        text = sequence(seq_id, tokens)
        lookup.end(text)
    lookup.begin_step()
    assert lookup.look_up(sequence(2, [1, 2]), 9)[0] == [3]
    assert lookup.look_up(sequence(3, [3, 4]), 9)[0] == []


def test_running_texts_are_indexed_before_those_that_have_ended(monkeypatch):
    monkeypatch.setattr(ngram, "STEP_TOKENS", 64)
    lookup, running = drafter(prompt_lookup_scope="tenant"), sequence(0, [1, 2, 3, 4] * 40)
    for seq_id in range(1, 9):
        lookup.end(sequence(seq_id, range(500, 564)))
    steps = 0
    while not (drafts := lookup.look_up(running, 2)[0]):
        lookup.begin_step()
        steps += 1
    assert (drafts, steps) == ([1, 2], 2)
    for _ in range(9):
        lookup.begin_step()
    assert not lookup._ended


def test_texts_that_wait_are_few_and_of_each_request_the_prompt_is_one(monkeypatch):
    monkeypatch.setattr(ngram, "MOST_ENDED", 1000)
    lookup = drafter(prompt_lookup_scope="tenant")
    for seq_id in range(100):
        lookup.end(sequence(seq_id, range(300)))
    assert lookup._num_ended == sum(len(each.token_ids) for each in lookup._ended) == 900
    other = sequence(100, range(300))
    other.choice, other.output = 1, [7, 8]
    lookup.end(other)
    assert list(lookup._ended[-1].token_ids) == [*range(300 - ngram.STRONGEST, 300), 7, 8]
    other.group.beams = object()
    lookup.end(other)
    assert len(lookup._ended) == 4


def test_the_index_of_a_tenant_that_is_dropped_is_kept_by_no_text(monkeypatch):
    monkeypatch.setattr(ngram, "MOST_TOKENS", 1024)
    monkeypatch.setattr(ngram, "MOST_BYTES", 2 * 1024 * 20)
    lookup, text = drafter(prompt_lookup_scope="tenant"), sequence(0, [8, 1, 2])
    lookup.end(sequence(1, [1, 2, 3, 4, 5]))
    lookup.begin_step()
    assert lookup.look_up(text, 2)[0] == [3, 4]
    lookup.look_up(sequence(2, [1] * 1000), 2)
    assert not lookup._tenants
    assert lookup._texts[0].source is None


def test_memory_is_set_aside_for_what_indexes_may_take():
    """Of the longest texts; an index is of the next power of two."""
    config = drafter()._config
    for length in (64, 1000, 4096, 131_072):
        lookup = drafter()
        for seq_id in range(3):
            lookup.begin_step()
            lookup.look_up(sequence(seq_id, [1] * length), 2)
        assert lookup.nbytes <= config.most_index_bytes(3, length) <= ngram.MOST_BYTES
    assert config.most_index_bytes(1024, 1 << 20) == ngram.MOST_BYTES
    assert replace(config, prompt_lookup_scope="tenant").most_index_bytes(1, 64) == ngram.MOST_BYTES
    assert replace(config, method="mtp").most_index_bytes(1024, 1 << 20) == 0


def test_indexes_stay_within_their_bytes(monkeypatch):
    """Indexes of tenants go first, then those of the sequences looked up longest ago, which then have no drafts."""
    monkeypatch.setattr(ngram, "MOST_TOKENS", 1024)
    monkeypatch.setattr(ngram, "MOST_BYTES", 4 * 1024 * 20)
    lookup, rng = drafter(prompt_lookup_scope="tenant"), random.Random(0)
    texts = [sequence(seq_id, [7, 8, 9] * 300, tenant=f"t{seq_id}") for seq_id in range(6)]
    for round_ in range(3):
        for text in texts:
            lookup.begin_step()
            lookup.look_up(text, 4)
            assert lookup.nbytes <= 4 * 1024 * 20
            ended = sequence(1000 + rng.randrange(10**6), [1, 2, 3], tenant=f"ended {round_}")
            lookup.end(ended)
    lookup.begin_step()
    assert [bool(lookup.look_up(text, 4)[0]) for text in texts] == [False] * 2 + [True] * 4
    for text in texts:
        lookup.end(text)
    held = sum(index.nbytes for index in lookup._tenants.values())
    assert lookup.nbytes == held
