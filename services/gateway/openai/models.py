"""``/v1/models``: the models that requests can name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from http import HTTPStatus
from typing import Any

import msgspec
from ringline import Model
from starlette.responses import Response

from services.gateway.http.api_error import ApiError
from services.gateway.http.call import Call, Endpoint
from services.gateway.openai.errors import OPENAI


async def list_models(call: Call) -> Response:
    """The models that the caller may use."""
    models = [_object(model) for model in await _models(call)]
    page = {"first_id": models[0]["id"] if models else None, "last_id": models[-1]["id"] if models else None}
    body = {"object": "list", "data": models, "has_more": False, **page}
    return Response(msgspec.json.encode(body), media_type="application/json")


async def retrieve_model(call: Call) -> Response:
    """One model; all if unnamed, for clients that end URLs with a slash."""
    if not call.path_params["name"]:
        return await list_models(call)
    model = await model_of(call, call.path_params["name"])
    return Response(msgspec.json.encode(_object(model)), media_type="application/json")


async def model_of(call: Call, name: str | None, suits: Callable[[Model], bool] = lambda model: True) -> Model:
    """The model of that name that the caller may use; without a name the first that ``suits``, or the first.

    Raises ``ApiError``.
    """
    models = await _models(call)
    if not name:
        if not models:
            raise _none_yet()
        return next(filter(suits, models), models[0])
    for model in models:
        if name == model.name:
            return model
    served = ", ".join(repr(model.name) for model in models) or "none yet"
    problem = f"model: {name[:200]!r} is not served here: expected {served}"
    raise ApiError(HTTPStatus.NOT_FOUND, problem, "model", "model_not_found")


async def _models(call: Call) -> Sequence[Model]:
    """Those that the caller may use, of a ring that serves. Raises ``ApiError``."""
    models = await call.client.models()
    if not models and not call.ring_serves:  # clients that fill a menu once would take the server for empty
        raise _none_yet()
    return models


def _none_yet() -> ApiError:
    return ApiError(HTTPStatus.SERVICE_UNAVAILABLE, "no model is served yet", code="not_ready", retry_after=1.0)


def _object(model: Model) -> dict[str, Any]:
    """A model, with OpenAI's, vLLM's, Anthropic's and OpenRouter's members, and Ringline's own at the end."""
    reads = ["text", "image"] if "media" in model.capabilities else ["text"]
    return {
        "id": model.name,
        "object": "model",
        "created": 0,
        "owned_by": "ringline",
        "root": model.name,
        "parent": None,
        "max_model_len": model.max_model_len,
        "type": "model",
        "display_name": model.name,
        "lifecycle": "active",
        "created_at": "1970-01-01T00:00:00Z",
        "max_input_tokens": model.max_model_len,
        "architecture": {"input_modalities": reads, "output_modalities": [_made_by(model)]},
        "default_sampling": dict(model.default_sampling),
        "num_parameters": model.num_parameters,
        "tasks": ["generate"] if model.pooling is None else list(model.pooling.tasks),
        "pooling": None if model.pooling is None else asdict(model.pooling),
    }


def _made_by(model: Model) -> str:
    """What a model makes, in OpenRouter's words."""
    if model.pooling is None:
        return "text"
    return "embeddings" if model.pooling.dimensions else "scores"


ENDPOINTS = (
    Endpoint("GET", "/v1/models", list_models, OPENAI),
    Endpoint("GET", "/v1/models/{name:path}", retrieve_model, OPENAI),
)
