"""Translates a chat's messages and tools, OpenAI's with vLLM's additions, to the ring's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec
from ringline import Message

from services.gateway.http.api_error import ApiError, invalid, shown
from services.gateway.media.pictures import Piece, check_detail, content_of, picture_of_url
from services.gateway.turns import replayed_arguments

_TEXT_TYPES = ("text", "input_text", "output_text")
PICTURE_TYPES = ("image_url", "input_image")
"""Chats have the first, responses the second."""


class ImageUrl(msgspec.Struct):
    """``image_url`` of a part."""

    url: str | None = None
    detail: str | None = None


class PicturePart(Protocol):
    """The fields of a part that a picture has."""

    image_url: ImageUrl | str | None
    detail: str | None
    file_id: str | None


class ContentPart(msgspec.Struct):
    """A part of a message."""

    type: str
    text: str | None = None
    refusal: str | None = None
    image_url: ImageUrl | str | None = None
    detail: str | None = None
    file_id: str | None = None


class CalledFunction(msgspec.Struct):
    """``tool_calls[…].function``."""

    name: str
    arguments: Any = None


class MessageToolCall(msgspec.Struct):
    """A call in an assistant's message."""

    function: CalledFunction | None = None
    id: str | None = None
    type: str | None = None


class ChatMessage(msgspec.Struct):
    """A message."""

    role: str
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: list[MessageToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    audio: Any = None
    images: Any = None
    function_call: Any = None


def ring_messages(messages: Sequence[ChatMessage] | None) -> list[Message]:
    """The conversation in the ring's form. Raises ``ApiError`` for unsupported content."""
    if not messages:
        problem = "missing" if messages is None else "empty"
        raise invalid("messages", f"{problem}: expected at least one message")
    return [_ring_message(message, f"messages[{number}]") for number, message in enumerate(messages)]


def _ring_message(message: ChatMessage, path: str) -> Message:
    if message.audio is not None:
        raise _unsupported(f"{path}.audio", "text and pictures are taken")
    if message.images:  # Ollama's field
        raise _unsupported(f"{path}.images", "send a picture as a part of content, of type image_url")
    if message.function_call is not None:
        raise _unsupported(f"{path}.function_call", "give tool_calls, and the result with role tool")
    if message.content is None and message.role not in ("assistant", "tool"):
        raise invalid(f"{path}.content", "missing: expected a text or a list of parts")
    role = "system" if message.role == "developer" else message.role
    ring: Message = {"role": role, "content": _content(message, path)}
    if message.name is not None:
        ring["name"] = message.name
    if message.tool_call_id is not None:
        ring["tool_call_id"] = message.tool_call_id
    if (reasoning := message.reasoning_content or message.reasoning) is not None:
        ring["reasoning"] = reasoning
    if message.tool_calls:
        ring["tool_calls"] = [
            _ring_call(call, f"{path}.tool_calls[{number}]") for number, call in enumerate(message.tool_calls)
        ]
    return ring


def _content(message: ChatMessage, path: str) -> Any:
    """The content; parts follow each other directly, as in the templates that take parts."""
    content = message.content
    if content is None:
        return message.refusal or ""
    if isinstance(content, str):
        return content
    return content_of([_piece(part, f"{path}.content[{number}]") for number, part in enumerate(content)])


def _piece(part: ContentPart, path: str) -> Piece:
    if part.type in PICTURE_TYPES:
        return picture_of_part(part, path)
    if part.type == "refusal" and part.refusal is not None:
        return part.refusal
    if part.type not in _TEXT_TYPES:
        raise _unsupported(f"{path}.type", f"a part of type {shown(part.type)}; parts of type text and image_url are")
    if part.text is None:
        raise invalid(f"{path}.text", "missing: expected a text")
    return part.text


def picture_of_part(part: PicturePart, path: str) -> Piece:
    """The picture of a part ``image_url``, or of ``input_image``, as the newer API has it. Raises ``ApiError``."""
    if part.file_id is not None:
        raise _unsupported(f"{path}.file_id", "no files are stored; send the picture itself as image_url")
    url, detail, where = part.image_url, part.detail, f"{path}.image_url"
    if isinstance(url, ImageUrl):
        check_detail(url.detail, f"{where}.detail")
        url, where = url.url, f"{where}.url"
    check_detail(detail, f"{path}.detail")
    return picture_of_url(url, where)


def _ring_call(call: MessageToolCall, path: str) -> Any:
    if call.function is None:
        raise invalid(f"{path}.function", "missing: expected the name and the arguments of a function")
    return {"id": call.id or "", "name": call.function.name, "arguments": replayed_arguments(call.function.arguments)}


class ToolFunction(msgspec.Struct):
    """``tools[…].function``."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(msgspec.Struct):
    """A tool that the model may call."""

    function: ToolFunction | None = None
    type: str = "function"


def tool_options(
    tools: Sequence[Tool] | None, choice: str | dict[str, Any] | None, parallel: bool | None
) -> dict[str, Any]:
    """The ring's options for tools and for parsing answers."""
    if not tools:
        if choice not in (None, "auto", "none"):
            raise invalid("tool_choice", "there are no tools to choose: give tools, or leave it out")
        return {"parse": {"tool_calls": "none"}}
    functions = [_function(tool, f"tools[{number}]") for number, tool in enumerate(tools)]
    options: dict[str, Any] = {"tools": functions, "parse": {"tool_calls": "none"} if choice == "none" else True}
    if choice is not None:
        options["tool_choice"] = _ring_choice(choice)
    if parallel is False and choice != "none":
        options["parallel_tool_calls"] = False
    return options


def _function(tool: Tool, path: str) -> dict[str, Any]:
    if tool.type != "function":
        raise _unsupported(f"{path}.type", f"a tool of type {shown(tool.type)}; tools of type function are")
    if tool.function is None:
        raise invalid(f"{path}.function", "missing: expected name, description and parameters")
    given = msgspec.structs.asdict(tool.function)
    return {name: value for name, value in given.items() if value is not None}


def _ring_choice(choice: str | dict[str, Any]) -> str | dict[str, Any]:
    if isinstance(choice, str):
        if choice not in ("auto", "none", "required"):
            raise invalid("tool_choice", f"{shown(choice)}: expected auto, none, required or an object with a function")
        return choice
    if choice.get("type", "function") != "function":
        raise _unsupported("tool_choice.type", f"{shown(choice['type'])}; give the tools that are allowed in tools")
    function = choice.get("function")
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str):
        raise invalid("tool_choice.function.name", "missing: expected the name of a tool")
    return {"type": "function", "name": name}  # a bare name could mean a mode


def _unsupported(param: str, what: str) -> ApiError:
    return invalid(param, f"not supported: {what}", code="unsupported_parameter")
