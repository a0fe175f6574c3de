"""``/pooling``: whatever a model computes of inputs, also for each token, as in vLLM."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Annotated

from ringline import Model
from ringline.inference.v1 import inference_pb2 as pb
from ringline.relay import Relay

from services.gateway.fields import passed, supported
from services.gateway.http.api_error import invalid, shown
from services.gateway.http.call import Call, Endpoint
from services.gateway.openai.errors import OPENAI
from services.gateway.pooling.embeddings import EncodingFormat, InputFields, begun, ended, input_names
from services.gateway.pooling.endpoint import PoolingEndpoint
from services.gateway.pooling.fields import add_inputs, answered, build, is_single, read_cut, read_inputs
from services.gateway.pooling.floats import FLOAT_BYTES, rows_of, write_base64, write_floats, writer_of

_Asked = pb.EmbedRequest | pb.ClassifyRequest
_Told = pb.EmbedResponse | pb.ClassifyResponse
_TASKS: Mapping[str, tuple[type[_Asked], bool]] = {
    "embed": (pb.EmbedRequest, False),
    "token_embed": (pb.EmbedRequest, True),
    "classify": (pb.ClassifyRequest, False),
    "token_classify": (pb.ClassifyRequest, True),
}
"""The ring's request, and whether there is a result for each token."""


class PoolingRequest(InputFields):
    """The body of ``/pooling``."""

    task: Annotated[
        str | None, supported(f"One of {', '.join(f'`{task}`' for task in _TASKS)}. Default: the model's first.")
    ] = None
    encoding_format: EncodingFormat = None
    dimensions: Annotated[int | None, passed("As in `/v1/embeddings`; of vectors.")] = None
    use_activation: Annotated[
        bool | None, supported("Of vectors: scale them to a length of 1. Of labels: as in `/classify`.")
    ] = None
    prompt_name: Annotated[str | None, passed("As in `/v1/embeddings`; of vectors.")] = None


def _request(body: PoolingRequest, model: Model | None) -> _Asked:
    writer_of(body.encoding_format)
    task = body.task or _first_task(model)
    if task not in _TASKS:
        raise invalid("task", f"{shown(task)}: expected {', '.join(_TASKS)}")
    kind, per_token = _TASKS[task]
    if kind is pb.ClassifyRequest:
        for field in ("dimensions", "prompt_name"):
            if getattr(body, field) is not None:
                raise invalid(field, f"set together with the task {task}, which makes labels: leave it out")
    asked: _Asked = build(pb.EmbedRequest, body) if kind is pb.EmbedRequest else build(pb.ClassifyRequest, body)
    asked.per_token = per_token
    if body.use_activation is not None:
        if isinstance(asked, pb.EmbedRequest):
            asked.normalize = body.use_activation
        else:
            asked.activation = body.use_activation
    read_cut(body, asked.options)
    add_inputs(asked.inputs, read_inputs(body.input, "input"), "input", single=is_single(body.input))
    return asked


def _first_task(model: Model | None) -> str:
    """Without one the ring says what the model is for."""
    tasks = model.pooling.tasks if model is not None and model.pooling is not None else ()
    return tasks[0] if tasks else "embed"


async def _ask(relay: Relay, asked: _Asked) -> _Told:
    return await (relay.embed(asked) if isinstance(asked, pb.EmbedRequest) else relay.classify(asked))


def _write(call: Call, body: PoolingRequest, told: _Told) -> Iterator[bytes]:
    width = told.dimensions if isinstance(told, pb.EmbedResponse) else len(told.labels)
    yield begun(call, "pool-", answered(body, told.report))
    for index, data in enumerate(_data(body, told, width)):
        yield b'%b{"index":%d,"object":"pooling","data":' % (b"," if index else b"", index)
        yield from data
        yield b"}"
    yield ended(told.report)


def _data(body: PoolingRequest, told: _Told, width: int) -> Iterator[Iterator[bytes]]:
    """The pieces of each input's result."""
    if body.encoding_format == "base64":
        at, values = 0, memoryview(told.values)
        for count in told.counts or [1] * (len(values) // (width * FLOAT_BYTES)):
            end = at + count * width * FLOAT_BYTES
            yield iter([write_base64(values[at:end])])
            at = end
        return
    rows = rows_of(told.values, width)
    if not told.counts:
        yield from (iter([write_floats(row)]) for row in rows)
    for count in told.counts:
        yield write_rows(islice(rows, count))


def write_rows(rows: Iterator[memoryview]) -> Iterator[bytes]:
    """A list of lists of numbers."""
    yield b"["
    for place, row in enumerate(rows):
        yield (b"," if place else b"") + write_floats(row)
    yield b"]"


POOLING = PoolingEndpoint(
    PoolingRequest, _ask, _request, _write, input_names, needs_model=lambda body: body.task is None
)
ENDPOINTS = tuple(Endpoint("POST", path, POOLING.answer, OPENAI) for path in ("/pooling", "/v1/pooling"))
