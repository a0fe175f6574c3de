"""The forms of TEI, Cohere and llama.cpp."""

from __future__ import annotations

import base64
import struct
from typing import Any

import pytest
from ringline.inference.v1 import inference_pb2 as pb

from tests.services.gateway.pooling.conftest import Doors
from tests.services.gateway.pooling.fake_ring import LABELS, bad_field, float32, ids_of, vector
from tests.services.gateway.pooling.test_labels import rounded

AB, C = vector([97, 98], 8), vector([99], 8)


async def test_vectors_of_tei(doors: Doors) -> None:
    assert rounded(await doors.ask("/embed", inputs=["ab", "c"])) == [AB, C]
    assert rounded(await doors.ask("/embed", inputs="ab")) == [AB]
    assert rounded(await doors.ask("/embed", inputs=[[97, 98], [99]])) == [AB, C]
    assert all(asked.normalize and not asked.options.truncation for asked in doors.ring.asked)
    options = {"truncate": True, "truncation_direction": "Left", "prompt_name": "query", "dimensions": 4}
    assert rounded(await doors.ask("/embed", inputs="ab", normalize=False, **options)) == [vector([97, 98], 4)]
    asked = doors.ring.asked[-1]
    assert (asked.normalize, asked.prompt_name, asked.dimensions) == (False, "query", 4)
    assert asked.options.truncation == pb.TRUNCATION_START
    await doors.ask("/embed", inputs="ab", truncate=True)
    assert doors.ring.asked[-1].options.truncation == pb.TRUNCATION_END


async def test_vectors_of_all_tokens_of_tei(doors: Doors) -> None:
    answer = await doors.ask("/embed_all", inputs=["ab", "c"])
    assert rounded(answer) == [[vector([97], 8), vector([98], 8)], [C]]
    asked = doors.ring.asked[-1]
    assert asked.per_token
    assert not asked.normalize
    assert asked.HasField("normalize")


async def test_predictions_of_tei(doors: Doors) -> None:
    doors.ring.classifies()
    expected = sorted(zip(vector([65], 3), LABELS, strict=True), reverse=True)
    answer = await doors.ask("/predict", inputs="A")
    assert [(float32(one["score"]), one["label"]) for one in answer] == expected
    assert await doors.ask("/predict", inputs=["A"]) == answer
    assert not doors.ring.asked[-1].HasField("activation")
    batch = await doors.ask("/predict", inputs=[["A"], ["B"]], raw_scores=True, truncate=True)
    assert (batch[0], len(batch)) == (answer, 2)
    asked = doors.ring.asked[-1]
    assert asked.HasField("activation")
    assert not asked.activation
    assert asked.options.truncation == pb.TRUNCATION_END


async def test_similarities_of_tei(doors: Doors) -> None:
    vectors = [[0.6, 0.8], [1.0, 0.0], [-0.8, 0.6]]
    packed = b"".join(struct.pack("<2f", *one) for one in vectors)
    doors.ring.embedded = pb.EmbedResponse(values=packed, dimensions=2)
    inputs = {"source_sentence": "abc", "sentences": ["xyz", "abd"]}
    parameters = {"truncate": True, "prompt_name": "query"}
    answer = await doors.ask("/similarity", inputs=inputs, parameters=parameters)
    assert answer == pytest.approx([0.6, 0.0], abs=1e-7)
    (asked,) = doors.ring.asked
    assert [one.text for one in asked.inputs] == ["abc", "xyz", "abd"]
    assert (asked.normalize, asked.prompt_name, asked.options.truncation) == (True, "query", pb.TRUNCATION_END)


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/embed", {}, "inputs"),
        ("/embed", {"inputs": []}, "inputs"),
        ("/embed", {"inputs": "a", "truncation_direction": "up"}, "truncation_direction"),
        ("/embed", {"inputs": "a", "encoding_format": "base64"}, "encoding_format"),
        ("/embed_all", {"inputs": [[-1]]}, "inputs[0][0]"),
        ("/predict", {"inputs": []}, "inputs"),
        ("/predict", {"inputs": ["a", "b"]}, "inputs"),
        ("/predict", {"inputs": [["a"], ["b", "c"]]}, "inputs[1]"),
        ("/predict", {"inputs": [["a"], "b"]}, "inputs[1]"),
        ("/similarity", {}, "inputs.source_sentence"),
        ("/similarity", {"inputs": {"source_sentence": "a"}}, "inputs.sentences"),
        ("/similarity", {"inputs": {"source_sentence": "a", "sentences": ["b"] * 2048}}, "inputs.sentences"),
        ("/v2/embed", {}, "texts"),
        ("/v2/embed", {"texts": []}, "texts"),
        ("/v2/embed", {"texts": ["a"], "inputs": []}, "texts"),
        ("/v2/embed", {"texts": ["a"], "images": ["data:"]}, "images"),
        ("/v2/embed", {"texts": ["a"], "truncate": "LEFT"}, "truncate"),
        ("/v2/embed", {"texts": ["a"], "embedding_types": ["float", "int8"]}, "embedding_types[1]"),
        ("/v2/embed", {"texts": ["a"], "input_type": "clustering"}, "input_type"),
        ("/v2/embed", {"texts": ["a"], "output_dimension": -1}, "output_dimension"),
        ("/v2/embed", {"inputs": [{"content": []}]}, "inputs[0].content"),
        ("/v2/embed", {"inputs": [{"content": [{"type": "image_url"}]}]}, "inputs[0].content[0]"),
        ("/embedding", {}, "content"),
        ("/embedding", {"content": "a", "embd_normalize": 1}, "embd_normalize"),
    ],
)
async def test_what_is_refused(doors: Doors, path: str, body: dict[str, Any], param: str) -> None:
    assert (await doors.refused(path, **body))[:2] == (400, param)
    assert not doors.ring.asked


