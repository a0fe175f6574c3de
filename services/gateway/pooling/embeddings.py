"""``/v1/embeddings``: vectors of texts or token ids, as OpenAI and vLLM have them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Annotated, Any

import msgspec
from ringline import Model
from ringline.inference.v1 import inference_pb2 as pb
from ringline.relay import Relay

from services.gateway.fields import passed, refused, same, supported
from services.gateway.http.call import Call, Endpoint
from services.gateway.openai.chunks import ResponseHead
from services.gateway.openai.errors import OPENAI
from services.gateway.pooling.endpoint import PoolingEndpoint
from services.gateway.pooling.fields import (
    MAX_INPUTS,
    CutFields,
    Given,
    add_inputs,
    answered,
    build,
    is_single,
    names_of,
    read_cut,
    read_inputs,
)
from services.gateway.pooling.floats import rows_of, writer_of

encode = msgspec.json.encode

INPUT = supported(f"A text, token ids, or a list of either: at most {MAX_INPUTS}.")
NO_MESSAGES = "inputs are texts or token ids; /tokenize renders messages, and its ids can be sent"
EncodingFormat = Annotated[
    str | None, supported("`float`, or `base64`: little-endian float32. Default: `float`, of at most 9 digits.")
]
UseActivation = Annotated[bool | None, same("normalize", note="vLLM's `normalize`.")]


class InputFields(CutFields):
    """Fields of requests for what is computed of inputs, as in vLLM."""

    input: Annotated[Given | None, INPUT] = None
    messages: Annotated[Any, refused(NO_MESSAGES, [])] = None
    embed_dtype: Annotated[Any, refused("numbers are float32", "float32")] = None
    endianness: Annotated[Any, refused("numbers are little-endian", "native", "little")] = None


class EmbeddingRequest(InputFields):
    """The body of ``/v1/embeddings``."""

    encoding_format: EncodingFormat = None
    dimensions: Annotated[
        int | None, passed("So many leading numbers, for models that were trained for it. Default: all.")
    ] = None
    normalize: Annotated[bool | None, passed("Scale vectors to a length of 1. Default: as the model does.")] = None
    use_activation: UseActivation = None
    prompt_name: Annotated[
        str | None, passed("One of the model's prompts, which is put before each text. Default: its default prompt.")
    ] = None
    embedding_type: Annotated[str | None, same("encoding_format", note="Jina's `encoding_format`.")] = None
    task: Annotated[Any, refused("prompt_name chooses one of the model's prompts")] = None
    input_type: Annotated[Any, refused("prompt_name chooses one of the model's prompts")] = None
    late_chunking: Annotated[Any, refused("each input has its own vector; /pooling has one for each token", False)] = (
        None
    )


def _request(body: EmbeddingRequest, _model: Model | None) -> pb.EmbedRequest:
    writer_of(body.encoding_format)
    asked = build(pb.EmbedRequest, body)
    read_cut(body, asked.options)
    add_inputs(asked.inputs, read_inputs(body.input, "input"), "input", single=is_single(body.input))
    return asked


def input_names(body: InputFields) -> Callable[[str], str]:
    """Map the ring's field names to the body's."""
    names = {"inputs": "input", "truncation": "truncate_prompt_tokens", "max_input_tokens": "truncate_prompt_tokens"}
    return names_of([type(body)], names, frozenset({"inputs"} if is_single(body.input) else ()))


def _write(call: Call, body: EmbeddingRequest, told: pb.EmbedResponse) -> Iterator[bytes]:
    write = writer_of(body.encoding_format)
    yield begun(call, "embd-", answered(body, told.report))
    for index, row in enumerate(rows_of(told.values, told.dimensions)):
        yield b'%b{"object":"embedding","index":%d,"embedding":' % (b"," if index else b"", index)
        yield write(row) + b"}"
    yield ended(told.report)


def begun(call: Call, prefix: str, model: str) -> bytes:
    """A list's members up to its data."""
    return encode(ResponseHead.new(prefix, call, model).members("list"))[:-1] + b',"data":['


def ended(report: pb.PoolingReport) -> bytes:
    """What comes behind a list's data."""
    return b'],"usage":' + encode(usage_of(report)) + b"}"


def usage_of(report: pb.PoolingReport) -> dict[str, Any]:
    """The usage, as in OpenAI's embeddings and vLLM's."""
    usage = report.usage
    members: dict[str, Any] = {"prompt_tokens": usage.prompt_tokens, "total_tokens": usage.prompt_tokens}
    if usage.cached_tokens:
        members["prompt_tokens_details"] = {"cached_tokens": usage.cached_tokens}
    return members


EMBEDDINGS = PoolingEndpoint(EmbeddingRequest, Relay.embed, _request, _write, input_names)
ENDPOINTS = tuple(Endpoint("POST", path, EMBEDDINGS.answer, OPENAI) for path in ("/v1/embeddings", "/embeddings"))
