"""Cohere's package: vectors of one server, rankings of another."""

from __future__ import annotations

import sys
from typing import Any

import cohere
from subjects import ASKED, show

vectors, ranks = sys.argv[1:]
TEXTS, QUERY, DOCUMENTS = ASKED["texts"], ASKED["query"], ASKED["documents"]


def vectors_by_v2() -> Any:
    client = cohere.ClientV2(api_key="none", base_url=vectors)
    types = ["float", "base64", "ubinary"]
    found = client.embed(model="embedder", texts=TEXTS, input_type="search_query", embedding_types=types)
    of = found.embeddings
    return {"float": of.float_, "base64": of.base64, "ubinary": of.ubinary, "texts": found.texts}


def vectors_by_v1() -> Any:
    client = cohere.Client(api_key="none", base_url=vectors)
    return client.embed(model="embedder", texts=TEXTS, input_type="search_document").embeddings


def ranks_by_v2() -> Any:
    client = cohere.ClientV2(api_key="none", base_url=ranks)
    found = client.rerank(model="reranker", query=QUERY, documents=DOCUMENTS, top_n=3)
    return [[one.index, one.relevance_score] for one in found.results]


def ranks_by_v1() -> Any:
    client = cohere.Client(api_key="none", base_url=ranks)
    found = client.rerank(model="reranker", query=QUERY, documents=DOCUMENTS, return_documents=True)
    return [[one.index, one.relevance_score, one.document and one.document.text] for one in found.results]


def errors() -> Any:
    try:
        cohere.ClientV2(api_key="none", base_url=ranks).rerank(model="unknown", query=QUERY, documents=DOCUMENTS)
    except Exception as error:
        return type(error).__name__


show(vectors_by_v2, vectors_by_v1, ranks_by_v2, ranks_by_v1, errors)
