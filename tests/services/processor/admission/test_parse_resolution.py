"""How an answer is divided: the types of arguments that a request's tools have."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from ringline.inference.v1 import inference_pb2
from ringline.types.v1 import constraint_pb2, part_pb2

from services.common.rpc.part_messages import types_message
from services.processor.admission.parse_resolution import MAX_PARSE_BYTES, resolve_parse
from services.processor.admission.tool_resolution import Tools
from services.processor.served_models import ServedModel
from services.ring.errors import Refused
from text_core.parsing.argument_types import listed_types


def resolved_of(
    format_name: str,
    parameters: dict[str, Any],
    *,
    name: str = "f",
    calls: constraint_pb2.ToolCalls | None = None,
    request: inference_pb2.GenerateRequest | None = None,
) -> part_pb2.ParseParams:
    """The parameters that count for one tool with ``parameters``."""
    served = SimpleNamespace(
        chat=SimpleNamespace(formats=lambda *_: (format_name, "none")),
        model=SimpleNamespace(tool_call_format="", reasoning_format=""),
        tokenizer=SimpleNamespace(decode=lambda *_, **__: ""),
    )
    tools = Tools([{"function": {"name": name, "parameters": parameters}}], (name,), calls)
    resolved = resolve_parse(request or inference_pb2.GenerateRequest(), cast(ServedModel, served), [], tools)
    assert resolved is not None
    assert resolved.ByteSize() <= MAX_PARSE_BYTES
    return resolved


def types_of(format_name: str, parameters: dict[str, Any]) -> list[Any]:
    """The types that count for one tool with ``parameters``."""
    return list(resolved_of(format_name, parameters).argument_types)


def tree(width: int, depth: int) -> dict[str, Any]:
    """A schema of objects with ``width`` properties each."""
    inner = {"type": "integer"} if depth == 0 else tree(width, depth - 1)
    return {"type": "object", "properties": {f"p{number}": inner for number in range(width)}}


@pytest.mark.parametrize(("width", "depth"), [(1, 8), (2, 3), (6, 1), (90, 0)])
def test_types_within_arguments_are_listed_as_deep_as_there_is_room(width: int, depth: int) -> None:
    schema = tree(width, {1: 12, 2: 9, 6: 5, 90: 1}[width])
    expected = listed_types({"f": schema}, depth)
    assert types_of("minimax_m3", schema) == [types_message(each) for each in expected]


def test_other_formats_list_arguments_only() -> None:
    schema = tree(3, 2)
    assert types_of("minimax_m2", schema) == [types_message(each) for each in listed_types({"f": schema})]
    assert types_of("hermes", schema) == []


def test_names_are_told_where_they_help_and_there_is_room() -> None:
    assert resolved_of("kimi_k2", {}).tool_names == ["f"]
    assert not resolved_of("hermes", {}).tool_names
    assert not resolved_of("kimi_k2", {}, calls=constraint_pb2.ToolCalls(single=True)).tool_names
    constrained = inference_pb2.GenerateRequest(constraint=constraint_pb2.Constraint(regex="a"))
    assert not resolved_of("kimi_k2", {}, request=constrained).tool_names
    texts = {"properties": {"a": {"type": "string"}, "n": {"type": "integer"}}}
    listed = [types_message(each) for each in listed_types({"f": texts}, by_tool=True)]
    assert [each.name for each in listed] == ["a", "n"]
    assert types_of("qwen3_coder", texts) == listed
    assert types_of("minimax_m2", texts) == [types_message(each) for each in listed_types({"f": texts})]
    full = {"properties": {f"p{number:040}": {"type": "integer"} for number in range(127)}}
    assert len(resolved_of("qwen3_coder", full).argument_types) == 127
    assert not resolved_of("qwen3_coder", full, name="f" * 120).tool_names


def test_more_arguments_than_there_is_room_for_are_refused() -> None:
    with pytest.raises(Refused, match=r"chat\.tools: names and types of all tools' arguments take"):
        types_of("minimax_m3", tree(1000, 1))
