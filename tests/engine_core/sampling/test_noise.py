"""Noise against an independent reference in Python integers, and its statistics."""

import math
from collections.abc import Callable

import numpy as np
import pytest

from engine_core.sampling.noise import VocabularyNoise, gumbel, position_keys, random_bits, sequence_key

MASK = 2**64 - 1


def splitmix64(start: int, draws: int) -> list[int]:
    """The published sequential generator (Steele, Lea & Flood 2014), written as a generator with a state."""
    outputs = []
    state = start
    for _ in range(draws):
        state = (state + 0x9E3779B97F4A7C15) & MASK
        z = state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        outputs.append(z ^ (z >> 31))
    return outputs


def reference_bits(seed: int, choice: int, position: int, vocab: int) -> list[int]:
    """Draws of three nested SplitMix64 streams: by choice, by position, by token."""
    # One output of the generator is the finalizer of its state: a step back applies it to the seed.
    of_seed = splitmix64((seed - 0x9E3779B97F4A7C15) & MASK, 1)[0]
    of_choice = splitmix64(of_seed, choice + 1)[choice]
    of_position = splitmix64(of_choice, position + 1)[position]
    return splitmix64(of_position, vocab)


def keys_of(seed: int, choice: int, positions: list[int]) -> np.ndarray:
    sequence_keys = np.full(len(positions), sequence_key(seed, choice), np.uint64)
    return position_keys(sequence_keys, np.array(positions, np.int64))[:, np.newaxis]


def test_published_vector() -> None:
    """The first outputs of SplitMix64 from state 1234567, as commonly published."""
    assert splitmix64(1234567, 3) == [6457827717110365317, 3203168211198807973, 9817491932198370423]


@pytest.mark.parametrize("seed", [0, 1, 42, 2**63, 2**64 - 1])
@pytest.mark.parametrize("choice", [0, 7])
def test_integers_equal_the_reference(seed: int, choice: int) -> None:
    vocab = 50
    bits = random_bits(keys_of(seed, choice, [0, 1, 333]), np.arange(vocab))
    for row, position in zip(bits, [0, 1, 333], strict=True):
        assert row.tolist() == reference_bits(seed, choice, position, vocab)


def test_gumbel_equals_float64_arithmetic() -> None:
    bits = np.array(reference_bits(9, 0, 5, 2000), np.uint64)
    uniform = ((bits >> np.uint64(24)).astype(np.float64) + 0.5) / 2.0**40
    expected = -np.log(-np.log1p(-uniform))
    noise = gumbel(keys_of(9, 0, [5]), np.arange(2000))[0].astype(np.float64)
    np.testing.assert_allclose(noise, expected, atol=2e-5)


@pytest.mark.parametrize("vocab", [100, 30_000, 70_001])
def test_noise_added_in_parts_is_the_same(vocab: int) -> None:
    """Rows are worked on a few at a time, long ones in pieces."""
    keys, noise = keys_of(3, 1, list(range(5))), VocabularyNoise(vocab)
    values = np.random.default_rng(0).normal(size=(5, vocab)).astype(np.float32)
    expected = values + gumbel(keys, np.arange(vocab))
    np.testing.assert_array_equal(noise.add_to(values.copy(), keys), expected)
    np.testing.assert_array_equal(noise.add_to(values[1:2].copy(), keys[1:2]), expected[1:2])


@pytest.mark.parametrize("function", [np.exp, np.log, lambda x: np.log1p(-x)], ids=["exp", "log", "log1p"])
def test_functions_of_numpy_do_not_depend_on_the_place_in_an_array(
    function: Callable[[np.ndarray], np.ndarray],
) -> None:
    """Vectors, what is left over after them, and lone numbers are computed alike: a row's bits rest on it."""
    x = np.random.default_rng(0).uniform(0.0001, 0.9999, 3000).astype(np.float32)
    whole = function(x)
    np.testing.assert_array_equal(np.concatenate([function(x[i : i + 1]) for i in range(len(x))]), whole)
    for size in [*range(2, 70), 1000]:
        for start in (0, 1, 3, 16, 100):
            np.testing.assert_array_equal(function(x[start : start + size]), whole[start : start + size])
    np.testing.assert_array_equal(function(x.reshape(30, 100)), whole.reshape(30, 100))


def chi_square_z(counts: np.ndarray, expected: np.ndarray) -> float:
    """The chi-square statistic in standard deviations from its mean (normal approximation)."""
    degrees = len(counts) - 1
    return float((((counts - expected) ** 2 / expected).sum() - degrees) / math.sqrt(2 * degrees))


def top_bits(bits: np.ndarray) -> np.ndarray:
    return (bits >> np.uint64(60)).astype(np.int64).ravel()


def test_neighbouring_streams_are_independent() -> None:
    """Top bits of adjacent positions, tokens, choices and seeds fill every cell of a contingency table evenly."""
    every = np.arange(400)
    base = top_bits(random_bits(keys_of(5, 0, list(range(200))), every))
    neighbours = {
        "position": random_bits(keys_of(5, 0, list(range(1, 201))), every),
        "choice": random_bits(keys_of(5, 1, list(range(200))), every),
        "seed": random_bits(keys_of(6, 0, list(range(200))), every),
        "token": random_bits(keys_of(5, 0, list(range(200))), np.arange(1, 401)),
    }
    for name, bits in neighbours.items():
        cells = np.bincount(base * 16 + top_bits(bits), minlength=256)
        assert abs(chi_square_z(cells, np.full(256, cells.sum() / 256))) < 4, name
