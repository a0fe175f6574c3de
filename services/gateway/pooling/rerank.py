"""``/rerank``: documents in the order in which they match a query, in the forms of Jina, vLLM, Cohere and TEI."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any

import msgspec
from ringline import Model
from ringline.inference.v1 import inference_pb2 as pb
from ringline.relay import Relay

from services.gateway.fields import passed, refused, same, supported
from services.gateway.http.api_error import invalid
from services.gateway.http.call import Call, Endpoint
from services.gateway.openai.errors import OPENAI
from services.gateway.pooling.embeddings import usage_of
from services.gateway.pooling.endpoint import PoolingEndpoint
from services.gateway.pooling.fields import (
    MAX_INPUTS,
    CutFields,
    add_inputs,
    answered,
    build,
    check_number,
    missing,
    names_of,
    read_cut,
)
from services.gateway.pooling.floats import shortest

_WHOLE = "a document is read at once, with the query; truncate_prompt_tokens cuts it"

Activation = Annotated[
    bool | None,
    passed("False: the numbers before the head's activation, such as a sigmoid. Default: true.", option="activation"),
]
Document = str | dict[str, Any]
"""A text, or an object that has one as ``text``."""


class ScoreFields(CutFields):
    """Fields of requests for scores."""

    use_activation: Activation = None
    instruction: Annotated[
        str | None, passed("What a match means, for models whose template shows it. Default: the template's.")
    ] = None


class RerankRequest(ScoreFields):
    """The body of ``/rerank``."""

    truncate: Annotated[
        bool | None, supported("TEI's and Jina's: `truncate_prompt_tokens` -1. Default: false; in `/v2/rerank` true.")
    ] = None

    query: Annotated[Document | None, supported("A text, or an object with a `text`.")] = None
    documents: Annotated[
        list[Document] | None, supported(f"Texts, or objects with a `text`: at most {MAX_INPUTS}.")
    ] = None
    top_n: Annotated[int | None, supported("So many of the best. Default, and 0: all.")] = None
    return_documents: Annotated[
        bool | None, supported("Whether the answer has the documents. Default: true; in `/v2/rerank` false.")
    ] = None
    texts: Annotated[
        list[str] | None, supported("TEI's `documents`, with which the answer is TEI's: a list of `index` and `score`.")
    ] = None
    return_text: Annotated[bool | None, supported("With `texts`: whether the answer has them. Default: false.")] = None
    raw_scores: Annotated[bool | None, supported("TEI's: true is `use_activation` false.")] = None
    top_k: Annotated[int | None, same("top_n", note="Voyage's `top_n`.")] = None
    rank_fields: Annotated[Any, refused("a document is its text", ["text"], [])] = None
    max_tokens_per_doc: Annotated[Any, refused(_WHOLE)] = None
    max_tokens_per_query: Annotated[Any, refused(_WHOLE)] = None
    max_chunks_per_doc: Annotated[Any, refused(_WHOLE)] = None
    return_embeddings: Annotated[Any, refused("/v1/embeddings makes vectors", False)] = None
    relevant_spans: Annotated[Any, refused("a document has one score", False)] = None


def _request(body: RerankRequest, *, v2: bool) -> pb.ScoreRequest:
    if body.query is None:
        raise missing("query", None, "a text")
    if body.raw_scores is not None:
        if body.use_activation not in (None, not body.raw_scores):
            raise invalid("raw_scores", "use_activation says otherwise: give one")
        body.use_activation = not body.raw_scores
    asked = build(pb.ScoreRequest, body)
    if v2 and body.truncate is None:  # Cohere cuts long documents, and has no field that asks for it
        body.truncate = True
    read_cut(body, asked.options)
    field, documents = _documents(body)
    add_inputs(asked.queries, [_text(body.query, "query")], "query", single=True)
    add_inputs(asked.documents, documents, field)
    return asked


def _documents(body: RerankRequest) -> tuple[str, Sequence[str]]:
    """The field of the documents, and their texts. Raises ``ApiError``."""
    if body.texts is not None and body.documents is not None:
        raise invalid("texts", "set together with documents: expected one of them")
    field, given = ("documents", body.documents) if body.texts is None else ("texts", body.texts)
    if not given:
        raise missing(field, given, "a list of texts")
    check_number(given, field)
    return field, [_text(one, f"{field}[{index}]") for index, one in enumerate(given)]


def _text(given: Document, field: str) -> str:
    if isinstance(given, str):
        return given
    if not isinstance(text := given.get("text"), str):
        raise invalid(field, "expected a text, or an object with a text")
    return text


def _names(body: RerankRequest) -> Callable[[str], str]:
    names = {
        "queries": "query",
        "documents": "documents" if body.texts is None else "texts",
        "activation": "use_activation" if body.raw_scores is None else "raw_scores",
        "truncation": "truncate_prompt_tokens",
        "max_input_tokens": "truncate_prompt_tokens",
    }
    return names_of([RerankRequest], names, frozenset({"queries"}))


def best(scores: Sequence[float], top_n: int | None) -> list[int]:
    """The indices of the ``top_n`` best, the best first, of equals the first; None or less than 1: of all."""
    order = sorted(range(len(scores)), key=lambda index: -scores[index])
    return order[:top_n] if top_n is not None and top_n > 0 else order


def _write(call: Call, body: RerankRequest, told: pb.ScoreResponse, *, v2: bool) -> Iterator[bytes]:
    scores = shortest(told.scores)
    order = best(scores, body.top_n)
    if body.texts is not None:
        yield from _as_tei(body.texts, scores, order, with_text=bool(body.return_text))
        return
    with_documents = not v2 if body.return_documents is None else body.return_documents
    head = {"id": f"rerank-{call.request_id}", "object": "list", "model": answered(body, told.report)}
    if v2:
        head["meta"] = {"api_version": {"version": "2"}, "billed_units": {"search_units": 1}}  # type: ignore[assignment]
    yield msgspec.json.encode(head | {"usage": usage_of(told.report)})[:-1] + b',"results":['
    for place, index in enumerate(order):
        result: dict[str, Any] = {"index": index, "relevance_score": scores[index]}
        if with_documents and body.documents is not None:
            document = body.documents[index]
            result["document"] = {"text": document} if isinstance(document, str) else document
        yield (b"," if place else b"") + msgspec.json.encode(result)
    yield b"]}"


def _as_tei(texts: Sequence[str], scores: Sequence[float], order: Sequence[int], *, with_text: bool) -> Iterator[bytes]:
    yield b"["
    for place, index in enumerate(order):
        rank: dict[str, Any] = {"index": index, "score": scores[index]}
        if with_text:
            rank["text"] = texts[index]
        yield (b"," if place else b"") + msgspec.json.encode(rank)
    yield b"]"


def _endpoint(*, v2: bool) -> PoolingEndpoint[RerankRequest, pb.ScoreRequest, pb.ScoreResponse]:
    def request(body: RerankRequest, _model: Model | None) -> pb.ScoreRequest:
        return _request(body, v2=v2)

    def write(call: Call, body: RerankRequest, told: pb.ScoreResponse) -> Iterator[bytes]:
        return _write(call, body, told, v2=v2)

    return PoolingEndpoint(RerankRequest, Relay.score, request, write, _names)


RERANK, RERANK_V2 = _endpoint(v2=False), _endpoint(v2=True)
_PATHS = ("/rerank", "/v1/rerank", "/reranking", "/v1/reranking")
ENDPOINTS = (
    *(Endpoint("POST", path, RERANK.answer, OPENAI) for path in _PATHS),
    Endpoint("POST", "/v2/rerank", RERANK_V2.answer, OPENAI),
)
