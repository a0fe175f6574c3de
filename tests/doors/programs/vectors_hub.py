"""huggingface_hub's client of inference, at TEI's paths: vectors."""

from __future__ import annotations

import os
import sys
from typing import Any

from subjects import ASKED, show

os.environ["HF_HUB_OFFLINE"] = "0"  # else it asks nobody, the door included

from huggingface_hub import InferenceClient

(vectors,) = sys.argv[1:]


def texts() -> Any:
    found = InferenceClient(vectors).feature_extraction(ASKED["texts"], truncate=True, normalize=True)
    return found.tolist()


def text_at_its_path() -> Any:
    return InferenceClient().feature_extraction(ASKED["query"], model=f"{vectors}/embed", prompt_name="query").tolist()


def similarities() -> Any:
    client = InferenceClient()
    return client.sentence_similarity(ASKED["query"], other_sentences=ASKED["texts"], model=f"{vectors}/similarity")


def chats() -> Any:
    """As clients of chats, which this model is not for."""
    try:
        InferenceClient(base_url=f"{vectors}/v1").chat_completion(ASKED["messages"], model="embedder")
    except Exception as error:
        return str(error)


show(texts, text_at_its_path, similarities, chats)
