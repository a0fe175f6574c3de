"""Paths of other servers that the gateway lacks, and what a 404 says of them."""

from __future__ import annotations

from collections.abc import Mapping

_GENERATION = "/v1/completions continues texts, /v1/chat/completions answers chats"
_READINESS = "/health says whether requests are served, /live whether the gateway runs"
_RENDERING = "/tokenize takes messages, too, and with return_token_strs it shows the prompt"
_STATE = "/v1/models has the models that are served, /metrics what runs"
_VECTORS = "/v1/embeddings makes vectors of texts, /rerank puts documents in order, /score compares texts"
_ADAPTERS = "/v1/models has the adapters, whose names requests give as their model"
_LOADING = "/v1/load_lora_adapter and /v1/unload_lora_adapter load and unload adapters"
_ONE_MODALITY = "text is the only modality"
_NO_STORE = "nothing is stored, and every request is answered while its client waits"
_UNPREFIXED = "this path is without /v1"
_OTHERWISE = (
    "there are /v1/chat/completions, /v1/completions, /v1/models and others, which docs/reference/openai.md lists"
)

_ROOMS: Mapping[tuple[str, ...], str] = {
    # llama-server, SGLang, TGI, Ollama, vLLM
    ("/completion", "/generate", "/generate_stream", "/invocations", "/api/generate", "/api/chat"): _GENERATION,
    ("/v1/chat", "/v1/engines", "/inference", "/v1/complete"): _GENERATION,
    ("/infill", "/v1/infill"): "/v1/completions continues a text in the model's fill-in-the-middle format",
    ("/v1/health", "/healthz", "/readyz", "/livez", "/ping", "/v1/ping", "/health_generate"): _READINESS,
    ("/v1/live", "/v1/metrics", "/v1/version"): _UNPREFIXED,
    ("/v1/tokenize", "/v1/detokenize", "/v1/tokenizer_info"): _UNPREFIXED,
    ("/api/version",): "it is called /version",
    ("/apply-template", "/v1/chat/completions/render", "/v1/completions/render"): _RENDERING,
    ("/props", "/v1/props", "/slots", "/v1/slots", "/load", "/server_info"): _STATE,
    ("/get_model_info", "/model_info", "/get_server_info", "/api/tags", "/api/show", "/api/ps"): _STATE,
    ("/v1/embedding", "/api/embed", "/api/embeddings", "/encode", "/embed_sparse"): _VECTORS,
    ("/lora-adapters",): _ADAPTERS,
    ("/load_lora_adapter", "/load_lora_adapter_from_tensors", "/unload_lora_adapter", "/adapters"): _LOADING,
    # OpenAI, Anthropic
    ("/v1/audio", "/v1/images", "/v1/videos", "/v1/realtime"): _ONE_MODALITY,
    ("/v1/files", "/v1/batches", "/v1/uploads", "/v1/fine_tuning", "/v1/evals", "/v1/vector_stores"): _NO_STORE,
    ("/v1/assistants", "/v1/threads", "/v1/conversations", "/v1/messages/batches"): _NO_STORE,
    ("/v1/responses/compact",): "shorten the input yourself; /v1/responses/input_tokens counts its tokens",
    ("/v1/moderations",): "nothing is moderated",
    ("/docs", "/redoc", "/openapi.json"): "docs/reference/openai.md describes the API",
    # Base URLs: OpenAI's ends with /v1, Anthropic's does not
    ("/v1/v1",): "the client adds /v1 itself: leave it out of the base URL",
    ("/chat/completions", "/completions", "/responses", "/models", "/messages"): "the base URL ends with /v1",
}
OTHER_PATHS = {path: advice for paths, advice in _ROOMS.items() for path in paths}
"""By path, which stands for those below it, too."""
_DEEPEST = max(path.count("/") for path in OTHER_PATHS)


def path_advice(path: str) -> str:
    """What there is instead of an unknown path, or of one above it: the rest of a sentence."""
    parts = path.split("/", _DEEPEST + 1)[: _DEEPEST + 1]
    paths = ("/".join(parts[:count]) for count in range(len(parts), 1, -1))
    return next((advice for each in paths if (advice := OTHER_PATHS.get(each)) is not None), _OTHERWISE)
