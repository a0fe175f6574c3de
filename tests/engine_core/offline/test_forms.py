"""Forms of texts as callers write them: what is taken, and what is refused. ``test_model_text`` computes some."""

from __future__ import annotations

from typing import Any

import numpy as np
import pydantic
import pytest

from engine_core import request
from engine_core.errors import InvalidRequestError
from engine_core.offline.forms import form_of
from engine_core.offline.sampling_params import SamplingParams, read_params


@pytest.mark.parametrize(
    ("params", "form"),
    [
        ({}, None),
        ({"json_object": False}, None),
        ({"json_schema": {"enum": [np.int64(1), (2, 3)]}}, ("json_schema", '{"enum": [1, [2, 3]]}')),
        ({"json_schema": '{"enum": [1]}', "any_whitespace": True}, ("json_schema", '{"enum": [1]}')),
        ({"json_schema": False}, ("json_schema", "false")),
        ({"json_object": True}, ("json_object", True)),
        ({"regex": ""}, ("regex", "")),
        ({"choice": ["a", "b"]}, ("choice", ("a", "b"))),
        ({"choice": []}, ("choice", ())),
        ({"grammar": 'start: "a"'}, ("grammar", 'start: "a"')),
    ],
)
def test_a_form_is_read(params: dict[str, Any], form: object) -> None:
    assert form_of(read_params(SamplingParams(**params), ""), "") == form


@pytest.mark.parametrize(
    ("params", "text"),
    [
        ({"regex": "a", "choice": ["b"]}, "p: choice: is a second form, beside regex; expected one"),
        ({"any_whitespace": True}, "p: any_whitespace: is for JSON; expected json_schema or json_object"),
        ({"json_object": "yes"}, "p: json_object: is of type str; expected True or False"),
        (
            {"json_schema": 3},
            "p: json_schema: is of type int; expected a dict, a JSON text or a bool",
        ),
        (
            {"json_schema": pydantic.BaseModel},
            "p: json_schema: is of type ModelMetaclass; expected a dict, a JSON text or a bool: its model",
        ),
        ({"json_schema": {"a": {1}}}, "p: json_schema: cannot be written as JSON: "),
        ({"regex": 3}, "p: regex: has a value of type int; expected text"),
        ({"choice": "yes"}, "p: choice: is of type str; expected a list of texts"),
        ({"choice": ["a", 1]}, "p: choice: has a value of type int; expected text"),
        ({"grammar": "\ud800"}, "p: grammar: has text that UTF-8 cannot encode"),
    ],
)
def test_what_is_no_form_is_refused(params: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        form_of(read_params(SamplingParams(**params), "p"), "p")
    assert str(refused.value).startswith(text)


@pytest.mark.parametrize(
    ("name", "alternative"),
    [
        ("guided_decoding", "the form of the text is json"),
        ("bad_words", "bad_words_token_ids has"),
        ("logits_processors", "logit_bias, bad_words_token_ids and"),
        ("output_kind", "results are whole"),
        ("spaces_between_special_tokens", "no spaces are put"),
        ("use_beam_search", "beam_search=BeamSearch"),
        ("detokenize", "results of prompts that are token ids"),
        ("truncate_prompt_tokens", "a prompt may be a list of token ids"),
    ],
)
def test_vllms_names_are_answered_with_ours(name: str, alternative: str) -> None:
    with pytest.raises(TypeError, match=rf"^parameter '{name}' is not supported: {alternative}"):
        SamplingParams(**{name: None})


@pytest.mark.parametrize(
    ("given", "engines"),
    [
        ({"top_k": -1}, {"top_k": None}),
        ({"top_k": 0}, {"top_k": None}),
        ({"top_k": np.int64(-1)}, {"top_k": None}),
        ({"top_k": -2}, {"top_k": -2}),
        ({"top_k": False}, {"top_k": False}),
        ({"max_tokens": None}, {"max_tokens": 2**63 - 1}),
        ({"stop_token_ids": [2, np.int64(3), 2]}, {"stop_token_ids": frozenset({2, 3})}),
        ({"stop_token_ids": (2,)}, {"stop_token_ids": frozenset({2})}),
        ({"stop_token_ids": {2}}, {"stop_token_ids": frozenset({2})}),
        ({"stop_token_ids": None}, {"stop_token_ids": frozenset()}),
        ({"stop_token_ids": [{}]}, {"stop_token_ids": ({},)}),
    ],
)
def test_vllms_values_are_the_engines(given: dict[str, Any], engines: dict[str, Any]) -> None:
    params = read_params(SamplingParams(**given), "").for_engine()
    assert {name: getattr(params, name) for name in given} == engines
    assert all(type(getattr(params, name)) is type(value) for name, value in engines.items())


def test_the_engine_gets_the_grammar_of_the_form_alone() -> None:
    params = SamplingParams(grammar="as written", choice=None, seed=3)
    assert params.for_engine("compiled") == request.SamplingParams(grammar="compiled", seed=3)
    assert params.for_engine() == request.SamplingParams(seed=3)
