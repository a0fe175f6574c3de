"""``/rerank`` and ``/score`` in their forms."""

from __future__ import annotations

from typing import Any

import pytest
from ringline.inference.v1 import inference_pb2 as pb

from tests.services.gateway.pooling.conftest import Doors
from tests.services.gateway.pooling.fake_ring import bad_field, float32, ids_of, score

QUERY, DOCUMENTS = "abc", ["xyz", "abd", "abcabc", "abd"]


def chars(text: str) -> list[int]:
    return list(map(ord, text))


EXPECTED = [score(chars(QUERY), chars(one)) for one in DOCUMENTS]
ORDER = [1, 3, 0, 2]
"""Of the documents, by score."""


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank", "/reranking", "/v1/reranking"])
async def test_documents_come_in_order(doors: Doors, path: str) -> None:
    answer = await doors.ask(path, model="small", query=QUERY, documents=DOCUMENTS)
    results = answer["results"]
    assert [one["index"] for one in results] == ORDER
    assert [float32(one["relevance_score"]) for one in results] == [EXPECTED[index] for index in ORDER]
    (asked,) = doors.ring.asked
    assert [ids_of(one) for one in asked.queries] == [chars(QUERY)]
    assert [ids_of(one) for one in asked.documents] == list(map(chars, DOCUMENTS))
    assert answer["id"].startswith("rerank-")
    assert answer["model"] == "small"
    tokens = sum(len(QUERY) + len(one) for one in DOCUMENTS)
    assert (answer["usage"]["prompt_tokens"], answer["usage"]["total_tokens"]) == (tokens, tokens)
    if path == "/v2/rerank":
        assert all(set(one) == {"index", "relevance_score"} for one in results)
        assert answer["meta"]["api_version"] == {"version": "2"}
    else:
        assert [one["document"] for one in results] == [{"text": DOCUMENTS[index]} for index in ORDER]


async def test_coheres_form_cuts_long_documents(doors: Doors) -> None:
    for path, expected in (("/v2/rerank", pb.TRUNCATION_END), ("/v1/rerank", pb.TRUNCATION_UNSPECIFIED)):
        await doors.ask(path, query=QUERY, documents=DOCUMENTS)
        assert doors.ring.asked[-1].options.truncation == expected
    await doors.ask("/v2/rerank", query=QUERY, documents=DOCUMENTS, truncate=False)
    assert not doors.ring.asked[-1].options.truncation


async def test_documents_that_are_objects_come_back_as_they_are(doors: Doors) -> None:
    documents: list[Any] = [{"text": "xyz", "id": 7}, "abd"]
    body = {"query": {"text": QUERY}, "documents": documents, "return_documents": True}
    answer = await doors.ask("/v2/rerank", **body)
    assert [one["document"] for one in answer["results"]] == [{"text": "abd"}, {"text": "xyz", "id": 7}]
    assert ids_of(doors.ring.asked[0].queries[0]) == chars(QUERY)
    answer = await doors.ask("/rerank", **{**body, "return_documents": False})
    assert not any("document" in one for one in answer["results"])


@pytest.mark.parametrize(
    ("fields", "count"), [({"top_n": 2}, 2), ({"top_n": 9}, 4), ({"top_n": 0}, 4), ({"top_k": 1}, 1)]
)
async def test_only_the_best(doors: Doors, fields: dict[str, int], count: int) -> None:
    answer = await doors.ask("/v1/rerank", query=QUERY, documents=DOCUMENTS, **fields)
    assert [one["index"] for one in answer["results"]] == ORDER[:count]


async def test_teis_form_on_the_same_path(doors: Doors) -> None:
    answer = await doors.ask("/rerank", query=QUERY, texts=DOCUMENTS)
    assert [(one["index"], float32(one["score"])) for one in answer] == [(at, EXPECTED[at]) for at in ORDER]
    assert not any("text" in one for one in answer)
    assert not doors.ring.asked[0].HasField("activation")
    body = {"query": QUERY, "texts": DOCUMENTS, "return_text": True, "raw_scores": True, "truncate": True}
    answer = await doors.ask("/rerank", **body, truncation_direction="Left")
    assert [one["text"] for one in answer] == [DOCUMENTS[index] for index in ORDER]
    asked = doors.ring.asked[1]
    assert asked.activation is False
    assert asked.HasField("activation")
    assert asked.options.truncation == pb.TRUNCATION_START


