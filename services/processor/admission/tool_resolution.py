"""Resolves a chat's tools: checks them, describes them for the template, and tells which must be called."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ringline.inference.v1 import inference_pb2
from ringline.types.v1 import constraint_pb2

from services.common.rpc.constraint_messages import read_tools
from services.processor.admission.validation import refuse
from text_core.grammar.constraints import ConstraintError

_Mode = inference_pb2.ToolChoice.Mode


@dataclass(frozen=True, slots=True)
class Tools:
    """The tools that the model may call, and their constraint."""

    descriptions: Sequence[dict[str, Any]] | None = None
    """As templates expect them; None without tools, or if they are hidden from the model."""
    names: Sequence[str] = ()
    """Of the typed tools shown to the model."""
    calls: constraint_pb2.ToolCalls | None = None
    """The constraint on calls; None if the answer is unconstrained."""
    free_calls: constraint_pb2.ToolCalls | None = None
    """All tools, if the answer is unconstrained."""

    @property
    def schemas(self) -> dict[str, Mapping[str, Any]]:
        """The parameters of the tools shown to the model, by name; of untyped tools, those that are as usual."""
        found = {}
        for tool in self.descriptions or ():
            function = tool.get("function", tool) if isinstance(tool, Mapping) else None
            if isinstance(function, Mapping) and isinstance(name := function.get("name"), str):
                parameters = function.get("parameters")
                found[name] = parameters if isinstance(parameters, Mapping) else {}
        return found


def resolve_tools(chat: inference_pb2.Chat) -> Tools:
    """Check the tools of a chat and the choice among them; raises ``Refused``."""
    if chat.tools and chat.tools_json:
        raise refuse("chat.tools", "set together with tools_json: expected one of the two")
    if chat.tools_json:
        _check_untyped_choice(chat.tool_choice)
        hidden = chat.tool_choice.mode == _Mode.MODE_NONE
        untyped = json_value("chat.tools_json", chat.tools_json, list, "array")
        return Tools(None if hidden else untyped)
    if chat.tool_choice.mode == _Mode.MODE_NONE:
        _mode(chat.tool_choice, ())
        return Tools()  # the tools are not even checked
    try:
        specs = read_tools(chat.tools)
    except ConstraintError as error:
        raise refuse(f"chat.{error.field}", error.problem) from None
    mode = _mode(chat.tool_choice, [spec.name for spec in specs])
    if not specs or mode == _Mode.MODE_NONE:
        return Tools()
    descriptions = [
        {
            "type": "function",
            "function": {"name": tool.name, "description": tool.description, "parameters": spec.parameters},
        }
        for tool, spec in zip(chat.tools, specs, strict=True)
    ]
    calls = _calls(chat, mode)
    is_held = calls.required or calls.single or any(tool.strict for tool in calls.tools)
    names = [spec.name for spec in specs]
    return Tools(descriptions, names, calls) if is_held else Tools(descriptions, names, free_calls=calls)


def json_value(field: str, text: str, kind: type, noun: str) -> Any:
    """The JSON value in ``text``, which must be of ``kind``; None if the text is empty. Raises ``Refused``."""
    if not text:
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise refuse(field, f"not JSON ({error}): expected an {noun}") from None
    if not isinstance(value, kind):
        raise refuse(field, f"a JSON {type(value).__name__}: expected an {noun}")
    return value


def _check_untyped_choice(choice: inference_pb2.ToolChoice) -> None:
    if choice.mode in (_Mode.MODE_REQUIRED, _Mode.MODE_NAMED) or choice.name or choice.single:
        raise refuse("chat.tool_choice", "needs typed tools: expected chat.tools in place of tools_json, or MODE_AUTO")


def _mode(choice: inference_pb2.ToolChoice, names: Sequence[str]) -> inference_pb2.ToolChoice.Mode.ValueType:
    """The mode of a checked choice; raises ``Refused``."""
    mode = choice.mode if choice.mode in _Mode.values() else _Mode.MODE_AUTO
    if mode == _Mode.MODE_UNSPECIFIED:
        mode = _Mode.MODE_NAMED if choice.name else _Mode.MODE_AUTO
    if mode in (_Mode.MODE_REQUIRED, _Mode.MODE_NAMED) and not names:
        raise refuse("chat.tool_choice", "no tools are given: expected some in chat.tools")
    if choice.name and mode != _Mode.MODE_NAMED:
        raise refuse("chat.tool_choice.name", f"{choice.name[:80]!r} is given: expected none, or MODE_NAMED")
    if mode == _Mode.MODE_NAMED and choice.name not in names:
        problem = f"{choice.name[:80]!r} is not a tool of chat.tools: expected one of {', '.join(names)}"
        raise refuse("chat.tool_choice.name", problem)
    return mode


def _calls(chat: inference_pb2.Chat, mode: inference_pb2.ToolChoice.Mode.ValueType) -> constraint_pb2.ToolCalls:
    is_named, is_required = mode == _Mode.MODE_NAMED, mode in (_Mode.MODE_REQUIRED, _Mode.MODE_NAMED)
    calls = constraint_pb2.ToolCalls(required=is_required, single=is_named or chat.tool_choice.single)
    for tool in chat.tools:
        if not is_named or tool.name == chat.tool_choice.name:
            calls.tools.add(name=tool.name, parameters_json=tool.parameters_json, strict=tool.strict)
    return calls
