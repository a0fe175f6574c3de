"""The tables of docs/reference/openai.md: every field of every request to the gateway, read off the declarations.

``python -m tests.docs.api_fields`` writes them into the page.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, get_args, get_type_hints

import msgspec

from services.gateway.anthropic.request import CountRequest, MessageRequest
from services.gateway.fields import Body, Field, Support, declared
from services.gateway.openai import adapters
from services.gateway.openai.chat import ChatRequest
from services.gateway.openai.completions import CompletionRequest
from services.gateway.openai.responses.request import ResponseRequest
from services.gateway.openai.sampling_fields import SamplingFields
from services.gateway.openai.tokenize import DetokenizeRequest, TokenizeRequest
from services.gateway.other_servers import OtherServers
from services.gateway.pooling import cohere, llama_cpp, tei
from services.gateway.pooling.embeddings import EmbeddingRequest
from services.gateway.pooling.fields import CutFields, PoolingFields
from services.gateway.pooling.labels import ClassifyRequest
from services.gateway.pooling.rerank import RerankRequest
from services.gateway.pooling.results import PoolingRequest
from services.gateway.pooling.scores import ScoreRequest
from tests.docs.documents import ROOT, Generated

ENDPOINTS: Mapping[str, type[Body]] = {
    "/v1/chat/completions": ChatRequest,
    "/v1/completions": CompletionRequest,
    "/v1/responses": ResponseRequest,
    "/v1/responses/input_tokens": ResponseRequest,
    "/v1/messages": MessageRequest,
    "/v1/messages/count_tokens": CountRequest,
    "/tokenize": TokenizeRequest,
    "/detokenize": DetokenizeRequest,
    **dict.fromkeys(("/v1/embeddings", "/embeddings"), EmbeddingRequest),
    **dict.fromkeys(("/rerank", "/v1/rerank", "/v2/rerank", "/reranking", "/v1/reranking"), RerankRequest),
    **dict.fromkeys(("/score", "/v1/score"), ScoreRequest),
    **dict.fromkeys(("/classify", "/v1/classify"), ClassifyRequest),
    **dict.fromkeys(("/pooling", "/v1/pooling"), PoolingRequest),
    "/embed": tei.EmbedRequest,
    "/embed_all": tei.VectorFields,
    "/predict": tei.PredictRequest,
    "/similarity": tei.SimilarityRequest,
    **dict.fromkeys(("/v2/embed", "/v1/embed"), cohere.EmbedRequest),
    "/embedding": llama_cpp.EmbeddingRequest,
    "/v1/load_lora_adapter": adapters.LoadRequest,
    "/v1/unload_lora_adapter": adapters.UnloadRequest,
}
"""The bodies of requests, by path."""
_SHARED: Mapping[type[Body], str] = {
    OtherServers: "Of other servers: wherever text is generated",
    SamplingFields: "Chats and completions",
    CountRequest: "`/v1/messages/count_tokens`, and `/v1/messages`",
    PoolingFields: "Vectors, scores and labels",
    CutFields: "Vectors, scores and labels, except in the forms of Cohere, TEI and llama.cpp",
}
"""Bodies whose fields others have too: they have a table of their own."""
_BEGIN, _END = "<!-- By `python -m tests.docs.api_fields`, which a test runs. -->\n", "<!-- End of the tables. -->"
_NAMES = re.compile(r"\bn(?= gives)|(?<!/)\b[a-z]+(?:_[a-z]+)+(?:\.[a-z_]+)?\b")
"""Of fields, in what is said of others."""
_ORDER = (Support.SUPPORTED, Support.IGNORED, Support.REFUSED)


def tables() -> str:
    """A table for each body, shared ones before those that have more."""
    sections: list[str] = []
    seen: set[type[Body]] = set()
    for path, body in ENDPOINTS.items():
        bases = [base for base in reversed(body.__mro__) if base in _SHARED]
        above: dict[str, Field] = {}
        for base in bases:
            if base not in seen:
                seen.add(base)
                sections.append(_section(_SHARED[base], _without(above, _fields(base))))
            above = _fields(base)
        if body not in bases and body not in seen:
            seen.add(body)
            sections.append(_section(f"`{path}`" + (", besides" if above else ""), _without(above, _fields(body))))
    return "\n".join(sections)


def _without(above: Mapping[str, Field], fields: Mapping[str, Field]) -> dict[str, Field]:
    """The fields that a body declares itself, or otherwise than what is above it."""
    return {name: field for name, field in fields.items() if above.get(name) != field}


def _fields(body: type[Body]) -> dict[str, Field]:
    """The fields of a body, and of the objects in it whose fields are declared."""
    return dict(_walk(body, ""))


def _walk(body: type[Body], prefix: str) -> Iterator[tuple[str, Field]]:
    hints = get_type_hints(body)
    attributes = {one.encode_name: one.name for one in msgspec.structs.fields(body)}
    for name, field in declared(body).items():
        yield prefix + name, field
        for inner in _bodies_in(hints[attributes[name]]):
            yield from _walk(inner, f"{prefix}{name}.")


def _bodies_in(hint: Any) -> Iterator[type[Body]]:
    if isinstance(hint, type) and issubclass(hint, Body):
        yield hint
    for part in get_args(hint):
        yield from _bodies_in(part)


def _section(title: str, fields: Mapping[str, Field]) -> str:
    rows = [f"### {title}", "", "| field | | |", "|---|---|---|"]
    ordered = sorted(fields.items(), key=lambda one: _ORDER.index(one[1].support))
    return "\n".join([*rows, *(f"| `{name}` | {field.support} | {_cell(field)} |" for name, field in ordered)]) + "\n"


def _cell(field: Field) -> str:
    if field.support is not Support.REFUSED:
        return field.note
    note = _NAMES.sub(r"`\g<0>`", field.note) + "."
    note = note[:1].upper() + note[1:]
    neutral = [f"`{msgspec.json.encode(value).decode()}`" for value in field.neutral]
    if field.below is not None:
        neutral.append(f"less than `{field.below}`")
    return note + (f" Accepted: {', '.join(neutral)}." if neutral else "")


TABLES = Generated(ROOT / "docs" / "reference" / "openai.md", _BEGIN, _END, tables)

if __name__ == "__main__":
    TABLES.write()