async def test_options_reach_the_ring(doors: Doors) -> None:
    options = {"use_activation": False, "instruction": "Find it.", "priority": 3, "truncate_prompt_tokens": 9}
    await doors.ask("/rerank", query=QUERY, documents=DOCUMENTS, **options)
    await doors.ask("/score", queries=QUERY, documents=DOCUMENTS, **options)
    for asked in doors.ring.asked:
        assert (asked.activation, asked.instruction, asked.options.priority) == (False, "Find it.", 3)
        assert (asked.options.truncation, asked.options.max_input_tokens) == (pb.TRUNCATION_END, 9)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"documents": ["a"]}, "query"),
        ({"query": "a"}, "documents"),
        ({"query": "a", "documents": []}, "documents"),
        ({"query": "a", "texts": []}, "texts"),
        ({"query": "a", "documents": ["a"], "texts": ["a"]}, "texts"),
        ({"query": "a", "documents": ["a", {"title": "b"}]}, "documents[1]"),
        ({"query": {"title": "b"}, "documents": ["a"]}, "query"),
        ({"query": "a", "documents": ["a"] * 2049}, "documents"),
        ({"query": "a", "documents": ["a"], "max_tokens_per_doc": 5}, "max_tokens_per_doc"),
        ({"query": "a", "documents": ["a"], "rank_fields": ["title"]}, "rank_fields"),
        ({"query": "a", "documents": ["a"], "return_embeddings": True}, "return_embeddings"),
        ({"query": "a", "texts": ["a"], "raw_scores": True, "use_activation": True}, "raw_scores"),
    ],
)
async def test_what_is_refused_of_rankings(doors: Doors, body: dict[str, Any], param: str) -> None:
    assert (await doors.refused("/rerank", **body))[:2] == (400, param)
    assert not doors.ring.asked


@pytest.mark.parametrize(
    ("field", "with_documents", "with_texts"),
    [
        ("documents[2]", "documents[2]", "texts[2]"),
        ("documents[2].text", "documents[2]", "texts[2]"),
        ("queries[0]", "query", "query"),
        ("queries", "query", "query"),
        ("activation", "use_activation", "raw_scores"),
    ],
)
async def test_a_refusal_names_the_bodys_field(doors: Doors, field, with_documents, with_texts) -> None:
    doors.ring.refuses(*bad_field(field, "it is wrong"))
    refused = await doors.refused("/rerank", query=QUERY, documents=DOCUMENTS)
    assert refused == (400, with_documents, f"{with_documents}: it is wrong")
    refused = await doors.refused("/rerank", query=QUERY, texts=DOCUMENTS, raw_scores=False)
    assert refused == (400, with_texts, f"{with_texts}: it is wrong")


@pytest.mark.parametrize("path", ["/score", "/v1/score"])
@pytest.mark.parametrize(
    ("first", "second"), [("queries", "documents"), ("queries", "items"), ("text_1", "text_2"), ("data_1", "data_2")]
)
async def test_scores(doors: Doors, path: str, first: str, second: str) -> None:
    answer = await doors.ask(path, **{first: QUERY, second: DOCUMENTS})
    assert answer["object"] == "list"
    assert answer["id"].startswith("score-")
    assert [(one["index"], one["object"]) for one in answer["data"]] == [(at, "score") for at in range(4)]
    assert [float32(one["score"]) for one in answer["data"]] == EXPECTED
    answer = await doors.ask(path, **{first: ["xyz", "abd"], second: ["xyz", "abc"]})
    assert [float32(one["score"]) for one in answer["data"]] == [1, score(chars("abd"), chars("abc"))]
    answer = await doors.ask(path, **{first: [1, 2], second: [[3], [4, 5]]})
    assert [float32(one["score"]) for one in answer["data"]] == [score([1, 2], [3]), score([1, 2], [4, 5])]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "queries"),
        ({"queries": "a"}, "queries"),
        ({"text_1": "a", "documents": "a"}, "documents"),
        ({"text_1": "a", "text_2": []}, "text_2"),
        ({"text_1": ["a", "b"], "text_2": ["a", "b", "c"]}, "text_1"),
        ({"queries": "a", "items": ["a"], "label_token_ids": [1]}, "label_token_ids"),
    ],
)
async def test_what_is_refused_of_scores(doors: Doors, body: dict[str, Any], param: str) -> None:
    assert (await doors.refused("/score", **body))[:2] == (400, param)
    assert not doors.ring.asked


@pytest.mark.parametrize(
    ("body", "field", "param"),
    [
        ({"text_1": "a", "text_2": ["a", "b"]}, "documents[1]", "text_2[1]"),
        ({"text_1": "a", "text_2": ["a", "b"]}, "queries[0]", "text_1"),
        ({"queries": ["a"], "items": "b"}, "documents[0]", "items"),
        ({"queries": ["a"], "items": "b"}, "queries[0]", "queries[0]"),
    ],
)
async def test_a_refusal_names_the_field_of_scores(doors: Doors, body, field, param) -> None:
    doors.ring.refuses(*bad_field(field, "it is wrong"))
    assert await doors.refused("/score", **body) == (400, param, f"{param}: it is wrong")
