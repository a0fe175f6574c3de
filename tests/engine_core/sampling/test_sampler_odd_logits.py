"""Logits that no sound model makes: numpy and torch give one answer, and what is banned stays banned."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine_core.request import SamplingParams
from engine_core.sampling.numpy_ops import NumpyOps
from engine_core.sampling.torch_ops import TorchOps
from engine_core.validation import LEAST_PENALTY, SCALE_LIMIT
from tests.engine_core.sampling.test_sampler import Rows, Sampled

VOCAB = 40
GREATEST = float(np.finfo(np.float32).max)
ODD = (np.inf, -np.inf, np.nan, GREATEST, -GREATEST, 1e-45, -1e-45, -0.0, 1.0)
JUST_BELOW = float(np.nextafter(np.float32(SCALE_LIMIT), np.float32(0)))

params = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 1e-300, 1e-46, 1e-38, 0.5, 1.0, JUST_BELOW]),
    top_k=st.sampled_from([None, None, 1, 3, VOCAB - 1]),
    top_p=st.sampled_from([1.0, 5e-324, 1e-46, 0.5, 0.999]),
    min_p=st.sampled_from([0.0, 5e-324, 1e-46, 0.1, 1.0]),
    repetition_penalty=st.sampled_from([1.0, LEAST_PENALTY, 1.3, JUST_BELOW]),
    frequency_penalty=st.sampled_from([0.0, -2.0, 1e-46, 2.0]),
    presence_penalty=st.sampled_from([0.0, -2.0, 2.0]),
    logit_bias=st.dictionaries(st.integers(0, VOCAB - 1), st.sampled_from([-100.0, 1e-46, 100.0]), max_size=4),
    bad_words_token_ids=st.sets(st.integers(0, VOCAB - 1), max_size=6).map(
        lambda ids: tuple((i,) for i in sorted(ids))
    ),
    allowed_token_ids=st.none() | st.sets(st.integers(0, VOCAB - 1), min_size=7, max_size=9).map(tuple),
    seed=st.integers(0, 2**64 - 1),
    logprobs=st.just(3),
)
rows_of_logits = st.dictionaries(st.integers(0, VOCAB - 1), st.sampled_from(ODD), min_size=1, max_size=VOCAB)


def both(asked: SamplingParams, odd: dict[int, float], start: float = 0.5) -> tuple[Sampled, Sampled]:
    rows = Rows([asked], VOCAB, seed=len(odd))
    rows.logits[0] = rows.logits[0] * start
    rows.logits[0, list(odd)] = torch.tensor(list(odd.values()))
    return rows.sample([0], NumpyOps(VOCAB)), rows.sample([0], TorchOps())


@settings(max_examples=100, deadline=None, derandomize=True)
@given(params, rows_of_logits)
def test_both_sample_the_same_token_and_never_a_banned_one(asked: SamplingParams, odd: dict[int, float]) -> None:
    by_numpy, by_torch = both(asked, odd)
    token = int(by_numpy.token_ids[0])
    assert int(by_torch.token_ids[0]) == token
    if asked.allowed_token_ids is not None:
        assert token in asked.allowed_token_ids
    if len(asked.bad_words_token_ids) + list(odd.values()).count(-np.inf) < VOCAB:  # else all is −inf
        assert (token,) not in asked.bad_words_token_ids


@settings(max_examples=100, deadline=None, derandomize=True)
@given(rows_of_logits)
def test_log_probabilities_are_the_same(odd: dict[int, float]) -> None:
    (expected,), (actual,) = (each.logprobs[0] for each in both(SamplingParams(logprobs=5), odd))
    reported = [expected.logprob, *expected.top_logprobs]
    assert [actual.logprob, *actual.top_logprobs] == pytest.approx(reported, abs=1e-5, nan_ok=True)
    if not any(map(np.isnan, odd.values())):
        assert (actual.rank, actual.top_ids) == (expected.rank, expected.top_ids)


@pytest.mark.parametrize(
    "asked", [{}, {"top_p": 0.9}, {"top_k": 3}, {"min_p": 0.1}, {"top_k": 3, "top_p": 0.5}], ids=str
)
def test_of_infinite_logits_the_first_is_taken_and_they_share_the_probability(asked: dict[str, float]) -> None:
    for sampled in both(replace(SamplingParams(seed=7, logprobs=3), **asked), {21: np.inf, 9: np.inf}):
        assert sampled.token_ids.tolist() == [9]
        (entry,) = sampled.logprobs[0]
        assert entry.top_ids[:2] == (9, 21)
        assert [entry.logprob, *entry.top_logprobs] == pytest.approx([-np.log(2), -np.log(2), -np.log(2), -np.inf])


@pytest.mark.parametrize("asked", [{}, {"top_p": 0.9}, {"top_k": 3}, {"temperature": 0.0}], ids=str)
def test_a_model_that_overflows_lifts_no_ban(asked: dict[str, float]) -> None:
    params = replace(SamplingParams(bad_words_token_ids=((0,),), logprobs=3), **asked)
    for sampled in both(params, dict.fromkeys(range(VOCAB), np.nan)):
        assert sampled.token_ids.tolist() == [1]
    params = replace(params, bad_words_token_ids=(), allowed_token_ids=(30, 31))
    for sampled in both(params, dict.fromkeys(range(VOCAB), -np.inf)):
        assert int(sampled.token_ids[0]) in (30, 31)
