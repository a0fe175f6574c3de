"""Anthropic's message request, and its translation to the ring's messages and options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, cast

import msgspec
from ringline.options import Message, Options, TokenizeOptions

from services.gateway.fields import ignored, options_of, passed, refused, supported
from services.gateway.http.api_error import invalid, shown
from services.gateway.media.pictures import Piece, picture_of_base64, picture_of_url
from services.gateway.other_forms import INSTEAD, NO_FORM, OtherForms, Within
from services.gateway.other_servers import Limit, RepeatPenalty, limit_reasoning
from services.gateway.parsers import ReasoningParser, ToolCallParser, chosen_formats
from services.gateway.turns import Turns

_BILLING = "x-anthropic-billing-header"
"""Begins a block of the system prompt that is useless to models and differs in each request."""

_BEGINNING = 80
"""Characters of a failed tool's result in which its own words may say that it failed."""
_THINKING = ("enabled", "adaptive", "auto", "disabled")
_TOOL_CHANGES = ("tool_addition", "tool_removal")
_CALLS = ("tool_use", "server_tool_use", "mcp_tool_use")
_OWN_RESULT = "_tool_result"
"""Ends the types of results of Anthropic's own tools, which are in the assistant's turn."""


class Source(msgspec.Struct):
    """A document's or picture's content."""

    type: str
    data: str | None = None
    media_type: str | None = None
    url: str | None = None
    content: str | list[Block] | None = None


class Tool(msgspec.Struct):
    """A tool. For Anthropic's own, only type and name are read."""

    name: str | None = None
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None


class ToolChange(msgspec.Struct):
    """The tool that a block adds or removes, by definition or name."""

    type: str
    name: str | None = None
    definition: Tool | None = None


class Block(msgspec.Struct):
    """A content block of any type."""

    type: str
    text: str | None = None
    thinking: str | None = None
    id: str | None = None
    name: str | None = None
    input: Any = None
    tool_use_id: str | None = None
    content: str | list[Block] | dict[str, Any] | None = None
    is_error: bool | None = None
    source: Source | str | None = None
    title: str | None = None
    context: str | None = None
    url: str | None = None
    tool_name: str | None = None
    tool: ToolChange | None = None


class Turn(msgspec.Struct):
    """A message of the conversation."""

    role: str
    content: str | list[Block] | None = None
    clear_at: str | None = None

    @property
    def blocks(self) -> Sequence[Block]:
        """The content; text becomes one block."""
        return [Block("text", self.content)] if isinstance(self.content, str) else self.content or ()


class ToolChoice(msgspec.Struct):
    """Which tools are to be called."""

    type: str
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(msgspec.Struct):
    """Whether, and how long, the model should reason."""

    type: str
    budget_tokens: int | None = None


class OutputFormat(msgspec.Struct):
    """The form of the answer."""

    type: str
    schema: dict[str, Any] | None = None


class OutputConfig(msgspec.Struct):
    """The answer's form, and the reasoning effort."""

    effort: str | None = None
    format: OutputFormat | None = None