@pytest.mark.parametrize(
    ("path", "body", "field", "param"),
    [
        ("/embed", {"inputs": ["a", "b"]}, "inputs[1]", "inputs[1]"),
        ("/embed", {"inputs": "a"}, "inputs[0]", "inputs"),
        ("/embed", {"inputs": "a"}, "options.truncation", "truncate"),
        ("/embed_all", {"inputs": "a"}, "per_token", "per_token"),
        ("/predict", {"inputs": [["a"], ["b"]]}, "inputs[1]", "inputs[1]"),
        ("/predict", {"inputs": "a", "raw_scores": True}, "activation", "raw_scores"),
        (
            "/similarity",
            {"inputs": {"source_sentence": "a", "sentences": ["b"]}},
            "inputs[1]",
            "inputs.sentences[0]",
        ),
        (
            "/similarity",
            {"inputs": {"source_sentence": "a", "sentences": ["b"]}},
            "inputs[0]",
            "inputs.source_sentence",
        ),
        ("/v2/embed", {"texts": ["a", "b"]}, "inputs[1]", "texts[1]"),
        ("/v2/embed", {"inputs": [{"content": [{"text": "a"}]}]}, "inputs[0]", "inputs[0]"),
        ("/v2/embed", {"texts": ["a"]}, "dimensions", "output_dimension"),
        ("/v2/embed", {"texts": ["a"]}, "options.max_input_tokens", "max_tokens"),
        ("/embedding", {"content": ["a", "b"]}, "inputs[1]", "content[1]"),
    ],
)
async def test_a_refusal_names_the_bodys_field(doors: Doors, path, body, field, param) -> None:
    doors.ring.refuses(*bad_field(field, "it is wrong"))
    assert await doors.refused(path, **body) == (400, param, f"{param}: it is wrong")


async def test_what_tei_tells_of_the_model(doors: Doors) -> None:
    found = (await doors.gateway.ask("GET", "/info")).json()
    assert (found["model_id"], found["max_input_length"]) == ("small", 64)
    assert "embedding" in found["model_type"]
    doors.ring.classifies()
    found = (await doors.gateway.ask("GET", "/info")).json()
    assert found["model_type"]["classifier"]["label2id"] == {"no": 0, "yes": 1, "perhaps": 2}
    doors.ring.generates()
    reply = await doors.gateway.ask("GET", "/info")
    assert (reply.status, reply.error["code"]) == (400, "unsupported")


async def test_teis_path_for_whatever_the_model_is_for(doors: Doors) -> None:
    assert rounded(await doors.ask("/", inputs=["ab", "c"])) == [AB, C]
    doors.ring.classifies()
    assert await doors.ask("/", inputs="A") == await doors.ask("/predict", inputs="A")
    del doors.ring.model.pooling.labels[1:]
    assert [one["index"] for one in await doors.ask("/", query="abc", texts=["xyz", "abd"])] == [1, 0]
    doors.ring.generates()
    assert (await doors.post("/", inputs="a")).error["code"] == "unsupported"


