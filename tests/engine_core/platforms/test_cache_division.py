"""Memory is divided as asked for; each side gets the least that it needs, and nobody what is of no use."""

from __future__ import annotations

import random

import pytest

from engine_core.platforms.cache_division import Claim, divide, useful_states


@pytest.mark.parametrize(
    ("left", "blocks", "states", "share", "divided"),
    [
        (1000, Claim(10, 5), Claim(50, 3, 99), 0.5, (50, 10)),
        (1000, Claim(10, 5), Claim(50, 3, 99), 0.2, (80, 4)),
        (1000, Claim(10, 5), Claim(50, 3, 99), 0.01, (85, 3)),  # the fewest
        (1000, Claim(10, 5), Claim(50, 3, 6), 0.5, (70, 6)),  # more would be of no use
        (1000, Claim(10, 5, 20), Claim(50, 3, 99), 0.5, (20, 16)),  # what blocks cannot use
        (1000, Claim(10, 70), Claim(50, 3, 99), 0.9, (70, 6)),  # the longest sequence comes first
        (1000, Claim(10, 0, 0), Claim(50, 3), 0.5, (0, 20)),  # nothing attends
        (1000, Claim(0, 7, 30), Claim(50, 3, 99), 0.5, (30, 20)),  # other ranks have the blocks
        (1000, Claim(10, 5), Claim(0, 3, 40), 0.5, (100, 40)),  # other ranks have the states
        (1000, Claim(10, 5, 20), Claim(50, 3, 6), 0.5, (20, 6)),  # neither can use all
    ],
)
def test_divisions_by_hand(left: int, blocks: Claim, states: Claim, share: float, divided: tuple[int, int]) -> None:
    assert divide(left, blocks, states, share) == divided


@pytest.mark.parametrize("seed", range(50))
def test_no_byte_is_taken_twice_and_none_is_left_that_one_side_could_use(seed: int) -> None:
    rng = random.Random(seed)
    blocks = Claim(rng.randint(1, 40), rng.randint(0, 20), rng.choice([None, rng.randint(20, 90)]))
    states = Claim(rng.randint(1, 400), 3, rng.randint(3, 30))
    left = blocks.least_bytes + states.least_bytes + rng.randint(0, 4000)
    count, slots = divide(left, blocks, states, rng.uniform(0.01, 0.99))
    rest = left - count * blocks.unit - slots * states.unit
    assert rest >= 0
    assert count >= blocks.least
    assert states.least <= slots <= 30
    assert count == blocks.most or rest < blocks.unit or slots < 30
    assert slots == states.most or rest < states.unit


def test_what_a_batch_can_use_of_states() -> None:
    assert useful_states(64, enable_prefix_caching=True) == 4 * 64 + 10
    assert useful_states(64, enable_prefix_caching=False) == 2 * 64 + 10