class CountRequest(OtherForms):
    """The body of ``/v1/messages/count_tokens``: the prompt."""

    model: Annotated[str | None, passed("Default: the model that is served.")] = None
    messages: Annotated[
        list[Turn] | None,
        supported(
            "Blocks of type `text`, `image`, `tool_use`, `tool_result` and `thinking`, search results, and documents "
            "of plain text; other documents are refused. An image's source is of type `base64`, or `url` at a host of "
            "`--allowed-media-hosts`; it may be in a result. A result with `is_error` says so in its text. Calls of "
            "Anthropic's own tools, and their results, are shown as those of other tools. Turns of one role that "
            "follow each other are one. A last turn of the assistant is continued."
        ),
    ] = None
    system: Annotated[str | list[Block] | None, supported()] = None
    tools: Annotated[
        list[Tool] | None,
        supported("Those with an `input_schema`; Anthropic's own, such as `web_search_20250305`, are left out."),
    ] = None
    tool_choice: Annotated[ToolChoice | None, supported()] = None
    thinking: Annotated[
        Thinking | None,
        supported(
            "`enable_thinking` and `thinking` for the model's template; after `budget_tokens` of reasoning its end is "
            "forced."
        ),
    ] = None
    chat_template_kwargs: Annotated[dict[str, Any] | None, supported("Variables for the model's template.")] = None
    output_config: Annotated[
        OutputConfig | None,
        supported("`format` is enforced; `effort` is `reasoning_effort` for the model's template, at most `high`."),
    ] = None
    output_format: Annotated[OutputFormat | None, supported("Older form of `output_config.format`.")] = None
    text: Annotated[Within | None, refused(INSTEAD, *NO_FORM)] = None

    cache_control: Annotated[Any, ignored("Prefixes are cached without it.")] = None
    context_management: Annotated[Any, ignored("The conversation is used as it is.")] = None
    speed: Annotated[Any, ignored("There is one.")] = None
    user_profile_id: Annotated[Any, ignored("Identity is the key's.")] = None
    workspace_id: Annotated[Any, ignored("Identity is the key's.")] = None

    enable_thinking: Annotated[Any, refused("thinking turns reasoning on and off")] = None
    think: Annotated[Any, refused("thinking turns reasoning on and off")] = None
    mcp_servers: Annotated[Any, refused("give the servers' tools in tools, and call them yourself", [])] = None


class MessageRequest(CountRequest):
    """The body of ``/v1/messages``."""

    max_tokens: Annotated[
        int | None,
        supported("Required. Where the context has less room, that counts: `model_context_window_exceeded`."),
    ] = None
    stop_sequences: Annotated[
        list[str] | None, passed("At most 64. They count behind the thinking.", option="stop")
    ] = None
    temperature: Annotated[float | None, passed("0 is greedy. Default: the model's own, else 1.")] = None
    top_p: Annotated[
        float | None, passed("Default: the model's own, else 1. 0 leaves the most likely token alone.")
    ] = None
    top_k: Annotated[int | None, passed("0 keeps all.")] = None
    min_p: Annotated[float | None, passed()] = None
    frequency_penalty: Annotated[float | None, passed()] = None
    presence_penalty: Annotated[float | None, passed()] = None
    repetition_penalty: Annotated[float | None, passed()] = None
    seed: Annotated[int | None, passed()] = None
    thinking_token_budget: Annotated[
        int | None,
        passed(
            "Tokens of reasoning after which its end is forced; 0: none. Default: no limit.",
            option="max_reasoning_tokens",
        ),
    ] = None
    tool_call_parser: ToolCallParser = None
    reasoning_parser: ReasoningParser = None
    n_predict: Limit = None
    num_predict: Limit = None
    max_new_tokens: Limit = None
    repeat_penalty: RepeatPenalty = None
    stream: Annotated[bool | None, supported()] = None

    metadata: Annotated[Any, ignored("Nothing is stored.")] = None
    service_tier: Annotated[Any, ignored("There is one.")] = None
    inference_geo: Annotated[Any, ignored("The model runs where it is served.")] = None
    diagnostics: Annotated[Any, ignored("Nothing is stored.")] = None

    container: Annotated[Any, refused("there are no containers")] = None


def messages_of(request: CountRequest) -> Sequence[Message]:
    """The conversation. Raises ``ApiError`` for content that is neither text nor a picture."""
    given = request.messages
    if not given:
        raise invalid("messages", "missing or empty: expected at least one message")
    turns = Turns()
    for at, block in enumerate(Turn("system", request.system).blocks):
        _add_of_system(turns, block, f"system[{at}]")
    last_of_user = max((at for at, turn in enumerate(given) if turn.role == "user"), default=0)
    for at, turn in enumerate(given):
        add = _ADD.get(turn.role)
        if add is None:
            raise invalid(f"messages[{at}].role", f"{shown(turn.role)}: expected user, assistant or system")
        if turn.clear_at == "next_user_message" and at < last_of_user:
            continue
        for number, block in enumerate(turn.blocks):
            add(turns, block, f"messages[{at}].content[{number}]")
    return turns.messages


