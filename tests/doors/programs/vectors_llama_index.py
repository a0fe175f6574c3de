"""llama-index's classes for OpenAI's API and for TEI."""

from __future__ import annotations

import sys
from typing import Any

from llama_index.embeddings.openai import OpenAIEmbedding
from llama_index.embeddings.text_embeddings_inference import TextEmbeddingsInference
from subjects import ASKED, show

(url,) = sys.argv[1:]
openai = OpenAIEmbedding(model_name="embedder", api_base=f"{url}/v1", api_key="none", max_retries=0)
tei = TextEmbeddingsInference(model_name="embedder", base_url=url)


def texts_by_openai() -> Any:
    return openai.get_text_embedding_batch(ASKED["texts"])


def query_by_openai() -> Any:
    return openai.get_query_embedding(ASKED["query"])


async def texts_by_openai_async() -> Any:
    return await openai.aget_text_embedding_batch(ASKED["texts"])


def texts_by_tei() -> Any:
    return tei.get_text_embedding_batch(ASKED["texts"])


def query_by_tei() -> Any:
    return tei.get_query_embedding(ASKED["query"])


show(texts_by_openai, query_by_openai, texts_by_openai_async, texts_by_tei, query_by_tei)
