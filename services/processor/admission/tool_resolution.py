"""The typed tools of a chat: checked, rendered for the template, and which of them must be called."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ringline.inference.v1 import inference_pb2

from services.processor.admission.validation import refuse
from services.text.parsing.formats import ToolSpec

MAX_TOOLS = 128
TOOL_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_ANY_OBJECT: dict[str, Any] = {"type": "object", "properties": {}}
_Mode = inference_pb2.ToolChoice.Mode


@dataclass(frozen=True, slots=True)
class Tools:
    """The tools that the model may call, and how much is left to it."""

    descriptions: Sequence[dict[str, Any]] | None = None
    """As templates expect them; None if there are none, or the model is not told of them."""
    specs: Sequence[ToolSpec] = ()
    """Those that it may call: one, if that one must be called. Empty for tools without types."""
    names: Sequence[str] = ()
    """Of all tools that the model is told of."""
    required: bool = False
    """At least one must be called."""
    single: bool = False
    """At most one may be called."""

    @property
    def constrains(self) -> bool:
        """Whether the answer must keep to a grammar of calls."""
        return bool(self.specs) and (self.required or self.single or any(spec.strict for spec in self.specs))


def resolve_tools(chat: inference_pb2.Chat) -> Tools:
    """Check the tools of a chat and the choice among them; raises ``Refused``."""
    if chat.tools and chat.tools_json:
        raise refuse("chat.tools", "set together with tools_json: expected one of the two")
    if chat.tools_json:
        _check_untyped_choice(chat.tool_choice)
        hidden = chat.tool_choice.mode == _Mode.MODE_NONE
        untyped = json_value("chat.tools_json", chat.tools_json, list, "array")
        return Tools(None if hidden else untyped)
    if len(chat.tools) > MAX_TOOLS:
        raise refuse("chat.tools", f"{len(chat.tools)} tools: expected at most {MAX_TOOLS}")
    names: list[str] = []
    specs, descriptions = [], []
    for index, tool in enumerate(chat.tools):
        field = f"chat.tools[{index}]"
        _check_name(f"{field}.name", tool.name, names)
        names.append(tool.name)
        parameters = _parameters(f"{field}.parameters_json", tool.parameters_json)
        specs.append(ToolSpec(tool.name, parameters, tool.strict))
        function = {"name": tool.name, "description": tool.description, "parameters": parameters}
        descriptions.append({"type": "function", "function": function})
    return _chosen(chat.tool_choice, names, specs, descriptions)


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


def _check_name(field: str, name: str, earlier: Sequence[str]) -> None:
    if not TOOL_NAME.fullmatch(name):
        raise refuse(field, f"{name[:80]!r} is not a name: expected 1 to 64 characters of [A-Za-z0-9_.-]")
    if name in earlier:
        raise refuse(field, f"{name!r} is given twice")


def _parameters(field: str, text: str) -> dict[str, Any]:
    """The schema of a tool's arguments; only that it is one of an object is checked here."""
    parameters: dict[str, Any] | None = json_value(field, text, dict, "object")
    if parameters is None:
        return _ANY_OBJECT
    if parameters.get("type", "object") != "object":
        raise refuse(field, f"/type: {str(parameters['type'])[:80]!r}: expected 'object', as arguments are")
    if not isinstance(parameters.get("properties", {}), dict):
        raise refuse(field, "/properties: not an object: expected a JSON Schema")
    return parameters


def _check_untyped_choice(choice: inference_pb2.ToolChoice) -> None:
    if choice.mode in (_Mode.MODE_REQUIRED, _Mode.MODE_NAMED) or choice.name or choice.single:
        raise refuse("chat.tool_choice", "needs typed tools: expected chat.tools in place of tools_json, or MODE_AUTO")


def _chosen(
    choice: inference_pb2.ToolChoice, names: list[str], specs: list[ToolSpec], descriptions: list[dict[str, Any]]
) -> Tools:
    mode = choice.mode
    if mode not in _Mode.values():  # of a later version
        mode = _Mode.MODE_AUTO
    if mode == _Mode.MODE_UNSPECIFIED:
        mode = _Mode.MODE_NAMED if choice.name else _Mode.MODE_AUTO
    if choice.name and mode != _Mode.MODE_NAMED:
        raise refuse("chat.tool_choice.name", f"{choice.name[:80]!r} is given: expected none, or MODE_NAMED")
    if not specs:
        if mode in (_Mode.MODE_REQUIRED, _Mode.MODE_NAMED):
            raise refuse("chat.tool_choice", "no tools are given: expected some in chat.tools")
        return Tools()
    if mode == _Mode.MODE_NONE:
        return Tools()
    if mode == _Mode.MODE_NAMED:
        if choice.name not in names:
            known = ", ".join(names)
            raise refuse(
                "chat.tool_choice.name", f"{choice.name[:80]!r} is no tool of chat.tools: expected one of {known}"
            )
        named = [spec for spec in specs if spec.name == choice.name]
        return Tools(descriptions, named, names, required=True, single=True)
    return Tools(descriptions, specs, names, required=mode == _Mode.MODE_REQUIRED, single=choice.single)
