"""``/v1/models``: the models that requests can name."""

from __future__ import annotations

import msgspec
from starlette.responses import Response

from services.gateway.http.call import Call, Endpoint
from services.gateway.openai.errors import OPENAI


async def list_models(call: Call) -> Response:
    """The models that the caller may use."""
    models = [
        {
            "id": model.name,
            "object": "model",
            "created": 0,
            "owned_by": "ringline",
            "max_model_len": model.max_model_len,
        }
        for model in await call.client.models()
    ]
    return Response(msgspec.json.encode({"object": "list", "data": models}), media_type="application/json")


ENDPOINTS = (Endpoint("GET", "/v1/models", list_models, OPENAI),)
