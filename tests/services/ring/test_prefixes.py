"""What is remembered of prompts: equal beginnings are found, others never, and memory is bounded."""

from __future__ import annotations

import itertools
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.ring.identity import PeerId
from services.ring.prefixes import MAX_HOLDERS, Prefixes, PrefixMap, by_rendezvous, prefixes_of

BLOCK = 4
ENGINES = [PeerId(f"e{index}", 1) for index in range(12)]
prompts = st.lists(st.integers(0, 1), max_size=60)
salts, adapters = st.sampled_from([b"", b"salt"]), st.sampled_from([b"", b"a" * 32, b"b" * 32])


def common(one: list[int], other: list[int]) -> int:
    """Tokens that two prompts share."""
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


@given(prompts, prompts, salts, salts, adapters, adapters)
def test_hashes_are_equal_exactly_where_tokens_salt_and_adapter_are(
    one: list[int], other: list[int], salt: bytes, other_salt: bytes, adapter: bytes, other_adapter: bytes
) -> None:
    first = prefixes_of(one, salt, BLOCK, adapter=adapter)
    second = prefixes_of(other, other_salt, BLOCK, adapter=other_adapter)
    is_alike = (salt, adapter) == (other_salt, other_adapter)
    for length, ours, theirs in zip(first.tokens, first.hashes, second.hashes, strict=False):
        assert (ours == theirs) == (is_alike and common(one, other) >= length)


@given(st.integers(0, 5000), st.integers(1, 64))
def test_prefixes_grow_by_a_quarter_at_most(length: int, block: int) -> None:
    prefixes = prefixes_of(range(length), b"", block)
    blocks = [tokens // block for tokens in prefixes.tokens]
    assert all(tokens % block == 0 and tokens <= length for tokens in prefixes.tokens)
    assert blocks[:5] == list(range(1, length // block + 1))[:5]
    for shorter, longer in itertools.pairwise(blocks):
        assert 0 < longer - shorter <= max(1, shorter / 4)
    assert not blocks or length // block - blocks[-1] < max(1, blocks[-1] / 4)
    assert prefixes.half == sum(2 * tokens < length for tokens in prefixes.tokens)
    assert len(blocks) <= 40


@pytest.mark.parametrize("prefixes", [prefixes_of([1] * 15, b"", 16), prefixes_of([1] * 100, b"", 0)])
def test_a_prompt_below_one_block_has_no_prefix(prefixes: Prefixes) -> None:
    known = PrefixMap()
    known.add(prefixes, ENGINES[0])
    assert len(known) == 0
    assert known.find(prefixes, ENGINES).branch is None


@given(st.lists(st.tuples(prompts, st.sampled_from(ENGINES)), max_size=20), prompts, st.sets(st.sampled_from(ENGINES)))
def test_the_engine_with_the_longest_prefix_is_found(
    computed: list[tuple[list[int], PeerId]], prompt: list[int], alive: set[PeerId]
) -> None:
    """Against a model that keeps every prompt."""
    known = PrefixMap()
    for tokens, engine in computed:
        known.add(prefixes_of(tokens, b"", BLOCK), engine)
    prefixes = prefixes_of(prompt, b"", BLOCK)
    match = known.find(prefixes, alive)
    best, holders = 0, set()
    for length in prefixes.tokens:
        latest = [engine for tokens, engine in reversed(computed) if common(tokens, prompt) >= length]
        if having := set(list(dict.fromkeys(latest))[:MAX_HOLDERS]) & alive:
            best, holders = length, having
    assert (match.tokens, set(match.holders)) == (best, holders)
    assert match.worth_following == (best > 0 and 2 * best >= len(prompt))


@given(st.lists(st.tuples(prompts, st.sampled_from(ENGINES)), max_size=60))
def test_the_least_recently_used_prefixes_are_forgotten(computed: list[tuple[list[int], PeerId]]) -> None:
    known = PrefixMap(max_prefixes=20)
    for tokens, engine in computed:
        prefixes = prefixes_of(tokens, b"", BLOCK)
        known.add(prefixes, engine)
        assert len(known) <= 20
        assert all(len(holders) <= MAX_HOLDERS for holders in known._holders.values())
        match = known.find(prefixes, [engine])
        assert match.tokens == (prefixes.tokens[-1] if prefixes.tokens else 0)


def test_of_many_engines_the_latest_are_remembered() -> None:
    known = PrefixMap()
    for engine in ENGINES:
        known.add(prefixes_of([1] * 10 * BLOCK, b"", BLOCK), engine)
    assert known.find(prefixes_of([1] * 10 * BLOCK, b"", BLOCK), ENGINES).holders == tuple(
        reversed(ENGINES[-MAX_HOLDERS:])
    )


def test_the_longest_prefixes_of_a_prompt_are_forgotten_first() -> None:
    known = PrefixMap(max_prefixes=3)
    known.add(prefixes_of([1] * 10 * BLOCK, b"", BLOCK), ENGINES[0])
    assert known.find(prefixes_of([1] * 10 * BLOCK, b"", BLOCK), ENGINES).tokens == 3 * BLOCK


def test_a_full_map_fits_its_memory_estimate() -> None:
    tracemalloc.start()
    known = PrefixMap(max_prefixes=4096)
    for number in range(4000):
        known.add(prefixes_of([number] * 64, b"", 16), ENGINES[number % 12])
    taken = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert len(known) == 4096
    assert taken < 4096 * 400


def test_a_branch_is_where_a_prompt_leaves_what_is_known() -> None:
    known = PrefixMap()
    system, first, second = [1] * 10 * BLOCK, [2] * 20 * BLOCK, [3] * 20 * BLOCK
    known.add(prefixes_of(system + first, b"", BLOCK), ENGINES[0])
    one = known.find(prefixes_of(system + second + [4], b"", BLOCK), ENGINES)
    other = known.find(prefixes_of(system + second + [5] * 3, b"", BLOCK), ENGINES)
    assert one.tokens == other.tokens == 10 * BLOCK
    assert not one.worth_following
    assert one.branch == other.branch, "equal documents go together"
    assert one.branch != known.find(prefixes_of(system + [6] * 20 * BLOCK, b"", BLOCK), ENGINES).branch
    # Those who have it are gone: its prompts still go together.
    tails = [known.find(prefixes_of(system + first + [tail] * BLOCK, b"", BLOCK), []).branch for tail in (7, 8)]
    assert tails[0] == tails[1]


def test_a_rendezvous_order_changes_little() -> None:
    keys = [number.to_bytes(4, "little") for number in range(400)]
    before = [by_rendezvous(key, ENGINES[:4]) for key in keys]
    assert before == [by_rendezvous(key, reversed(ENGINES[:4])) for key in keys]
    for engine in ENGINES[:4]:
        assert 60 < sum(order[0] == engine for order in before) < 140
    without = [by_rendezvous(key, ENGINES[:3]) for key in keys]
    assert without == [[engine for engine in order if engine != ENGINES[3]] for order in before]
