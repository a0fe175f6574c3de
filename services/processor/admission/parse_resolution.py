"""Resolves how an answer is divided into typed parts: as the client asks, else by the model's chat template."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Mapping, Sequence

from ringline.inference.v1 import inference_pb2
from ringline.types.v1 import part_pb2

from services.common.rpc.constraint_messages import MAX_TOOLS, TOOL_NAME
from services.common.rpc.part_messages import types_message
from services.processor.admission.tool_resolution import Tools
from services.processor.admission.validation import refuse
from services.processor.served_models import ServedModel
from text_core.parsing import formats
from text_core.parsing.argument_types import listed_types
from text_core.parsing.formats import NONE

MAX_TOOL_NAMES_BYTES = 4096
"""Limit on the UTF-8 bytes of all tool names: with the stop strings, they share the output context's 16 KiB."""
MAX_PARSE_BYTES = 6144
"""Limit on the names of tools and the types of their arguments together."""
_DEPTHS = (8, 3, 1, 0)
"""How far the types of values within arguments are listed: the first depth with which all fit."""
_TAIL_TOKENS = 64
"""Tokens at the prompt's end that are searched for the beginning of reasoning."""


def resolve_parse(
    request: inference_pb2.GenerateRequest, served_model: ServedModel, prompt: Sequence[int], tools: Tools
) -> part_pb2.ParseParams | None:
    """The parameters with every field set; None if the answer is not divided. Raises ``Refused``."""
    given = request.output.parse
    if not request.output.HasField("parse") and not tools.names:
        return None
    tool_calls, reasoning = served_model.chat.formats(
        request.chat.template_name or None, tools.descriptions is not None
    )
    model = served_model.model
    tool_calls, reasoning = model.tool_call_format or tool_calls, model.reasoning_format or reasoning
    if request.chat.tool_choice.mode == inference_pb2.ToolChoice.MODE_NONE:
        tool_calls = NONE
    resolved = part_pb2.ParseParams(
        tool_calls=given.tool_calls if given.HasField("tool_calls") else tool_calls,
        reasoning=given.reasoning if given.HasField("reasoning") else reasoning,
        content_tokens=given.content_tokens or None,
    )
    _check_format("output.parse.tool_calls", resolved.tool_calls, formats.TOOL_FORMATS)
    _check_format("output.parse.reasoning", resolved.reasoning, formats.REASONING_FORMATS)
    if given.tool_names or (resolved.tool_calls != NONE and formats.TOOL_FORMATS[resolved.tool_calls].needs_names):
        resolved.tool_names.extend(given.tool_names or tools.names)
    _add_types(resolved, given, tools)
    if tools.calls is None and not request.HasField("constraint"):  # else a grammar holds calls to their form
        _add_known(resolved, given, tools)
    _check_names(resolved.tool_names, "output.parse.tool_names" if given.tool_names else "chat.tools")
    if (size := resolved.ByteSize()) > MAX_PARSE_BYTES:
        problem = f"names and types of all tools' arguments take {size} bytes: expected at most {MAX_PARSE_BYTES}"
        raise refuse("output.parse.argument_types" if given.argument_types else "chat.tools", problem)
    if given.HasField("begins_in_reasoning"):
        resolved.begins_in_reasoning = given.begins_in_reasoning
    else:
        resolved.begins_in_reasoning = formats.begins_in_reasoning(resolved.reasoning, _tail(served_model, prompt))
    return resolved


def _add_types(resolved: part_pb2.ParseParams, given: part_pb2.ParseParams, tools: Tools) -> None:
    """Add the types of arguments, for a format that writes them as text; of values within them, as many as fit."""
    known = formats.TOOL_FORMATS.get(resolved.tool_calls)
    if given.argument_types or known is None or not known.writes_text:
        resolved.argument_types.extend(given.argument_types)
        return
    for depth in _DEPTHS if known.nests_text else (None,):
        del resolved.argument_types[:]
        resolved.argument_types.extend(map(types_message, listed_types(tools.schemas, depth)))
        if resolved.ByteSize() <= MAX_PARSE_BYTES:
            return


def _add_known(resolved: part_pb2.ParseParams, given: part_pb2.ParseParams, tools: Tools) -> None:
    """Add what helps to read malformed calls, as far as there is room for it."""
    known = formats.TOOL_FORMATS.get(resolved.tool_calls)
    if known is None or not known.uses_names or not tools.names:
        return
    told = part_pb2.ParseParams()
    told.CopyFrom(resolved)
    if not given.tool_names and sum(map(len, tools.names)) <= MAX_TOOL_NAMES_BYTES:
        told.tool_names.extend(tools.names)
    if told.ByteSize() > MAX_PARSE_BYTES:
        return
    resolved.CopyFrom(told)
    if known.uses_argument_names and not given.argument_types:
        del told.argument_types[:]
        told.argument_types.extend(map(types_message, listed_types(tools.schemas, by_tool=True)))
        if told.ByteSize() <= MAX_PARSE_BYTES:
            resolved.CopyFrom(told)


def may_reason(parse: part_pb2.ParseParams | None, served_model: ServedModel, prompt: Sequence[int]) -> bool:
    """Whether an answer may begin with reasoning: not if the prompt has ended it."""
    if parse is None or parse.reasoning == NONE:
        return False
    return parse.begins_in_reasoning or not formats.has_ended_reasoning(parse.reasoning, _tail(served_model, prompt))


def _tail(served_model: ServedModel, prompt: Sequence[int]) -> str:
    return served_model.tokenizer.decode(prompt[-_TAIL_TOKENS:], skip_special_tokens=False)


def call_id_seed(prompt: Sequence[int], seed: int) -> bytes:
    """The seed of tool calls' ids: equal for equal prompts and seeds, so that a resume repeats them."""
    digest = hashlib.blake2b(array("I", prompt).tobytes(), digest_size=16)
    digest.update(seed.to_bytes(8, "little"))
    return digest.digest()


def _check_format(field: str, name: str, known: Mapping[str, object]) -> None:
    if name != NONE and name not in known:
        raise refuse(field, f"{name[:80]!r} is not known: expected one of {', '.join([*sorted(known), NONE])}")


def _check_names(names: Sequence[str], field: str) -> None:
    if len(names) > MAX_TOOLS:
        raise refuse(field, f"{len(names)} names: expected at most {MAX_TOOLS}")
    for index, name in enumerate(names):
        if not TOOL_NAME.fullmatch(name):
            raise refuse(
                f"{field}[{index}]", f"{name[:140]!r} is not a name: expected 1 to 128 characters of [A-Za-z0-9_.-]"
            )
    together = sum(map(len, names))
    if together > MAX_TOOL_NAMES_BYTES:
        raise refuse(field, f"names of {together} bytes together: expected at most {MAX_TOOL_NAMES_BYTES}")