async def test_paths_without_a_models_name_are_about_the_one_that_pools(doors: Doors) -> None:
    doors.ring.listed_before.append(pb.Model(name="chat", max_model_len=9))
    found = (await doors.gateway.ask("GET", "/info")).json()
    assert (found["model_id"], found["max_input_length"]) == ("small", 64)
    assert rounded(await doors.ask("/", inputs=["ab", "c"])) == [AB, C]
    doors.ring.listed_before[0].pooling.labels.append("reranker")
    await doors.ask("/v2/embed", texts=["ab"], input_type="search_document")
    assert doors.ring.asked[-1].prompt_name == "passage", "the embedder's prompts"
    doors.ring.classifies()
    doors.ring.listed_before[0].ClearField("pooling")
    answer = await doors.ask("/pooling", input="ab")
    assert len(answer["data"][0]["data"]) == 3


async def test_vectors_of_coheres_second_api(doors: Doors) -> None:
    body = {"model": "small", "texts": ["ab", "c"], "input_type": "search_document"}
    answer = await doors.ask("/v2/embed", **body)
    assert (answer["response_type"], answer["texts"]) == ("embeddings_by_type", ["ab", "c"])
    assert rounded(answer["embeddings"]["float"]) == [AB, C]
    assert answer["meta"] == {"api_version": {"version": "2"}, "billed_units": {"input_tokens": 3}}
    asked = doors.ring.asked[-1]
    assert (asked.prompt_name, asked.options.truncation) == ("passage", pb.TRUNCATION_END)
    types = ["base64", "binary", "ubinary", "float", "float"]
    answer = await doors.ask("/v2/embed", **body, embedding_types=types, truncate="NONE", max_tokens=7)
    found = answer["embeddings"]
    assert rounded(found["float"]) == [AB, C]
    assert [base64.b64decode(one) for one in found["base64"]] == [struct.pack("<8f", *one) for one in (AB, C)]
    bits = [sum(128 >> place for place, number in enumerate(one) if number > 0) for one in (AB, C)]
    assert found["ubinary"] == [[one] for one in bits]
    assert found["binary"] == [[one - 128] for one in bits]
    options = doors.ring.asked[-1].options
    assert (options.truncation, options.max_input_tokens) == (pb.TRUNCATION_NONE, 7)
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    await doors.ask("/v2/embed", inputs=[{"content": parts}], input_type="search_query", output_dimension=4)
    asked = doors.ring.asked[-1]
    assert (ids_of(asked.inputs[0]), asked.prompt_name, asked.dimensions) == ([97, 10, 98], "query", 4)


async def test_a_model_without_prompts_takes_inputs_of_any_type(doors: Doors) -> None:
    doors.ring.model.pooling.ClearField("prompts")
    await doors.ask("/v2/embed", texts=["ab"], input_type="clustering")
    assert not doors.ring.asked[-1].HasField("prompt_name")


async def test_vectors_of_coheres_first_api(doors: Doors) -> None:
    answer = await doors.ask("/v1/embed", texts=["ab", "c"])
    assert (answer["response_type"], rounded(answer["embeddings"])) == ("embeddings_floats", [AB, C])
    answer = await doors.ask("/v1/embed", texts=["ab", "c"], embedding_types=["float"])
    assert (answer["response_type"], rounded(answer["embeddings"]["float"])) == ("embeddings_by_type", [AB, C])


async def test_vectors_of_llama_cpp(doors: Doors) -> None:
    answer = await doors.ask("/embedding", content=["ab", "c"], embd_normalize=2)
    assert [(one["index"], rounded(one["embedding"])) for one in answer] == [(0, [AB]), (1, [C])]
    assert doors.ring.asked[-1].normalize
    await doors.ask("/embedding", input="ab", embd_normalize=-1)
    asked = doors.ring.asked[-1]
    assert asked.HasField("normalize")
    assert not asked.normalize


async def test_openais_vectors_at_a_path_without_a_version(doors: Doors) -> None:
    answer = await doors.ask("/embeddings", input="ab")
    assert rounded(answer["data"][0]["embedding"]) == AB
