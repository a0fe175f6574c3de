"""Completions through OpenAI's client: many prompts at once, and log probabilities as evaluations read them."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from ringline import Client

from services.gateway.openai.completions import MAX_CHOICES
from tests.ring import Ring
from tests.services.gateway.conftest import Post

MODEL = "tiny"
PROMPTS = ["Once upon a time", "The fox"]


def choices_of(native: Client, **options: Any) -> list[Any]:
    return [
        choice
        for prompt in PROMPTS
        for choice in native.generate(prompt, **{"seed": 7, "max_tokens": 16, "n": 2, **options}).choices
    ]


def test_choices_are_indexed_by_prompt_and_then_n(door: openai.OpenAI, native: Client) -> None:
    expected = choices_of(native)
    answer = door.completions.create(model=MODEL, prompt=PROMPTS, n=2, seed=7)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert [choice.text for choice in answer.choices] == [choice.text for choice in expected]
    assert [choice.finish_reason for choice in answer.choices] == [choice.finish_reason for choice in expected]
    assert answer.usage is not None
    assert answer.usage.completion_tokens == sum(len(choice.token_ids) for choice in expected)
    assert answer.usage.prompt_tokens == sum(len(native.tokenize(prompt).token_ids) for prompt in PROMPTS)


def test_a_stream_merges_the_choices(door: openai.OpenAI, native: Client) -> None:
    expected = choices_of(native)
    chunks = list(
        door.completions.create(
            model=MODEL, prompt=PROMPTS, n=2, seed=7, stream=True, stream_options={"include_usage": True}
        )
    )
    for index, choice in enumerate(expected):
        of_choice = [one for chunk in chunks for one in chunk.choices if one.index == index]
        assert "".join(one.text for one in of_choice) == choice.text
        assert [one.finish_reason for one in of_choice if one.finish_reason] == [choice.finish_reason]
    usage = chunks[-1].usage
    assert usage is not None
    assert usage.completion_tokens == sum(len(choice.token_ids) for choice in expected)


def test_ids_are_prompts_too(door: openai.OpenAI, native: Client) -> None:
    prompts = [list(native.tokenize(prompt).token_ids) for prompt in PROMPTS]
    texts = [native.generate(prompt, max_tokens=5, temperature=0).text for prompt in PROMPTS]
    given: Any = {"model": MODEL, "max_tokens": 5, "temperature": 0}
    assert [choice.text for choice in door.completions.create(prompt=prompts, **given).choices] == texts
    assert door.completions.create(prompt=prompts[1], **given).choices[0].text == texts[1]


@pytest.mark.parametrize("max_tokens", [1, 0])
@pytest.mark.parametrize("stream", [False, True])
def test_log_probabilities_of_the_prompt_as_evaluations_ask_for_them(
    door: openai.OpenAI, native: Client, max_tokens: int, stream: bool
) -> None:
    ids = [list(native.tokenize(prompt).token_ids) for prompt in PROMPTS]
    asked: Any = {"model": MODEL, "prompt": ids, "echo": True, "logprobs": 1, "temperature": 0}
    if stream:
        found: dict[int, dict[str, Any]] = {}
        for chunk in door.completions.create(**asked, max_tokens=max_tokens, stream=True):
            for one in chunk.choices:
                kept = found.setdefault(one.index, {"text": "", "lists": {}})
                kept["text"] += one.text
                for name, values in (one.logprobs.to_dict() if one.logprobs else {}).items():
                    kept["lists"].setdefault(name, []).extend(values)
        answers = [found[index] for index in (0, 1)]
    else:
        whole = door.completions.create(**asked, max_tokens=max_tokens).choices
        answers = [{"text": one.text, "lists": one.logprobs.to_dict()} for one in whole if one.logprobs]
    for prompt, token_ids, answer in zip(PROMPTS, ids, answers, strict=True):
        expected = native.generate(token_ids=token_ids, max_tokens=1, temperature=0, logprobs=1, prompt_logprobs=1)
        texts = [native.detokenize([token_id]) for token_id in (*token_ids, *expected.token_ids)]
        values = [None, *(one.logprob for one in (*expected.prompt_logprobs, *expected.logprobs))]
        if max_tokens == 0:
            texts, values = texts[:-1], values[:-1]
        lists = answer["lists"]
        assert answer["text"] == prompt + (expected.text if max_tokens else "")
        assert lists["tokens"] == texts
        assert lists["token_logprobs"] == values
        assert lists["text_offset"] == [len("".join(texts[:position])) for position in range(len(texts))]
        assert lists["top_logprobs"][0] is None
        for text, value, top in zip(texts[1:], values[1:], lists["top_logprobs"][1:], strict=True):
            assert top[text] == value
            assert len(top) <= 2


def test_log_probabilities_of_the_prompt_come_beside_those_of_the_answer(post: Post, native: Client) -> None:
    asked = {"prompt": PROMPTS[0], "max_tokens": 2, "temperature": 0, "logprobs": 1, "prompt_logprobs": 1}
    (choice,) = post("/v1/completions", asked).json()["choices"]
    expected = native.generate(PROMPTS[0], max_tokens=2, temperature=0, logprobs=1, prompt_logprobs=1)
    token_ids = native.tokenize(PROMPTS[0]).token_ids
    assert choice["logprobs"]["token_logprobs"] == [one.logprob for one in expected.logprobs or ()]
    assert choice["prompt_logprobs"][0] is None
    found = [
        one[str(token)]["logprob"] for token, one in zip(token_ids[1:], choice["prompt_logprobs"][1:], strict=True)
    ]
    assert found == [one.logprob for one in expected.prompt_logprobs or ()]


@pytest.mark.parametrize(
    ("changed", "param"),
    [
        ({"prompt": None}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": ["a", 1]}, "prompt"),
        ({"prompt": [-1]}, "prompt[0]"),
        ({"prompt": ["a"] * (MAX_CHOICES + 1)}, "prompt"),
        ({"prompt": ["a"] * MAX_CHOICES, "n": 2}, "prompt"),
        ({"suffix": "b"}, "suffix"),
        ({"prompt": ["a"] * MAX_CHOICES, "best_of": 2}, "prompt"),
        ({"mm_processor_kwargs": {"max_pixels": 1}}, "mm_processor_kwargs"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"logprobs": 21}, "logprobs"),
        ({"echo": True, "logprobs": 1, "prompt_logprobs": 1}, "prompt_logprobs"),
        ({"guided_regex": "("}, "guided_regex"),
        ({"guided_json": 3}, "guided_json"),
        ({"request_id": "x" * 129}, "request_id"),
        ({"request_id": "a\nb"}, "request_id"),
    ],
)
def test_errors_name_the_field_as_the_api_does(post: Post, changed: dict[str, Any], param: str) -> None:
    refused = post("/v1/completions", {"prompt": "a", **changed})
    error = refused.json()["error"]
    assert (refused.status_code, error["type"], error["param"]) == (400, "invalid_request_error", param)


def test_one_prompt_that_is_refused_ends_the_others(ring: Ring, post: Post) -> None:
    steps = ring.load().steps
    refused = post("/v1/completions", {"prompt": ["a", "", "b"], "max_tokens": 2000, "ignore_eos": True})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "prompt")
    while (load := ring.load()).running_choices or load.waiting_requests:
        assert load.steps - steps < 1000
