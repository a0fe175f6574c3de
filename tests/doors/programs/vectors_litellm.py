"""litellm, as a library: vectors of one server, rankings of another."""

from __future__ import annotations

import sys
from typing import Any

import litellm
from subjects import ASKED, show

vectors, ranks = sys.argv[1:]
litellm.telemetry = False
key: Any = {"api_key": "none", "max_retries": 0}


def _vectors(model: str, **options: Any) -> Any:
    found = litellm.embedding(model=model, input=ASKED["texts"], api_base=f"{vectors}/v1", **key, **options)
    return [one["embedding"] for one in found.data]


def vectors_as_vllm() -> Any:
    return _vectors("hosted_vllm/embedder")


def vectors_as_openai() -> Any:
    return _vectors("openai/embedder", encoding_format="float")


def _ranks(model: str, base: str, **options: Any) -> Any:
    asked = {"query": ASKED["query"], "documents": ASKED["documents"], "api_base": base, "api_key": "none"}
    found = litellm.rerank(model=model, **asked, **options)
    return [[one["index"], one["relevance_score"]] for one in found.results]


def ranks_as_vllm() -> Any:
    return _ranks("hosted_vllm/reranker", ranks)


def ranks_as_jina() -> Any:
    return _ranks("jina_ai/reranker", f"{ranks}/v1/rerank", top_n=2)


def ranks_as_cohere() -> Any:
    return _ranks("cohere/reranker", f"{ranks}/v2/rerank", top_n=2)


def errors() -> Any:
    try:
        _vectors("hosted_vllm/unknown")
    except Exception as error:
        return type(error).__name__


show(vectors_as_vllm, vectors_as_openai, ranks_as_vllm, ranks_as_jina, ranks_as_cohere, errors)
