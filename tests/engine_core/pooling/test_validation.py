from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from engine_core.config import ModelSpec
from engine_core.errors import InvalidRequestError
from engine_core.pooling.facts import PoolingFacts
from engine_core.pooling.params import PoolingInput, PoolingParams, PoolingRequest, PoolingTask
from engine_core.pooling.validation import validate_pooling_request
from engine_core.request import Request, SamplingParams
from engine_core.validation import validate_request

TASKS = PoolingTask.EMBED, PoolingTask.TOKEN_EMBED
MODEL = ModelSpec("m", "Qwen3Model", 100, 16, (2,), "float32", pooling=PoolingFacts(TASKS, dimensions=64))
CUT = replace(MODEL, pooling=PoolingFacts(TASKS, 64, is_matryoshka=True, matryoshka_dimensions=(16, 64)))
LABELS = replace(MODEL, pooling=PoolingFacts((PoolingTask.CLASSIFY,), labels=("a",)))
GENERATES = replace(MODEL, pooling=None)
GOOD = PoolingInput((1, 2))
EMBED = PoolingParams(PoolingTask.EMBED)


def request(**fields: Any) -> PoolingRequest:
    return PoolingRequest(**{"request_id": "r", "inputs": {0: GOOD}, "params": EMBED, **fields})


def test_good_requests_are_taken() -> None:
    validate_pooling_request(request(inputs={0: GOOD, 7: PoolingInput((99,) * 16, second_text=16)}), MODEL)
    validate_pooling_request(request(params=PoolingParams(PoolingTask.TOKEN_EMBED, 16)), CUT)
    validate_pooling_request(request(params=PoolingParams(PoolingTask.EMBED, 64)), MODEL)


@pytest.mark.parametrize(
    ("model", "given", "field", "problem"),
    [
        (GENERATES, {}, "params", "m generates text"),
        (MODEL, {"request_id": ""}, "request_id", "is empty"),
        (MODEL, {"inputs": {}}, "inputs", "has 0 inputs; expected from 1 to 4096"),
        (MODEL, {"inputs": dict.fromkeys(range(4097), GOOD)}, "inputs", "has 4097 inputs"),
        (MODEL, {"inputs": {0: GOOD, 3: PoolingInput(())}}, "inputs[3]", "is empty"),
        (MODEL, {"inputs": {5: PoolingInput((1,) * 17)}}, "inputs[5]", "has 17 tokens; expected at most 16"),
        (MODEL, {"inputs": {1: PoolingInput((100,))}}, "inputs[1]", "has token id 100"),
        (MODEL, {"inputs": {1: PoolingInput((True,))}}, "inputs[1]", "an integer"),
        (MODEL, {"inputs": {1: PoolingInput((1,), second_text=2)}}, "inputs[1]", "second_text 2"),
        (MODEL, {"params": PoolingParams(PoolingTask.CLASSIFY)}, "task", "tasks: embed, token_embed"),
        (MODEL, {"params": PoolingParams(PoolingTask.EMBED, 32)}, "dimensions", "expected 64 or none"),
        (CUT, {"params": PoolingParams(PoolingTask.EMBED, 65)}, "dimensions", "from 1 to 64"),
        (CUT, {"params": PoolingParams(PoolingTask.EMBED, 0)}, "dimensions", "from 1 to 64"),
        (CUT, {"params": PoolingParams(PoolingTask.EMBED, 32)}, "dimensions", "was trained for: 16, 64"),
        (LABELS, {"params": PoolingParams(PoolingTask.CLASSIFY, 1)}, "dimensions", "cannot be chosen for classify"),
        (MODEL, {"deadline": float("nan")}, "deadline", "seconds on the engine's clock"),
    ],
)
def test_the_first_fault_is_named_with_what_is_accepted(
    model: ModelSpec, given: dict[str, Any], field: str, problem: str
) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        validate_pooling_request(request(**given), model)
    assert caught.value.field == field
    assert problem in caught.value.problem


def test_results_that_are_too_large_are_refused_before_they_are_computed() -> None:
    large = replace(MODEL, max_model_len=4096, pooling=PoolingFacts(TASKS, dimensions=4096))
    inputs = dict.fromkeys(range(3), PoolingInput((1,) * 1000))
    validate_pooling_request(request(inputs=inputs), large)
    with pytest.raises(InvalidRequestError, match="results of 49152000 bytes; expected at most 33554432: send fewer"):
        validate_pooling_request(request(inputs=inputs, params=PoolingParams(PoolingTask.TOKEN_EMBED)), large)


def test_a_model_that_pools_generates_nothing() -> None:
    with pytest.raises(InvalidRequestError, match="m generates no tokens; ask it for what it computes: embed"):
        validate_request(Request("r", (1,), SamplingParams()), MODEL)
