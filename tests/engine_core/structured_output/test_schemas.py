"""``make test-grammars``: answers of models to 1,000 schemas, beside jsonschema. CHECKPOINT=path tries one more."""

from __future__ import annotations

import json
import os
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from jsonschema import Draft202012Validator

from engine_core.llm import LLM, SamplingParams
from engine_core.request import FinishReason
from tests.ring import MODEL
from tests.text_core.grammar.matching import checker
from tests.text_core.grammar.strategies import FORMAT_CHECKER, schemas
from text_core.grammar.constraints import ConstraintError, JsonSchema
from text_core.grammar.grammar_text import grammar_of
from text_core.tokenizer import Tokenizer

pytestmark = [pytest.mark.grammars, pytest.mark.timeout(3600)]

SCHEMAS = 1_000
REGEXES = (
    r"[a-z]{3,12}",
    r"(\d{1,3}\.){3}\d{1,3}",
    r"[A-Z][a-z]+( [A-Z][a-z]+){0,3}",
    r"(yes|no), (\d+|none)",
    r"#[0-9a-f]{6}",
)
ROOM = 1_000
"""Tokens."""
LEAST_FINISHED = 0.9


@cache
def usable_schemas() -> list[Any]:
    found: list[Any] = []

    @settings(
        max_examples=SCHEMAS + SCHEMAS // 4,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(schemas())
    def collect(schema: Any) -> None:
        try:
            checker().check(grammar_of(JsonSchema(json.dumps(schema))))
        except ConstraintError:
            return
        if len(found) < SCHEMAS:
            found.append(schema)

    collect()
    assert len(found) == SCHEMAS
    return found


Biases = tuple[float, float]
"""For tokens that begin with a quote, and for other tokens of nothing but brackets and quotes."""


def closing(model: Path, biases: Biases) -> dict[int, float]:
    """Biases that make models end what they write: they ramble where a schema has no limit.

    A bracket closes nothing within a string: too great a bias makes a model fill strings with brackets.
    """
    tokenizer = Tokenizer.from_directory(model)
    texts = {token: tokenizer.token_bytes(token) for token in range(tokenizer.vocab_size)}
    ends = {token for token, text in texts.items() if text and not text.strip(b'"}]')} | tokenizer.eos_token_ids
    quotes, others = biases
    return {token: quotes if texts[token].startswith(b'"') else others for token in ends}


MODELS = [
    pytest.param(MODEL, {}, (8.0, 8.0), id="bundled"),
    pytest.param(MODEL, {"load_format": "dummy"}, (3.0, 3.0), id="random"),
    *(pytest.param(Path(path), {}, (14.0, 4.0), id="real") for path in [os.environ.get("CHECKPOINT")] if path),
]


@pytest.mark.parametrize(("model", "options", "biases"), MODELS)
def test_every_answer_that_ends_fits_its_schema(model: Path, options: dict[str, Any], biases: Biases) -> None:
    wrong: list[str] = []
    finished = 0
    closing_biases = closing(model, biases)
    with LLM(str(model), max_num_seqs=64, **options) as llm:
        params = [
            SamplingParams(
                temperature=1.0, seed=seed, max_tokens=ROOM, json_schema=json.dumps(schema), logit_bias=closing_biases
            )
            for seed, schema in enumerate(usable_schemas())
        ]
        results = llm.generate(["As JSON: "] * SCHEMAS, params)
    for schema, result in zip(usable_schemas(), results, strict=True):
        [choice] = result.choices
        assert choice.finish is not None
        assert choice.finish.finish_reason in (FinishReason.STOP, FinishReason.LENGTH), f"{choice.finish} {schema}"
        if choice.finish.finish_reason is FinishReason.LENGTH:
            continue
        finished += 1
        assert choice.text is not None
        value = json.loads(choice.text)
        if not Draft202012Validator(schema, format_checker=FORMAT_CHECKER).is_valid(value):
            wrong.append(f"{choice.text} {json.dumps(schema)}")
    print(f"{finished} of {SCHEMAS} answers ended; {len(wrong)} do not fit")
    assert not wrong, "\n".join(wrong)
    assert finished >= LEAST_FINISHED * SCHEMAS


@pytest.mark.parametrize(("model", "options", "biases"), MODELS)
def test_every_answer_matches_its_regular_expression(model: Path, options: dict[str, Any], biases: Biases) -> None:
    with LLM(str(model), **options) as llm:
        params = [
            SamplingParams(temperature=1.0, seed=seed, max_tokens=200, regex=REGEXES[seed % len(REGEXES)])
            for seed in range(100)
        ]
        results = llm.generate(["A word: "] * len(params), params)
    for number, result in enumerate(results):
        [choice] = result.choices
        assert choice.finish is not None
        if choice.finish.finish_reason is FinishReason.STOP:
            assert re.fullmatch(REGEXES[number % len(REGEXES)], choice.text or ""), choice.text
