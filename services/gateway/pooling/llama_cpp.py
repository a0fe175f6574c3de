"""``/embedding`` of llama.cpp's server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Annotated

from ringline import Model
from ringline.inference.v1 import inference_pb2 as pb
from ringline.relay import Relay

from services.gateway.fields import same, supported
from services.gateway.http.api_error import invalid
from services.gateway.http.call import Call, Endpoint
from services.gateway.openai.errors import OPENAI
from services.gateway.pooling.embeddings import INPUT
from services.gateway.pooling.endpoint import PoolingEndpoint
from services.gateway.pooling.fields import (
    Given,
    PoolingFields,
    add_inputs,
    build,
    is_single,
    names_of,
    read_inputs,
)
from services.gateway.pooling.floats import rows_of, write_floats

_NORMS = {-1: False, 2: True}
"""Whether vectors are scaled to a length of 1."""


class EmbeddingRequest(PoolingFields):
    """The body of ``/embedding``."""

    content: Annotated[Given | None, INPUT] = None
    input: Annotated[Given | None, same("content", note="Another name of `content`.")] = None
    embd_normalize: Annotated[
        int | None, supported("2: scale vectors to a length of 1, -1: do not. Default: as the model does.")
    ] = None


def _request(body: EmbeddingRequest, _model: Model | None) -> pb.EmbedRequest:
    asked = build(pb.EmbedRequest, body)
    if body.embd_normalize is not None:
        if body.embd_normalize not in _NORMS:
            raise invalid("embd_normalize", f"{body.embd_normalize}: expected 2 or -1")
        asked.normalize = _NORMS[body.embd_normalize]
    add_inputs(asked.inputs, read_inputs(body.content, "content"), "content", single=is_single(body.content))
    return asked


def _names(body: EmbeddingRequest) -> Callable[[str], str]:
    names = {"inputs": "content", "normalize": "embd_normalize"}
    return names_of([EmbeddingRequest], names, frozenset({"inputs"} if is_single(body.content) else ()))


def _write(_call: Call, _body: EmbeddingRequest, told: pb.EmbedResponse) -> Iterator[bytes]:
    yield b"["
    for index, row in enumerate(rows_of(told.values, told.dimensions)):
        yield b'%b{"index":%d,"embedding":[' % (b"," if index else b"", index)
        yield write_floats(row) + b"]}"
    yield b"]"


EMBEDDING = PoolingEndpoint(EmbeddingRequest, Relay.embed, _request, _write, _names)
ENDPOINTS = (Endpoint("POST", "/embedding", EMBEDDING.answer, OPENAI),)
