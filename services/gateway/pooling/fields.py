"""Fields of requests for vectors, scores and labels, and the ring's requests made of them."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, TypeVar

import msgspec
from ringline.inference.v1 import inference_pb2 as pb
from ringline.proto_fields import assign

from services.gateway.answer import MAX_ID_CHARACTERS
from services.gateway.fields import Body, ignored, naming, options_of, passed, refused, supported
from services.gateway.http.api_error import invalid, shown
from services.gateway.http.call import Call
from services.gateway.model_names import answered_model
from services.gateway.openai.sampling_fields import MM_PROCESSOR_KWARGS
from services.gateway.other_servers import AdapterId, AdapterPath

MAX_INPUTS = 2048
"""Of one request; as the contract says."""

Input = str | list[int]
"""A text, or token ids."""
Given = str | list[str | int | list[int]]
"""One or several of them, as bodies have them."""
Asked = pb.EmbedRequest | pb.ScoreRequest | pb.ClassifyRequest
_Asked = TypeVar("_Asked", pb.EmbedRequest, pb.ScoreRequest, pb.ClassifyRequest)
_SIDES = {"right": pb.TRUNCATION_END, "left": pb.TRUNCATION_START}
"""What is cut off, by the side."""


class PoolingFields(Body):
    """Fields of all endpoints."""

    model: Annotated[str | None, passed("Default: the model that is served.")] = None
    add_special_tokens: Annotated[bool | None, passed("Of texts. Default: true.")] = None
    priority: Annotated[int | None, passed("Lower runs first.")] = None
    cache_salt: Annotated[str | None, passed("At most 256 bytes.")] = None
    request_id: Annotated[str | None, supported("Part of the answer's `id`. Default: the header `x-request-id`.")] = (
        None
    )
    user: Annotated[Any, ignored("Identity is the bearer token's.")] = None
    padding: Annotated[Any, refused("no result depends on padding, and there is none", "do_not_pad", False)] = None
    mm_processor_kwargs: Annotated[Any, refused(MM_PROCESSOR_KWARGS, {})] = None
    media_io_kwargs: Annotated[Any, ignored("There are no pictures.")] = None
    adapter: Annotated[str | None, passed("Ringline's: an adapter of the model; or name it as the `model`.")] = None
    lora_path: AdapterPath = None
    adapter_id: AdapterId = None
    lora_request: Annotated[Any, refused("name an adapter as the model")] = None


class CutFields(PoolingFields):
    """What becomes of long inputs, as in vLLM."""

    truncate_prompt_tokens: Annotated[
        int | None,
        supported(
            "Inputs that have more tokens are cut, at their end; of a query and a document, the document. -1: to what "
            "the model takes. Default: an input that is too long is refused."
        ),
    ] = None
    truncation_side: Annotated[
        str | None, supported("`left`: inputs are cut at their beginning. Default: `right`.")
    ] = None
    truncate: Annotated[bool | None, supported("TEI's and Jina's: `truncate_prompt_tokens` -1.")] = None
    truncation_direction: Annotated[str | None, supported("TEI's `truncation_side`.")] = None


def read_cut(request: CutFields, options: pb.PoolingOptions) -> None:
    """Set what becomes of long inputs. Raises ``ApiError``."""
    tokens = request.truncate_prompt_tokens
    if tokens is not None and tokens < -1:
        raise invalid("truncate_prompt_tokens", f"{tokens} is out of range: expected at least -1")
    sides = {"truncation_side": request.truncation_side, "truncation_direction": request.truncation_direction}
    cut: pb.Truncation.ValueType = pb.TRUNCATION_END
    for field, side in sides.items():
        if side is not None:
            cut = side_cut(side, field)
    if tokens is None and not request.truncate:
        return
    options.truncation = cut
    if tokens not in (None, -1):
        assign(options, "max_input_tokens", tokens)


def side_cut(side: str, field: str) -> pb.Truncation.ValueType:
    """What is cut off at a side. Raises ``ApiError``."""
    if (cut := _SIDES.get(side.lower())) is None:
        raise invalid(field, f"{shown(side)}: expected {' or '.join(_SIDES)}")
    return cut


def build(kind: type[_Asked], request: PoolingFields) -> _Asked:
    """The ring's request, without its inputs, of a body's passed fields. Raises ``InvalidRequest``."""
    asked = kind()
    own = asked.DESCRIPTOR.fields_by_name
    for name, value in options_of(request).items():
        assign(asked if name in own else asked.options, name, value)
    if asked.options.adapter:
        asked.options.requires.append("adapters")  # which an older processor would ignore
    return asked


def identify(asked: Asked, call: Call) -> None:
    """Give a request its id and its place in a trace."""
    asked.request_id = f"{call.request_id[:MAX_ID_CHARACTERS]}-{secrets.token_hex(6)}"
    asked.options.traceparent = call.traceparent or ""


def read_inputs(given: Given | None, field: str) -> list[Input]:
    """The inputs of a field. Raises ``ApiError`` if there are none, too many, or several kinds."""
    if given is None or given == []:
        raise missing(field, given, "a text, token ids, or a list of either")
    if isinstance(given, str):
        return [given]
    kinds = {type(one) for one in given}
    if len(kinds) > 1:
        raise invalid(field, "texts and ids are mixed: expected one kind")
    if kinds == {int}:
        return [given]  # type: ignore[list-item]
    check_number(given, field)
    return given  # type: ignore[return-value]


def answered(body: PoolingFields, report: pb.PoolingReport) -> str:
    """The name of the model that an answer has."""
    return answered_model(body.model, report.model, report.adapter.name)


def missing(field: str, given: object, expected: str) -> Exception:
    """The error for a field without inputs."""
    return invalid(field, f"{'missing' if given is None else 'empty'}: expected {expected}")


def check_number(inputs: Sequence[object], field: str) -> None:
    """Raise ``ApiError`` for too many inputs."""
    if len(inputs) > MAX_INPUTS:
        raise invalid(field, f"{len(inputs)}: expected at most {MAX_INPUTS}; send fewer at once")


def add_inputs(target: Any, inputs: Iterable[Input], field: str, *, single: bool = False) -> None:
    """Add inputs to a list of the ring's. ``single``: the field is the input. Raises ``InvalidRequest``."""
    for index, one in enumerate(inputs):
        place, message = field if single else f"{field}[{index}]", target.add()
        if isinstance(one, str):
            assign(message, "text", one, option=place)
        else:
            message.token_ids.SetInParent()
            assign(message.token_ids, "ids", one, option=place)


def is_single(given: object) -> bool:
    """Whether a field is one input, and no list of them."""
    return isinstance(given, str) or (isinstance(given, list) and bool(given) and type(given[0]) is int)


_KIND = re.compile(r"(?<=\])\.(text|token_ids)(\.ids)?\b")
_FIRST = re.compile(r"^(\w+)\[0\]")


def names_of(
    bodies: Iterable[type[msgspec.Struct]], names: Mapping[str, str], single: frozenset[str] = frozenset()
) -> Callable[[str], str]:
    """Map the ring's field names to those of a body; of ``single`` lists of the ring, the body has one input."""
    name_of = naming(bodies, names)

    def name_in_request(field: str) -> str:
        field = _KIND.sub("", field)
        if (first := _FIRST.match(field)) and first[1] in single:
            field = first[1] + field[first.end() :]
        return name_of(field)

    return name_in_request
