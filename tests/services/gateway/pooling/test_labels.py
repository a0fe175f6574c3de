"""``/classify`` and ``/pooling``, as in vLLM."""

from __future__ import annotations

import base64
import struct
from typing import Any

import pytest
from ringline.inference.v1 import inference_pb2 as pb

from tests.services.gateway.pooling.conftest import Doors
from tests.services.gateway.pooling.fake_ring import LABELS, bad_field, float32, vector

WIDTH = len(LABELS)


def rounded(numbers: Any) -> Any:
    """The float32 numbers that JSON's are."""
    return [rounded(one) for one in numbers] if isinstance(numbers, list) else float32(numbers)


@pytest.mark.parametrize("path", ["/classify", "/v1/classify"])
async def test_labels(doors: Doors, path: str) -> None:
    doors.ring.classifies()
    answer = await doors.ask(path, model="small", input=[[65], [66, 67]], use_activation=False)
    assert answer["object"] == "list"
    assert answer["usage"]["prompt_tokens"] == 3
    for index, (one, ids) in enumerate(zip(answer["data"], ([65], [66, 67]), strict=True)):
        expected = vector(ids, WIDTH)
        assert rounded(one["probs"]) == expected
        assert (one["index"], one["num_classes"]) == (index, WIDTH)
        assert one["label"] == LABELS[expected.index(max(expected))]
    (asked,) = doors.ring.asked
    assert isinstance(asked, pb.ClassifyRequest)
    assert asked.HasField("activation")
    assert not asked.activation
    assert (await doors.refused(path, input="a", labels=["x"]))[:2] == (400, "labels")


@pytest.mark.parametrize("path", ["/pooling", "/v1/pooling"])
async def test_vectors_of_inputs_and_tokens(doors: Doors, path: str) -> None:
    answer = await doors.ask(path, input=["ab", "c"], dimensions=4, use_activation=True)
    assert [rounded(one["data"]) for one in answer["data"]] == [vector([97, 98], 4), vector([99], 4)]
    asked = doors.ring.asked[-1]
    assert (asked.normalize, asked.per_token) == (True, False)
    answer = await doors.ask(path, input=["ab", "c"], task="token_embed")
    assert [rounded(one["data"]) for one in answer["data"]] == [[vector([97], 8), vector([98], 8)], [vector([99], 8)]]
    assert [(one["index"], one["object"]) for one in answer["data"]] == [(0, "pooling"), (1, "pooling")]
    answer = await doors.ask(path, input=["ab", "c"], task="token_embed", encoding_format="base64")
    packed = [base64.b64decode(one["data"]) for one in answer["data"]]
    assert packed == [struct.pack("<16f", *vector([97], 8), *vector([98], 8)), struct.pack("<8f", *vector([99], 8))]
    answer = await doors.ask(path, input="ab", encoding_format="base64")
    assert base64.b64decode(answer["data"][0]["data"]) == struct.pack("<8f", *vector([97, 98], 8))


async def test_the_task_is_the_models_own_unless_it_is_given(doors: Doors) -> None:
    doors.ring.classifies()
    answer = await doors.ask("/pooling", input="ab")
    assert rounded(answer["data"][0]["data"]) == vector([97, 98], WIDTH)
    answer = await doors.ask("/pooling", input="ab", task="token_classify", use_activation=False)
    assert rounded(answer["data"][0]["data"]) == [vector([97], WIDTH), vector([98], WIDTH)]
    assert doors.ring.asked[-1].HasField("activation")
    assert await doors.refused("/pooling", input="ab", model="other") == (
        404,
        "model",
        "model: 'other' is not served here: expected 'small'",
    )


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": "a", "task": "score"}, "task"),
        ({"input": "a", "task": "classify", "dimensions": 4}, "dimensions"),
        ({"input": "a", "task": "classify", "prompt_name": "query"}, "prompt_name"),
        ({"input": "a", "encoding_format": "bytes"}, "encoding_format"),
        ({"task": "embed"}, "input"),
    ],
)
async def test_what_is_refused(doors: Doors, body: dict[str, Any], param: str) -> None:
    assert (await doors.refused("/pooling", **body))[:2] == (400, param)
    assert not doors.ring.asked


@pytest.mark.parametrize("path", ["/pooling", "/classify"])
async def test_a_refusal_names_the_input(doors: Doors, path: str) -> None:
    doors.ring.refuses(*bad_field("inputs[1]", "it is wrong"))
    assert await doors.refused(path, input=["a", "b"]) == (400, "input[1]", "input[1]: it is wrong")


async def test_models_say_what_they_are_for(doors: Doors) -> None:
    (model,) = (await doors.gateway.ask("GET", "/v1/models")).json()["data"]
    assert model["tasks"] == ["embed", "token_embed"]
    assert model["architecture"]["output_modalities"] == ["embeddings"]
    assert model["pooling"].items() >= {"dimensions": 8, "matryoshka_dimensions": [4, 8], "normalizes": True}.items()
    assert model["pooling"]["prompts"] == {"query": "query: ", "passage": "passage: "}
    doors.ring.classifies()
    (model,) = (await doors.gateway.ask("GET", "/v1/models")).json()["data"]
    assert model["tasks"] == ["classify", "token_classify"]
    assert model["architecture"]["output_modalities"] == ["scores"]
    assert model["pooling"]["labels"] == list(LABELS)
    doors.ring.generates()
    (model,) = (await doors.gateway.ask("GET", "/v1/models")).json()["data"]
    assert (model["tasks"], model["pooling"]) == (["generate"], None)
    assert model["architecture"]["output_modalities"] == ["text"]
