"""A request for a message: what Anthropic's API has, and the ring's messages and options for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import msgspec
from ringline.options import Message, Options, TokenizeOptions

from services.gateway.http.api_error import invalid
from services.gateway.turns import Turns

_BILLING = "x-anthropic-billing-header"
"""Begins a block of the system prompt that is of no use to a model, and differs from request to request."""


class Source(msgspec.Struct):
    """Where a document's content is."""

    type: str
    data: str | None = None


class Block(msgspec.Struct):
    """A block of a message's content, of any type."""

    type: str
    text: str | None = None
    thinking: str | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    content: str | list[Block] | None = None
    source: Source | None = None
    tool_name: str | None = None


class Turn(msgspec.Struct):
    """A message of the conversation."""

    role: str
    content: str | list[Block]


class Tool(msgspec.Struct):
    """A tool; of Anthropic's own ones only type and name are read."""

    name: str | None = None
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None


class ToolChoice(msgspec.Struct):
    """Which tools are to be called."""

    type: str
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(msgspec.Struct):
    """Whether the model is to reason."""

    type: str


class OutputFormat(msgspec.Struct):
    """The form of the answer."""

    type: str
    schema: dict[str, Any] | None = None


class OutputConfig(msgspec.Struct):
    """The form of the answer, and how much reasoning goes before it."""

    effort: str | None = None
    format: OutputFormat | None = None


class CountRequest(msgspec.Struct):
    """The body of ``/v1/messages/count_tokens``: the prompt."""

    messages: list[Turn]
    model: str
    system: str | list[Block] | None = None
    tools: list[Tool] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None


class MessageRequest(CountRequest):
    """The body of ``/v1/messages``."""

    max_tokens: int | None = None
    stop_sequences: list[str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    stream: bool | None = None


def messages_of(request: CountRequest) -> Sequence[Message]:
    """The conversation. Raises ``ApiError`` for content that no text can stand for."""
    turns = Turns()
    if isinstance(request.system, str):
        turns.system(request.system)
    else:
        for at, block in enumerate(request.system or ()):
            _add_of_system(turns, block, f"system.{at}")
    if not request.messages:
        raise invalid("messages", "empty: expected at least one message")
    for at, turn in enumerate(request.messages):
        blocks = [Block("text", turn.content)] if isinstance(turn.content, str) else turn.content
        add = _ADD.get(turn.role)
        if add is None:
            raise invalid(f"messages.{at}.role", f"{turn.role!r}: expected user, assistant or system")
        for number, block in enumerate(blocks):
            add(turns, block, f"messages.{at}.content.{number}")
    return turns.messages


def prompt_options(request: CountRequest) -> TokenizeOptions:
    """The options that shape the prompt."""
    options: TokenizeOptions = {"model": request.model}
    if tools := _tools(request.tools or ()):
        options["tools"] = tools
    _set_tool_choice(options, request.tool_choice, [tool["name"] for tool in tools])
    arguments: dict[str, Any] = {}
    if request.thinking is not None:
        arguments["enable_thinking"] = arguments["thinking"] = request.thinking.type != "disabled"
    if request.output_config is not None and (effort := request.output_config.effort):
        arguments["reasoning_effort"] = "high" if effort in ("xhigh", "max") else effort
    if arguments:
        options["template_args"] = arguments
    if request.messages[-1].role == "assistant":
        options["continue_final_message"] = True
    return options


def options_of(request: MessageRequest) -> Options:
    """All options."""
    if request.max_tokens is None:
        raise invalid("max_tokens", "missing: expected the most tokens that the answer may have")
    options = cast("Options", prompt_options(request))
    options["max_tokens"] = request.max_tokens
    options["stop"] = request.stop_sequences or None
    options["temperature"] = request.temperature
    options["top_p"] = request.top_p
    options["top_k"] = request.top_k
    options["json_schema"] = _schema(request)
    options["parse"] = True if "tools" in options else {"tool_calls": "none"}
    return options


def _add_of_system(turns: Turns, block: Block, path: str) -> None:
    if not (text := _text(block, path)).startswith(_BILLING):
        turns.system(text)


def _add_of_user(turns: Turns, block: Block, path: str) -> None:
    if block.type != "tool_result":
        turns.user(_text(block, path))
        return
    if block.tool_use_id is None:
        raise invalid(f"{path}.tool_use_id", "missing: expected the id of the tool_use block that it answers")
    content = block.content or ""
    if not isinstance(content, str):
        content = "\n".join(_text(one, f"{path}.content.{number}") for number, one in enumerate(content))
    turns.result(block.tool_use_id, content)


def _add_of_assistant(turns: Turns, block: Block, path: str) -> None:
    if block.type == "thinking":
        turns.reasoning(block.thinking or "")
    elif block.type == "tool_use":
        if block.id is None or block.name is None:
            raise invalid(path, "a tool_use block needs an id, a name and an input")
        turns.call(block.id, block.name, block.input or {})
    elif block.type != "redacted_thinking":
        turns.assistant(_text(block, path))


_ADD = {"user": _add_of_user, "assistant": _add_of_assistant, "system": _add_of_system}


def _text(block: Block, path: str) -> str:
    """The text of a block that is one."""
    text = block.text
    if block.type == "tool_reference":
        text = block.tool_name
    elif block.type == "document" and block.source is not None and block.source.type == "text":
        text = block.source.data
    elif block.type != "text":
        raise invalid(f"{path}.type", f"a block of type {block.type!r} is not supported: expected text")
    if text is None:
        raise invalid(path, f"a block of type {block.type!r} has no text")
    return text


def _tools(tools: Sequence[Tool]) -> list[dict[str, Any]]:
    """The tools that the model can be told of: those with a schema, not those that Anthropic's models know."""
    return [
        {
            "name": tool.name,
            "description": tool.description,
            "parameters": tool.input_schema,
            "strict": tool.strict,
        }
        for tool in tools
        if tool.type in (None, "custom")
    ]


def _set_tool_choice(options: TokenizeOptions, choice: ToolChoice | None, names: Sequence[str]) -> None:
    if choice is None:
        return
    if choice.type not in ("auto", "any", "tool", "none"):
        raise invalid("tool_choice.type", f"{choice.type!r}: expected auto, any, tool or none")
    if not names:
        if choice.type in ("any", "tool"):
            raise invalid("tool_choice", f"{choice.type!r} needs tools that have an input_schema")
        return
    if choice.type == "tool":
        options["tool_choice"] = {"type": "function", "name": choice.name}
    else:
        options["tool_choice"] = "required" if choice.type == "any" else choice.type
    if choice.disable_parallel_tool_use:
        options["parallel_tool_calls"] = False


def _schema(request: CountRequest) -> Mapping[str, Any] | None:
    wanted = request.output_format or (request.output_config and request.output_config.format)
    if not wanted:
        return None
    if wanted.type != "json_schema" or wanted.schema is None:
        raise invalid("output_config.format", "expected type json_schema and a schema")
    return wanted.schema