def prompt_options(request: CountRequest) -> TokenizeOptions:
    """The options that shape the prompt."""
    options: TokenizeOptions = {"model": request.model}
    if tools := _tools(request):
        options["tools"] = tools
    _set_tool_choice(options, request.tool_choice)
    arguments: dict[str, Any] = {}
    if request.thinking is not None:
        if request.thinking.type not in _THINKING:
            raise invalid("thinking.type", f"{shown(request.thinking.type)}: expected {', '.join(_THINKING)}")
        arguments["enable_thinking"] = arguments["thinking"] = request.thinking.type != "disabled"
    if request.output_config is not None and (effort := request.output_config.effort):
        arguments["reasoning_effort"] = "high" if effort in ("xhigh", "max") else effort
    arguments |= request.chat_template_kwargs or {}
    if arguments:
        options["template_args"] = arguments
    last = request.messages[-1] if request.messages else Turn("")
    if last.role == "assistant" and _goes_on(last.blocks):
        options["continue_final_message"] = True
    return options


def _goes_on(blocks: Sequence[Block]) -> bool:
    """Whether an assistant's last turn may be continued: not behind a call that waits for its result."""
    if not blocks or any(block.type == "tool_use" for block in blocks):
        return False
    return blocks[-1].type not in _CALLS and not blocks[-1].type.endswith(_OWN_RESULT)


def all_options(request: MessageRequest) -> Options:
    """All options."""
    if request.max_tokens is None:
        raise invalid("max_tokens", "missing: expected the most tokens that the answer may have")
    given = options_of(request)
    limit_reasoning(given, request.thinking)
    options = cast("Options", {**prompt_options(request), **given})
    options["max_tokens"] = request.max_tokens
    options["json_schema"] = _schema(request)
    calls_allowed = "tools" in options and options.get("tool_choice") != "none"
    parse = chosen_formats(request.tool_call_parser, request.reasoning_parser)
    if not calls_allowed:
        parse["tool_calls"] = "none"
    options["parse"] = parse or True
    return options


def _add_of_system(turns: Turns, block: Block, path: str) -> None:
    if block.type not in _TOOL_CHANGES and not (text := _text(block, path)).startswith(_BILLING):
        turns.system(text)


def _add_of_user(turns: Turns, block: Block, path: str) -> None:
    if block.type == "tool_result":
        _add_result(turns, block, path)
    else:
        turns.user(_piece(block, path, "tool_result, "))


def _add_result(turns: Turns, block: Block, path: str) -> None:
    if block.tool_use_id is None:
        raise invalid(f"{path}.tool_use_id", "missing: expected the id of the tool_use block that it answers")
    pieces = _result_pieces(block.content or "", f"{path}.content")
    text = pieces[0] if isinstance(pieces[0], str) else None
    if block.is_error and "error" not in (text or "")[:_BEGINNING].casefold():
        pieces[: text is not None] = [f"Error: {text}" if text else "Error"]
    turns.result(block.tool_use_id, *pieces)


def _result_pieces(content: str | Sequence[Block] | Mapping[str, Any], path: str) -> list[Piece]:
    """The texts, as one where there is no picture, and pictures of a result."""
    if isinstance(content, str | Mapping) or all(block.type != "image" for block in content):
        return [_joined(content, path)]
    return [_piece(block, f"{path}[{number}]") for number, block in enumerate(content)]


def _joined(content: str | Sequence[Block] | Mapping[str, Any], path: str) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, Mapping):  # of Anthropic's own tools
        return msgspec.json.encode(content).decode()
    return "\n".join(_text(one, f"{path}[{number}]") for number, one in enumerate(content))


def _add_of_assistant(turns: Turns, block: Block, path: str) -> None:
    if block.type == "thinking":
        turns.reasoning(block.thinking or "")
    elif block.type.endswith(_OWN_RESULT):
        _add_result(turns, block, path)
    elif block.type in _CALLS:
        if block.id is None or block.name is None:
            raise invalid(path, f"a {block.type} block needs an id, a name and an input")
        turns.call(block.id, block.name, block.input)
    elif block.type != "redacted_thinking":
        turns.assistant(_piece(block, path, "thinking, tool_use, "))


