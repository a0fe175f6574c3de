"""``LLM.beam_search`` in vLLM's form, ``best_of``, and what neither can be given."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from engine_core.errors import InvalidRequestError
from engine_core.llm import LLM, BeamSearchParams, SamplingParams
from engine_core.model_loader.location import bundled_model
from engine_core.request import BeamSearch

PROMPTS = ["Once upon a time", "The red ball", "What is 3 plus 4?"]
BEAMS = SamplingParams(temperature=0.0, beam_search=BeamSearch(2), max_tokens=4)


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(dtype="float32", max_num_seqs=8, max_model_len=128, kv_cache_memory_bytes=16 << 20) as started:
        yield started


def test_sequences_are_those_of_transformers(llm: LLM) -> None:
    tokenizer = AutoTokenizer.from_pretrained(bundled_model())
    model = AutoModelForCausalLM.from_pretrained(bundled_model(), dtype="float32")
    params = BeamSearchParams(beam_width=3, max_tokens=12, length_penalty=0.5)
    for prompt, output in zip(PROMPTS, llm.beam_search(PROMPTS, params), strict=True):
        ids = tokenizer(prompt, return_tensors="pt")
        found = model.generate(
            **ids, do_sample=False, num_beams=3, num_return_sequences=3, max_new_tokens=12, length_penalty=0.5,
            eos_token_id=list(llm.model.eos_token_ids), return_dict_in_generate=True, output_scores=True,
        )  # fmt: skip
        assert len(output.sequences) == 3
        for each, score, tokens in zip(output.sequences, found.sequences_scores, found.sequences.tolist(), strict=True):
            assert each.tokens == tokens[: len(each.tokens)]
            assert each.text == llm.tokenizer.decode(each.tokens)
            assert each.score == pytest.approx(float(score), rel=2e-5)
            count = len(each.tokens) - ids["input_ids"].shape[1] + (each.finish_reason == "stop")
            assert each.cum_logprob == pytest.approx(each.score * math.sqrt(count))


def test_the_eos_token_is_kept_if_asked_for(llm: LLM) -> None:
    """Whatever ends first ends all."""
    params = BeamSearchParams(beam_width=2, max_tokens=60, early_stopping=True)
    prompt = llm.tokenizer.encode(PROMPTS[2])
    [without] = llm.beam_search([prompt], params)
    [whole] = llm.beam_search([prompt], replace(params, include_stop_str_in_output=True))
    ended = [each.stop_reason for each in without.sequences]
    assert any(each is not None for each in ended)
    for short, long, eos in zip(without.sequences, whole.sequences, ended, strict=True):
        assert long.tokens == [*short.tokens, *([eos] if eos is not None else [])]
        assert (short.text, short.score) == (None, long.score)


def test_the_best_of_more_choices_are_returned(llm: LLM) -> None:
    params = SamplingParams(temperature=1.5, seed=4, max_tokens=6, ignore_eos=True)
    [every] = llm.generate(PROMPTS[0], replace(params, n=5, logprobs=0))
    [best] = llm.generate(PROMPTS[0], replace(params, n=2, best_of=5))
    expected = sorted(every.outputs, key=lambda each: each.cumulative_logprob or 0.0, reverse=True)[:2]
    assert [(each.token_ids, each.text) for each in best.outputs] == [(each.token_ids, each.text) for each in expected]
    assert [(each.index, each.logprobs) for each in best.outputs] == [(0, None), (1, None)]
    [scored] = llm.generate(PROMPTS[0], replace(params, best_of=5, logprobs=1))
    assert scored.outputs[0].logprobs is not None


@pytest.mark.parametrize(
    ("params", "problem"),
    [
        (replace(BEAMS, temperature=0.7), "temperature: is 0.7; expected 0 with beam_search, which draws nothing"),
        (replace(BEAMS, n=3), "n: is 3; expected at most the beam search's width, 2"),
        (replace(BEAMS, best_of=2), "best_of: is given together with beam_search, whose width it would be"),
        (replace(BEAMS, stop="."), "stop: is given together with beam_search, whose beams end with tokens"),
        (replace(BEAMS, seed=3), "seed: is 3; expected none with beam_search, which draws nothing"),
        (replace(BEAMS, logprobs=1), "logprobs: is 1; expected None with beam_search, which does without it"),
        (replace(BEAMS, regex="a+"), "grammar: is '"),
        (replace(BEAMS, top_k=4), "top_k: is 4; expected None with beam_search"),
        (replace(BEAMS, presence_penalty=1.0), "presence_penalty: is 1.0; expected 0.0 with beam_search"),
        (replace(BEAMS, beam_search=BeamSearch(65)), "beam_search.width: is 65; expected from 1 to 64"),
        (replace(BEAMS, beam_search=BeamSearch(9)), "beam_search.width: is 9; expected at most 8, as many as run"),
        (replace(BEAMS, beam_search=BeamSearch(2, math.nan)), "beam_search.length_penalty: is nan; expected from -5"),
        (replace(BEAMS, beam_search=BeamSearch(2, 1.0, "never")), "beam_search.early_stopping: is 'never', of type"),
        (replace(BEAMS, beam_search=4), "beam_search: is 4, of type int; expected a BeamSearch, or none"),
        (SamplingParams(n=3, best_of=2), "best_of: is 2; expected an integer from n (3) to 128, or none"),
        (SamplingParams(best_of=2.0), "best_of: is 2.0; expected an integer from n (1) to 128, or none"),
    ],
)
def test_what_cannot_be_is_refused_by_name(llm: LLM, params: Any, problem: str) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        llm.generate("a", params)
    assert problem in str(refused.value)


def test_a_search_draws_nothing(llm: LLM) -> None:
    with pytest.raises(InvalidRequestError, match=r"params: temperature: is 0\.5; expected 0, as a beam search draws"):
        llm.beam_search("a", BeamSearchParams(beam_width=2, max_tokens=3, temperature=0.5))
