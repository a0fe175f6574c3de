"""Cohere's ``/v2/embed`` and ``/v1/embed``. Its rankings are among ``rerank``'s."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any

import msgspec
from ringline import Model
from ringline.inference.v1 import inference_pb2 as pb
from ringline.relay import Relay

from services.gateway.fields import passed, refused, supported
from services.gateway.http.api_error import invalid, shown
from services.gateway.http.call import Call, Endpoint
from services.gateway.openai.errors import OPENAI
from services.gateway.pooling.endpoint import PoolingEndpoint, makes_vectors
from services.gateway.pooling.fields import (
    MAX_INPUTS,
    PoolingFields,
    add_inputs,
    build,
    check_number,
    missing,
    names_of,
)
from services.gateway.pooling.floats import Write, numbers_of, rows_of, write_base64, write_floats

_TEXT_ONLY = "inputs are texts"
_CUTS = {"NONE": pb.TRUNCATION_NONE, "START": pb.TRUNCATION_START, "END": pb.TRUNCATION_END}
_PROMPTS: Mapping[str, tuple[str, ...]] = {
    "search_query": ("search_query", "query"),
    "search_document": ("search_document", "document", "passage"),
}
"""Names that models give to the prompts of Cohere's types."""


class EmbedRequest(PoolingFields):
    """The body of ``/v2/embed`` and ``/v1/embed``."""

    texts: Annotated[list[str] | None, supported(f"At most {MAX_INPUTS}.")] = None
    inputs: Annotated[
        list[dict[str, Any]] | None, supported("Instead of `texts`: objects whose `content` is a list of texts.")
    ] = None
    input_type: Annotated[
        str | None,
        supported(
            "Name of one of the model's prompts; `search_query` is `query`, too, and `search_document` is `document` "
            "or `passage`. Of a model without prompts: any."
        ),
    ] = None
    embedding_types: Annotated[
        list[str] | None,
        supported("Of `float`, `base64`, `binary` and `ubinary`. Default: `float`; in `/v1/embed` a list alone."),
    ] = None
    output_dimension: Annotated[int | None, passed("So many leading numbers. Default: all.", option="dimensions")] = (
        None
    )
    truncate: Annotated[
        str | None, supported("What is cut off long texts: `NONE`, which refuses them, `START` or `END`, the default.")
    ] = None
    max_tokens: Annotated[int | None, passed("Most tokens of a text.", option="max_input_tokens")] = None
    images: Annotated[Any, refused(_TEXT_ONLY, [])] = None


def _request(body: EmbedRequest, model: Model | None) -> pb.EmbedRequest:
    _types(body)
    asked = build(pb.EmbedRequest, body)
    truncate = "END" if body.truncate is None else body.truncate
    if truncate not in _CUTS:
        raise invalid("truncate", f"{shown(truncate)}: expected {', '.join(_CUTS)}")
    asked.options.truncation = _CUTS[truncate]
    if body.input_type is not None and model is not None and (name := _prompt(body.input_type, model)) is not None:
        asked.prompt_name = name
    add_inputs(asked.inputs, _texts(body), "texts" if body.inputs is None else "inputs")
    return asked


def _texts(body: EmbedRequest) -> Sequence[str]:
    if (body.texts is None) == (body.inputs is None):
        problem = "missing: expected texts" if body.texts is None else "set together with inputs: expected one of them"
        raise invalid("texts", problem)
    field, given = ("texts", body.texts) if body.inputs is None else ("inputs", body.inputs)
    if not given:
        raise missing(field, given, "a list of texts")
    check_number(given, field)
    return body.texts or [_content(one, f"inputs[{index}]") for index, one in enumerate(body.inputs or ())]


def _content(given: dict[str, Any], field: str) -> str:
    """The text of an input's parts."""
    parts = given.get("content")
    if not isinstance(parts, list) or not parts:
        raise invalid(f"{field}.content", "expected a list of texts")
    texts = [part.get("text") if isinstance(part, dict) else None for part in parts]
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            raise invalid(f"{field}.content[{index}]", f"{_TEXT_ONLY}: expected a part with a text")
    return "\n".join(map(str, texts))


def _prompt(input_type: str, model: Model) -> str | None:
    """The name of the model's prompt for a type; None if the model has no prompts. Raises ``ApiError``."""
    prompts = () if model.pooling is None else model.pooling.prompts
    for name in _PROMPTS.get(input_type, (input_type,)):
        for own in prompts:
            if own.lower() == name:
                return own
    if not prompts:
        return None
    raise invalid("input_type", f"{shown(input_type)}: the model has prompts {', '.join(map(repr, prompts))}")


def _write_signs(least: int) -> Write:
    """Numbers from ``least``: bytes, whose bits say, the highest first, which numbers are greater than 0."""

    def write(row: memoryview) -> bytes:
        signs = "".join("1" if number > 0 else "0" for number in numbers_of(row))
        signs += "0" * (-len(signs) % 8)
        return msgspec.json.encode([int(signs[at : at + 8], 2) + least for at in range(0, len(signs), 8)])

    return write


_WRITERS: Mapping[str, Write] = {
    "float": write_floats,
    "base64": write_base64,
    "binary": _write_signs(-128),
    "ubinary": _write_signs(0),
}


def _types(body: EmbedRequest) -> Sequence[str]:
    """The types of vectors, each once. Raises ``ApiError``."""
    given = list(dict.fromkeys(body.embedding_types or ["float"]))
    for index, one in enumerate(given):
        if one not in _WRITERS:
            raise invalid(f"embedding_types[{index}]", f"{shown(one)}: expected {', '.join(_WRITERS)}")
    return given


def _names(body: EmbedRequest) -> Callable[[str], str]:
    names = {"inputs": "texts" if body.inputs is None else "inputs", "prompt_name": "input_type"}
    return names_of([EmbedRequest], names | {"truncation": "truncate"})


def _write(call: Call, body: EmbedRequest, told: pb.EmbedResponse, *, version: int) -> Iterator[bytes]:
    by_type = version > 1 or bool(body.embedding_types)
    head = {"id": f"embed-{call.request_id}", "response_type": f"embeddings_{'by_type' if by_type else 'floats'}"}
    yield msgspec.json.encode(head)[:-1] + b',"embeddings":' + (b"{" if by_type else b"")
    for place, one in enumerate(_types(body)):
        yield (b"," if place else b"") + (msgspec.json.encode(one) + b":" if by_type else b"") + b"["
        for index, row in enumerate(rows_of(told.values, told.dimensions)):
            yield (b"," if index else b"") + _WRITERS[one](row)
        yield b"]"
    yield (b"}" if by_type else b"") + b',"texts":['
    for index, text in enumerate(body.texts or ()):
        yield (b"," if index else b"") + msgspec.json.encode(text)
    units = {"billed_units": {"input_tokens": told.report.usage.prompt_tokens}}
    yield b'],"meta":' + msgspec.json.encode({"api_version": {"version": str(version)}, **units}) + b"}"


def _endpoint(version: int) -> Endpoint:
    endpoint = PoolingEndpoint(
        EmbedRequest,
        Relay.embed,
        _request,
        lambda call, body, told: _write(call, body, told, version=version),
        _names,
        needs_model=lambda body: body.input_type is not None,
        suits=makes_vectors,
    )
    return Endpoint("POST", f"/v{version}/embed", endpoint.answer, OPENAI)


ENDPOINTS = (_endpoint(1), _endpoint(2))
