"""``/v1/models``: the models that requests can name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from http import HTTPStatus
from itertools import chain, islice
from typing import Any

import msgspec
from ringline import Model
from starlette.responses import Response

from services.gateway.http.api_error import ApiError
from services.gateway.http.call import Call, Endpoint
from services.gateway.model_names import Named, find_model, named
from services.gateway.openai.errors import OPENAI

_MOST_SHOWN = 20
"""Names in an error."""


async def list_models(call: Call) -> Response:
    """The models that the caller may use."""
    found = await _models(call)
    entries = sum(1 + len(model.adapters) for model in found)
    return await call.aside(lambda: _list(found), entries)


def _list(found: Sequence[Model]) -> Response:
    models = [_object(each) for each in named(found)]
    page = {"first_id": models[0]["id"] if models else None, "last_id": models[-1]["id"] if models else None}
    body = {"object": "list", "data": models, "has_more": False, **page}
    return Response(msgspec.json.encode(body), media_type="application/json")


async def retrieve_model(call: Call) -> Response:
    """One model; all if unnamed, for clients that end URLs with a slash."""
    if not call.path_params["name"]:
        return await list_models(call)
    name = call.path_params["name"]
    found = await _models(call)
    one = next((each for each in named(found) if name in (each.id, each.root)), None)
    if one is None:
        raise _unknown(name, found)
    return Response(msgspec.json.encode(_object(one)), media_type="application/json")


async def model_of(call: Call, name: str | None, suits: Callable[[Model], bool] = lambda model: True) -> Model:
    """The model of that name that the caller may use; without a name the first that ``suits``, or the first.

    Raises ``ApiError``.
    """
    models = await _models(call)
    if not name:
        if not models:
            raise _none_yet()
        return next(filter(suits, models), models[0])
    if (model := find_model(name, models)) is not None:
        return model
    raise _unknown(name, models)


def _unknown(name: str, models: Sequence[Model]) -> ApiError:
    adapters = (each.id for each in named(models) if each.parent is not None)
    served = dict.fromkeys(chain((model.name for model in models), adapters))
    expected = ", ".join(map(repr, islice(served, _MOST_SHOWN))) or "none yet"
    problem = f"model: {name[:200]!r} is not served here: expected {expected}"
    return ApiError(HTTPStatus.NOT_FOUND, problem, "model", "model_not_found")


async def _models(call: Call) -> Sequence[Model]:
    """Those that the caller may use, of a ring that serves. Raises ``ApiError``."""
    models = await call.client.models()
    if not models and not call.ring_serves:  # clients that fill a menu once would take the server for empty
        raise _none_yet()
    return models


def _none_yet() -> ApiError:
    return ApiError(HTTPStatus.SERVICE_UNAVAILABLE, "no model is served yet", code="not_ready", retry_after=1.0)


def _object(each: Named) -> dict[str, Any]:
    """A model, with OpenAI's, vLLM's, Anthropic's and OpenRouter's members, and Ringline's own at the end.

    An adapter has what its base has.
    """
    model = each.model
    reads = ["text", "image"] if "media" in model.capabilities else ["text"]
    return {
        "id": each.id,
        "object": "model",
        "created": 0,
        "owned_by": "ringline",
        "root": each.root,
        "parent": each.parent,
        "max_model_len": model.max_model_len,
        "type": "model",
        "display_name": each.id,
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
