"""Every endpoint of the gateway."""

from __future__ import annotations

from collections.abc import Sequence

from services.gateway.anthropic import messages
from services.gateway.http.call import Endpoint
from services.gateway.openai import adapters, chat, completions, models, tokenize
from services.gateway.openai.responses import endpoint as responses
from services.gateway.page import page
from services.gateway.pooling import cohere, embeddings, labels, llama_cpp, rerank, results, scores, tei
from services.gateway.rpc import inference

ENDPOINTS: Sequence[Endpoint] = (
    *chat.ENDPOINTS,
    *completions.ENDPOINTS,
    *models.ENDPOINTS,
    *adapters.ENDPOINTS,
    *tokenize.ENDPOINTS,
    *responses.ENDPOINTS,
    *messages.ENDPOINTS,
    *embeddings.ENDPOINTS,
    *rerank.ENDPOINTS,
    *scores.ENDPOINTS,
    *labels.ENDPOINTS,
    *results.ENDPOINTS,
    *tei.ENDPOINTS,
    *cohere.ENDPOINTS,
    *llama_cpp.ENDPOINTS,
    *page.ENDPOINTS,
    *inference.ENDPOINTS,
)