_ADD = {"user": _add_of_user, "assistant": _add_of_assistant, "system": _add_of_system}


def _piece(block: Block, path: str, others: str = "") -> Piece:
    """The text or picture of a block; ``others`` may be in its place."""
    if block.type != "image":
        return _text(block, path, others + "image, ")
    source = block.source
    if not isinstance(source, Source) or source.type not in ("base64", "url"):
        given = f"{shown(source.type)}: " if isinstance(source, Source) else "missing: "
        raise invalid(f"{path}.source", f"{given}expected a source of type base64 or url; no files are stored")
    if source.type == "url":
        return picture_of_url(source.url, f"{path}.source.url")
    return picture_of_base64(source.data, source.media_type, f"{path}.source.data")


def _text(block: Block, path: str, others: str = "") -> str:
    """The text of a textual block; ``others`` may be in its place."""
    text = block.text
    if block.type == "tool_reference":
        text = block.tool_name
    elif block.type == "document" and isinstance(block.source, Source) and block.source.type in ("text", "content"):
        text = block.source.data
        if block.source.type == "content" and block.source.content is not None:
            text = _joined(block.source.content, f"{path}.source.content")
        text = text and "\n".join(filter(None, (block.title, block.context, text)))
    elif block.type == "search_result" and block.content:
        source, found = block.source, _joined(block.content, f"{path}.content")
        text = "\n".join(filter(None, (block.title, source if isinstance(source, str) else None, found)))
    elif block.type == "web_search_result":
        text = "\n".join(filter(None, (block.title, block.url)))
    elif block.type not in ("text", "search_result"):
        of_source = f" of source {shown(block.source.type)}" if isinstance(block.source, Source) else ""
        expected = f"expected {others}text, search_result, or a document of plain text"
        raise invalid(f"{path}.type", f"a block of type {shown(block.type)}{of_source} is not supported: {expected}")
    if text is None:
        raise invalid(path, f"a block of type {shown(block.type)} has no text")
    return text


def _tools(request: CountRequest) -> list[dict[str, Any]]:
    """The tools to show the model: without removed ones and Anthropic's own, which have no schema."""
    tools, removed = list(request.tools or ()), set()
    for block in (block for turn in request.messages or () for block in turn.blocks):
        if (change := block.tool) is None or block.type not in _TOOL_CHANGES:
            continue
        name = change.name if change.definition is None else change.definition.name
        if block.type == "tool_removal":
            removed.add(name)
            continue
        removed.discard(name)
        if change.definition is not None:
            tools.append(change.definition)
    return [
        {"name": tool.name, "description": tool.description, "parameters": tool.input_schema, "strict": tool.strict}
        for tool in tools
        if tool.type in (None, "custom") and tool.name not in removed
    ]


def _set_tool_choice(options: TokenizeOptions, choice: ToolChoice | None) -> None:
    if choice is None:
        return
    if choice.type not in ("auto", "any", "tool", "none"):
        raise invalid("tool_choice.type", f"{shown(choice.type)}: expected auto, any, tool or none")
    if "tools" not in options:
        if choice.type in ("any", "tool"):
            raise invalid("tool_choice", f"{shown(choice.type)} needs tools that have an input_schema")
        return
    if choice.type == "tool":
        if choice.name is None:
            raise invalid("tool_choice.name", "missing: expected the name of a tool")
        options["tool_choice"] = {"type": "function", "name": choice.name}
    else:
        options["tool_choice"] = "required" if choice.type == "any" else choice.type
    if choice.disable_parallel_tool_use and choice.type != "none":
        options["parallel_tool_calls"] = False


def _schema(request: MessageRequest) -> Mapping[str, Any] | None:
    wanted = request.output_format or (request.output_config and request.output_config.format)
    if not wanted:
        return None
    if wanted.type != "json_schema" or wanted.schema is None:
        raise invalid("output_config.format", "expected type json_schema and a schema")
    return wanted.schema
