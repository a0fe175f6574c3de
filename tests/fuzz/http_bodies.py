"""Good bodies of every path of a gateway that asks the ring, and fields that are put into them, by the kind of ring."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Case = tuple[str, dict[str, Any]]
"""A path and a body."""

_RPC = "/ringline.inference.v1.InferenceService/"
_MESSAGES = [{"role": "user", "content": "Once upon a time"}]
_PICTURE = {"type": "image_url", "image_url": {"url": "data:image/gif;base64,R0lGODlh", "detail": "auto"}}
_SEEING = [{"role": "user", "content": [{"type": "text", "text": "See:"}, _PICTURE]}]
_TOKENS: Sequence[Case] = (
    ("/v1/chat/completions", {"model": "tiny", "messages": _MESSAGES, "max_tokens": 3, "stream": True}),
    ("/v1/chat/completions", {"messages": _MESSAGES, "max_tokens": 3, "logprobs": True, "top_logprobs": 2, "n": 2}),
    ("/v1/chat/completions", {"model": "tiny", "messages": _SEEING, "max_tokens": 3}),
    ("/v1/completions", {"model": "tiny", "prompt": ["Once", "upon"], "max_tokens": 2, "echo": True, "logprobs": 1}),
    ("/v1/responses", {"model": "tiny", "input": "Once", "max_output_tokens": 2, "stream": True}),
    ("/v1/messages", {"model": "tiny", "messages": _MESSAGES, "max_tokens": 2, "stream": True}),
    ("/tokenize", {"model": "tiny", "prompt": "Once upon a time"}),
    ("/detokenize", {"model": "tiny", "tokens": [5, 6, 7]}),
    ("/v1/responses/input_tokens", {"model": "tiny", "input": "Once"}),
    ("/v1/messages/count_tokens", {"model": "tiny", "messages": _MESSAGES}),
    (_RPC + "Generate", {"text": "Once", "stopping": {"maxTokens": 2}}),
    (_RPC + "Tokenize", {"text": "Once"}),
    (_RPC + "Detokenize", {"tokenIds": [5, 6, 7]}),
    (_RPC + "ListModels", {}),
    ("/v1/load_lora_adapter", {"lora_name": "blue", "lora_path": "blue", "load_inplace": True}),
    ("/v1/unload_lora_adapter", {"lora_name": "blue"}),
    (_RPC + "LoadAdapter", {"name": "blue", "path": "blue", "replace": True}),
    (_RPC + "UnloadAdapter", {"name": "blue"}),
    (_RPC + "ListAdapters", {}),
)
_TEXTS = ["Once upon", "a time"]
_INPUTS = [{"text": "Once"}, {"tokenIds": {"ids": [5, 6]}}]
_SENTENCES = {"source_sentence": "Once", "sentences": _TEXTS}
_CUT = {"truncate": True, "truncation_direction": "left", "prompt_name": "query"}
_VECTORS: Sequence[Case] = (
    ("/v1/embeddings", {"model": "vectors", "input": _TEXTS, "encoding_format": "base64", "dimensions": 8}),
    ("/v1/embeddings", {"input": [[5, 6], [7]], "normalize": False, "truncate_prompt_tokens": 1}),
    ("/embeddings", {"input": [5, 6, 7], "truncation_side": "left", "user": "u"}),
    ("/embed", {"inputs": _TEXTS, "normalize": False, "truncate": True, "prompt_name": "query", "dimensions": 8}),
    ("/embed_all", {"inputs": _TEXTS, "truncate": True, "truncation_direction": "left"}),
    ("/similarity", {"inputs": _SENTENCES, "parameters": _CUT}),
    ("/", {"inputs": _TEXTS}),
    ("/v1/embed", {"texts": _TEXTS, "truncate": "START"}),
    (
        "/v2/embed",
        {
            "model": "vectors",
            "texts": _TEXTS,
            "input_type": "search_query",
            "embedding_types": ["float", "base64", "binary", "ubinary"],
            "output_dimension": 8,
        },
    ),
    ("/v2/embed", {"inputs": [{"content": [{"type": "text", "text": "Once"}]}], "max_tokens": 2}),
    ("/embedding", {"content": _TEXTS, "embd_normalize": 2}),
    ("/pooling", {"input": _TEXTS, "task": "token_embed", "encoding_format": "base64"}),
    ("/v1/pooling", {"input": [[5, 6], [7]], "dimensions": 8, "use_activation": True, "prompt_name": "query"}),
    ("/v1/score", {"text_1": _TEXTS, "text_2": _TEXTS}),
    ("/v1/rerank", {"model": "vectors", "query": "Once", "documents": _TEXTS, "top_n": 1}),
    (_RPC + "Embed", {"inputs": _INPUTS, "perToken": True, "options": {"truncation": "TRUNCATION_END"}}),
)
_OBJECTS = [{"text": "Once", "id": 1}, "upon"]
_SCORES: Sequence[Case] = (
    ("/rerank", {"query": "Once", "texts": _TEXTS, "return_text": True, "raw_scores": True}),
    ("/v1/rerank", {"model": "scores", "query": {"text": "Once"}, "documents": _OBJECTS, "top_n": 1}),
    ("/reranking", {"query": "Once", "documents": _TEXTS, "return_documents": False, "use_activation": False}),
    ("/v1/reranking", {"query": "Once", "documents": _TEXTS, "truncate": True, "top_k": 1}),
    ("/v2/rerank", {"model": "scores", "query": "Once", "documents": _TEXTS, "top_n": 2}),
    ("/score", {"queries": "Once", "documents": _TEXTS, "truncate_prompt_tokens": 5}),
    ("/v1/score", {"data_1": _TEXTS, "data_2": _TEXTS, "use_activation": False}),
    ("/classify", {"input": _TEXTS, "use_activation": True}),
    ("/v1/classify", {"model": "scores", "input": [[5, 6], [7]]}),
    ("/predict", {"inputs": [["Once"], ["upon"]], "raw_scores": True, "truncate": True}),
    ("/pooling", {"input": _TEXTS, "task": "classify", "use_activation": False}),
    ("/", {"query": "Once", "texts": _TEXTS}),
    ("/embed", {"inputs": _TEXTS}),
    (_RPC + "Score", {"queries": _INPUTS[:1], "documents": _INPUTS[:1], "activation": False}),
    (_RPC + "Classify", {"inputs": _INPUTS, "options": {"maxInputTokens": 1, "truncation": "TRUNCATION_START"}}),
)
BODIES: Mapping[str, Sequence[Case]] = {"tokens": _TOKENS, "vectors": _VECTORS, "scores": _SCORES}
_POOLING_FIELDS = ("add_special_tokens", "cache_salt", "priority", "truncate", "truncate_prompt_tokens", "padding")
FIELDS: Mapping[str, Sequence[str]] = {
    "tokens": ("seed", "stop", "tools", "response_format", "logit_bias", "user"),
    "vectors": (*_POOLING_FIELDS, "dimensions", "encoding_format", "task", "input_type"),
    "scores": (*_POOLING_FIELDS, "instruction", "top_n", "return_documents", "labels"),
}
"""Further fields."""
