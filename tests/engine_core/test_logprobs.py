"""Packed log probabilities, against a list of single entries; and what they take."""

from __future__ import annotations

import struct
import sys
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_core.logprobs import Logprobs, TokenLogprobs

floats, ids = st.floats(-1000, 0, width=32), st.integers(0, 2**32 - 1)


@st.composite
def entries(draw: st.DrawFn) -> tuple[int, list[TokenLogprobs]]:
    """Of consecutive tokens, with equally many alternatives each."""
    k = draw(st.integers(0, 4))
    tops = st.tuples(*[ids] * k), st.tuples(*[floats] * k)
    return k, draw(st.lists(st.builds(TokenLogprobs, floats, ids, *tops), max_size=6))


def packed(k: int, entries: list[TokenLogprobs]) -> Logprobs:
    return Logprobs(
        k,
        array("f", [e.logprob for e in entries]),
        array("I", [e.rank for e in entries]),
        array("I", [token_id for e in entries for token_id in e.top_ids]),
        array("f", [logprob for e in entries for logprob in e.top_logprobs]),
    )


@given(entries(), st.slices(6), st.integers(0, 6))
def test_it_is_a_sequence_of_entries(given: tuple[int, list[TokenLogprobs]], part: slice, cut: int) -> None:
    k, entries = given
    logprobs = packed(k, entries)
    assert list(logprobs) == entries
    assert [logprobs[index] for index in range(-len(entries), 0)] == entries
    part = slice(part.start, part.stop)
    assert logprobs[part] == packed(k, entries[part])
    whole = logprobs[:cut]
    whole.extend(logprobs[cut:])
    assert whole == logprobs
    for index, entry in enumerate(entries):
        for top in range(k + 1):
            assert list(logprobs.row(index, top)) == [
                entry._replace(top_ids=entry.top_ids[:top], top_logprobs=entry.top_logprobs[:top])
            ]


def test_what_does_not_follow_is_refused() -> None:
    with pytest.raises(ValueError, match="2 alternatives per token cannot follow 1"):
        packed(1, []).extend(packed(2, []))
    with pytest.raises(IndexError):
        packed(1, [])[0]
    with pytest.raises(ValueError, match="consecutive"):
        packed(1, [])[::2]


def test_a_token_takes_eight_bytes_and_eight_for_each_alternative() -> None:
    entry = TokenLogprobs(-0.1, 3, tuple(range(20)), (-0.5,) * 20)
    logprobs, one = packed(20, []), packed(20, [entry])
    for _ in range(1000):
        logprobs.extend(one)
    size = sum(sys.getsizeof(getattr(logprobs, name)) for name in ("logprobs", "ranks", "top_ids", "top_logprobs"))
    assert size <= 1.15 * 1000 * 8 * (1 + 20), "and what arrays keep ahead"
    assert logprobs[0].logprob == struct.unpack("f", struct.pack("f", -0.1))[0], "as the sampler's float32"
