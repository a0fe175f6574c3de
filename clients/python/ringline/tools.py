"""Tools that a model may call: converts Python values to the contract's Tool and ToolChoice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from ringline.errors import invalid
from ringline.inference.v1 import inference_pb2 as pb
from ringline.proto_fields import assign, expect, json_text
from ringline.schemas import is_model, model_schema, schema_text
from ringline.types.v1.constraint_pb2 import CallableTool

OPTIONS = ("tools", "tool_choice", "parallel_tool_calls")
_KEYS = ("name", "description", "parameters", "strict")
_PARAMETERS_ELSEWHERE = ("input_schema", "inputSchema")
"""Other APIs' keys for the parameters."""
_MODES = {
    "auto": pb.ToolChoice.MODE_AUTO,
    "none": pb.ToolChoice.MODE_NONE,
    "required": pb.ToolChoice.MODE_REQUIRED,
}


def set_tools(chat: pb.Chat, options: Mapping[str, Any]) -> None:
    """Write the options in ``OPTIONS``, none of them None, into ``chat``.

    Functions become typed tools, whose calls the server finds in the answer. If any tool has another type or further
    keys, all go to the model's template unchanged. A misspelt key raises TypeError.
    """
    if "tools" not in options:
        if others := [name for name in OPTIONS if name in options]:
            raise TypeError(f"option {others[0]!r} is for requests with tools: give tools too, or leave it out")
        return
    tools = options["tools"]
    if isinstance(tools, str | Mapping) or not isinstance(tools, Sequence):
        raise TypeError(f"tools: expected a list of tools, got {type(tools).__name__}")
    functions = [_function(tool, f"tools[{number}]") for number, tool in enumerate(tools)]
    if None in functions:
        if others := [name for name in OPTIONS[1:] if name in options]:
            odd = f"tools[{functions.index(None)}]"
            raise TypeError(f"{others[0]}: needs tools that are functions, and {odd} is none: {_ACCEPTED}")
        assign(chat, "tools_json", json_text(tools, "tools"), option="tools")
        return
    for number, function in enumerate(functions):
        set_function(chat.tools.add(), function or {}, f"tools[{number}]")
    if "tool_choice" in options:
        _set_choice(chat.tool_choice, options["tool_choice"], [tool.name for tool in chat.tools])
    if "parallel_tool_calls" in options:
        expect(bool, "bool", options["parallel_tool_calls"], "parallel_tool_calls")
        chat.tool_choice.single = not options["parallel_tool_calls"]


def set_function(target: pb.Tool | CallableTool, function: Mapping[str, Any], path: str) -> None:
    """Write those of a function's name, description, parameters and strict that are given into ``target``."""
    for key, value in function.items():
        if key == "parameters" and value is not None:
            assign(target, "parameters_json", schema_text(value, f"{path}.parameters"), option=f"{path}.parameters")
        elif value is not None:
            assign(target, key, value, option=f"{path}.{key}")


_ACCEPTED = f"expected dicts with {', '.join(_KEYS)}, as such or in OpenAI's form, or pydantic model classes"


def _function(tool: Any, path: str) -> Mapping[str, Any] | None:
    """The given ones of a function's name, description, parameters and strict; None for another type or other keys."""
    if is_model(tool):
        schema = model_schema(tool)
        return {"name": tool.__name__, "description": schema.pop("description", ""), "parameters": schema}
    if not isinstance(tool, Mapping):
        raise TypeError(f"{path}: {_ACCEPTED}, got {type(tool).__name__}")
    if tool.get("type", "function") != "function":
        return None
    function, around = tool, {"type", *_KEYS}
    if "function" in tool:
        function, around = tool["function"], {"type", "function"}
        path = f"{path}.function"
        expect(Mapping, "a dict such as {'name': 'add', 'parameters': {…}}", function, path)
    function = {key: value for key, value in function.items() if key != "type"}
    if "name" not in function:
        raise TypeError(f"{path}: has no name: {_ACCEPTED}")
    unknown = [key for key in function if key not in _KEYS]
    for key in unknown:
        meant = "parameters" if key in _PARAMETERS_ELSEWHERE else "".join(get_close_matches(key, _KEYS, 1, cutoff=0.8))
        if meant:
            raise TypeError(f"{path}: unknown key {key!r}; did you mean {meant!r}?")
    return function if tool.keys() <= around and not unknown else None


def _set_choice(target: pb.ToolChoice, value: Any, names: Sequence[str]) -> None:
    """``value``: auto, none, required or a tool's name; or a dict that names a tool, as OpenAI's does."""
    name = value
    if isinstance(value, Mapping):
        function = value.get("function", value)
        name = function.get("name") if isinstance(function, Mapping) else None
        expect(str, "a dict such as {'type': 'function', 'function': {'name': 'add'}}", name, "tool_choice")
    elif isinstance(value, str) and value in _MODES:
        target.mode = _MODES[value]
        return
    expect(str, "auto, none, required, the name of a tool or a dict that has it", name, "tool_choice")
    if name not in names:
        some = ", ".join(names[:8]) + (", …" if len(names) > 8 else "")
        problem = f"{name[:80]!r} is not a tool of this request: expected auto, none, required, {some}"
        raise invalid("tool_choice", problem)
    target.mode, target.name = pb.ToolChoice.MODE_NAMED, name
