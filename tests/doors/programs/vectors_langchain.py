"""langchain-openai: vectors."""

from __future__ import annotations

import sys
from typing import Any

from langchain_core.vectorstores import InMemoryVectorStore
from langchain_openai import OpenAIEmbeddings
from subjects import ASKED, show

(url,) = sys.argv[1:]
server: Any = {"base_url": url, "api_key": "none", "model": "embedder", "max_retries": 0}
embeddings = OpenAIEmbeddings(**server, check_embedding_ctx_length=False)


def documents() -> Any:
    return embeddings.embed_documents(ASKED["texts"])


def query() -> Any:
    return embeddings.embed_query(ASKED["query"])


async def documents_async() -> Any:
    return await embeddings.aembed_documents(ASKED["texts"])


def store() -> Any:
    """A search in its own store of vectors."""
    made = InMemoryVectorStore.from_texts(ASKED["texts"], embeddings)
    return [one.page_content for one in made.similarity_search(ASKED["query"], k=2)]


show(documents, query, documents_async, store)
