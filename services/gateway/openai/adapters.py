"""``/v1/load_lora_adapter`` and ``/v1/unload_lora_adapter``, as in vLLM: adapters at all engines of a model.

Processors refuse them unless they are started with ``--enable-adapter-control``.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated, Any

import msgspec
from ringline import FailedPrecondition, NotFound
from starlette.responses import Response

from services.gateway.fields import Body, checked, ignored, refused, supported
from services.gateway.http.api_error import ApiError, api_error_from
from services.gateway.http.call import Call, Endpoint, parse
from services.gateway.openai.errors import openai_dialect

_TEXT = "text/plain; charset=utf-8"
_NAMES = {"name": "lora_name", "path": "lora_path", "replace": "load_inplace"}


class LoadRequest(Body):
    """The body of ``/v1/load_lora_adapter``."""

    lora_name: Annotated[str | None, supported("What requests then give as their `model`.")] = None
    lora_path: Annotated[
        str | None, supported("A folder at each engine, below its `--lora-dir` and given from there or from the root.")
    ] = None
    load_inplace: Annotated[
        bool | None, supported("A name that stands for other contents stands for these. Default: false.")
    ] = None
    base_model_name: Annotated[str | None, supported("Default: the model that is served.")] = None
    is_3d_lora_weight: Annotated[Any, refused("the file says how its weights lie", False)] = None


class UnloadRequest(Body):
    """The body of ``/v1/unload_lora_adapter``."""

    lora_name: Annotated[str | None, supported("The adapter's name.")] = None
    base_model_name: Annotated[str | None, supported("Default: the model that is served.")] = None
    lora_int_id: Annotated[Any, ignored("Adapters are told by their names.")] = None


_LOAD = msgspec.json.Decoder(LoadRequest)
_UNLOAD = msgspec.json.Decoder(UnloadRequest)


async def load_adapter(call: Call) -> Response:
    """Make an adapter known."""
    body = await call.aside(lambda: checked(parse(_LOAD, call.body)))
    if not body.lora_name or not body.lora_path:
        raise _user_error("Both 'lora_name' and 'lora_path' must be provided.")
    try:
        await call.client.load_adapter(
            body.lora_name, body.lora_path, model=body.base_model_name, replace=bool(body.load_inplace)
        )
    except FailedPrecondition as error:
        if error.reason != "ADAPTER_EXISTS":
            raise
        problem = f"The lora adapter '{body.lora_name}' has already been loaded."
        advice = "If you want to load the adapter in place, set 'load_inplace' to True."
        raise _worded(error, HTTPStatus.BAD_REQUEST, f"{problem} {advice}") from None
    return Response(f"Success: LoRA adapter '{body.lora_name}' added successfully.", media_type=_TEXT)


async def unload_adapter(call: Call) -> Response:
    """Forget an adapter."""
    body = await call.aside(lambda: checked(parse(_UNLOAD, call.body)))
    if not body.lora_name:
        raise _user_error("'lora_name' needs to be provided to unload a LoRA adapter.")
    try:
        await call.client.unload_adapter(body.lora_name, model=body.base_model_name)
    except NotFound as error:
        if error.reason != "ADAPTER_NOT_FOUND":
            raise
        problem = f"The lora adapter '{body.lora_name}' cannot be found."
        raise _worded(error, HTTPStatus.NOT_FOUND, problem) from None
    return Response(f"Success: LoRA adapter '{body.lora_name}' removed successfully.", media_type=_TEXT)


def _user_error(problem: str) -> ApiError:
    return ApiError(HTTPStatus.BAD_REQUEST, problem, "lora_name", "invalid_field")


def _worded(error: FailedPrecondition | NotFound, status: HTTPStatus, problem: str) -> ApiError:
    """An error of the ring in vLLM's words, by which its clients tell it."""
    worded = api_error_from(error, _DIALECT.name_of)
    worded.status, worded.message, worded.param = status, problem, "lora_name"
    return worded


_DIALECT = openai_dialect(_NAMES, LoadRequest, UnloadRequest)

ENDPOINTS = (
    Endpoint("POST", "/v1/load_lora_adapter", load_adapter, _DIALECT),
    Endpoint("POST", "/v1/unload_lora_adapter", unload_adapter, _DIALECT),
)
