"""OpenAI's response request, and its translation to the ring's messages and options."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, cast

import msgspec
from ringline import Message, Options
from ringline.options import TokenizeOptions

from services.gateway.fields import ignored, options_of, passed, refused, same, supported
from services.gateway.http.api_error import ApiError, invalid, shown
from services.gateway.media.pictures import Piece
from services.gateway.openai.loose_schema import with_any_of
from services.gateway.openai.messages import PICTURE_TYPES, ImageUrl, picture_of_part
from services.gateway.openai.responses.tools import Function, functions_of, ring_name, tool_options
from services.gateway.other_forms import INSTEAD, NO_FORM, OtherForms, Within
from services.gateway.other_servers import (
    EnableThinking,
    Limit,
    RepeatPenalty,
    Think,
    ThinkingSwitch,
    limit_reasoning,
    thinking_arguments,
)
from services.gateway.turns import Turns

_TEXTS = ("input_text", "output_text", "text", "reasoning_text", "summary_text")
_AS_IN_CHATS = "`max_output_tokens`, as in chats."
_CALLS = {
    "function_call": "name and arguments",
    "custom_tool_call": "name and input",
    "local_shell_call": "and action",
}
"""Items that are calls, and what they need besides an id."""
_OUTPUTS = tuple(f"{call}_output" for call in _CALLS)
_LOGPROBS = "message.output_text.logprobs"


class ItemPart(msgspec.Struct):
    """A part of an item's content."""

    type: str
    text: str | None = None
    refusal: str | None = None
    image_url: ImageUrl | str | None = None
    detail: str | None = None
    file_id: str | None = None


class Item(msgspec.Struct):
    """An item of the input, of any type."""

    type: str | None = None
    """None: a message, in the SDK's short form."""
    id: str | None = None
    role: str | None = None
    content: str | list[ItemPart] | None = None
    summary: list[ItemPart] | None = None
    call_id: str | None = None
    name: str | None = None
    namespace: str | None = None
    arguments: Any = None
    input: str | None = None
    action: dict[str, Any] | None = None
    output: str | list[ItemPart] | dict[str, Any] | None = None
    tools: list[Any] | None = None


class TextFormat(msgspec.Struct, omit_defaults=True):
    """``text.format``."""

    type: str
    name: str | None = None
    description: str | None = None
    schema: dict[str, Any] | None = None
    json_schema: Any = None
    strict: bool | None = None


class TextConfig(msgspec.Struct):
    """``text``."""

    format: TextFormat | None = None
    verbosity: str | None = None


class ReasoningConfig(msgspec.Struct):
    """``reasoning``."""

    effort: str | None = None


class ResponseRequest(OtherForms):
    """The request's body."""

    model: Annotated[str | None, passed("Default: the model that is served.")] = None
    input: Annotated[
        str | list[Item] | None,
        supported(
            "A text, or items of type `message`, `function_call`, `custom_tool_call`, `local_shell_call`, their "
            "outputs, `reasoning` and `additional_tools`; `web_search_call`, which holds no result, is left out; "
            "others, audio and files are refused. Parts are texts and `input_image`, whose `image_url` is as in chats. "
            "`developer` is `system`. Messages of the user that follow "
            "each other are one."
        ),
    ] = None
    instructions: Annotated[str | None, supported("A message of the system before the input.")] = None
    stream: Annotated[bool | None, supported()] = None
    max_output_tokens: Annotated[int | None, passed("Default: the room that is left.", option="max_tokens")] = None
    temperature: Annotated[float | None, passed("0 is greedy. Default: the model's own, else 1.")] = None
    top_p: Annotated[
        float | None, passed("Default: the model's own, else 1. 0 leaves the most likely token alone.")
    ] = None
    top_logprobs: Annotated[int | None, supported("0 to 20.")] = None
    tools: Annotated[
        list[dict[str, Any]] | None,
        supported(
            "Of type `function`, and of type `namespace` with functions in it; others, such as `web_search` and "
            "`custom`, are left out."
        ),
    ] = None
    tool_choice: Annotated[
        str | dict[str, Any] | None,
        supported("`auto`, `none`, `required`, a function, or `allowed_tools`."),
    ] = None
    parallel_tool_calls: Annotated[bool | None, supported("false: at most one call.")] = None
    text: Annotated[
        TextConfig | None,
        supported(
            "`format`: `text`, `json_object` or `json_schema` (held to the schema, `strict` or not; with "
            "`strict: false` a `oneOf` means `anyOf`, so that it may overlap). "
            "`verbosity` goes to the model's template."
        ),
    ] = None
    reasoning: Annotated[
        ReasoningConfig | None,
        supported(
            "`effort` goes to the model's template; `none` also as `enable_thinking: false`. The reasoning is in the "
            "item's `content`; there are no summaries."
        ),
    ] = None
    include: Annotated[
        list[str] | None,
        supported(
            "`message.output_text.logprobs`: of the tokens that wrote the message's text, not of reasoning, calls, "
            "markers or the token that ends the answer; the others name nothing that answers have."
        ),
    ] = None

    top_k: Annotated[int | None, passed("0 keeps all.")] = None
    min_p: Annotated[float | None, passed()] = None
    frequency_penalty: Annotated[float | None, passed()] = None
    presence_penalty: Annotated[float | None, passed()] = None
    repetition_penalty: Annotated[float | None, passed()] = None
    seed: Annotated[int | None, passed()] = None
    max_completion_tokens: Annotated[int | None, same("max_output_tokens", note=_AS_IN_CHATS)] = None
    max_tokens: Annotated[int | None, same("max_output_tokens", note=_AS_IN_CHATS)] = None
    n_predict: Limit = None
    num_predict: Limit = None
    max_new_tokens: Limit = None
    repeat_penalty: RepeatPenalty = None
    stop: Annotated[
        str | list[str] | None, passed("At most 64 strings. An empty string instead of a list is none.")
    ] = None
    stop_in_reasoning: Annotated[bool | None, passed("Default: false, `stop` counts behind the reasoning.")] = None
    thinking_token_budget: Annotated[
        int | None,
        passed(
            "Tokens of reasoning after which its end is forced; 0: none. Default: no limit.",
            option="max_reasoning_tokens",
        ),
    ] = None
    ignore_eos: Annotated[bool | None, passed()] = None
    priority: Annotated[int | None, passed("Lower runs first.")] = None
    cache_salt: Annotated[str | None, passed("At most 256 bytes.")] = None
    chat_template_kwargs: Annotated[dict[str, Any] | None, supported("Variables for the model's template.")] = None
    enable_thinking: EnableThinking = None
    thinking: ThinkingSwitch = None
    think: Think = None

    metadata: Annotated[dict[str, Any] | None, supported("Comes back; it is not stored.")] = None
    store: Annotated[Any, ignored("Nothing is stored; the response says `store: false`.")] = None
    truncation: Annotated[Any, ignored("An input that is too long is refused.")] = None
    stream_options: Annotated[Any, ignored("Events are not padded.")] = None
    max_tool_calls: Annotated[Any, ignored("It limits built-in tools, and there are none.")] = None
    service_tier: Annotated[Any, ignored("There is one; see `priority`.")] = None
    user: Annotated[Any, ignored("Identity is the bearer token's.")] = None
    safety_identifier: Annotated[Any, ignored("Identity is the bearer token's.")] = None
    prompt_cache_key: Annotated[Any, ignored("Prefixes are cached without it.")] = None
    prompt_cache_options: Annotated[Any, ignored("Prefixes are cached without it.")] = None
    prompt_cache_retention: Annotated[Any, ignored("Prefixes are cached without it.")] = None

    output_config: Annotated[Within | None, refused(INSTEAD, *NO_FORM)] = None
    output_format: Annotated[Any, refused(INSTEAD)] = None
    previous_response_id: Annotated[Any, refused("nothing is stored: send the whole conversation as input")] = None
    conversation: Annotated[Any, refused("nothing is stored: send the whole conversation as input")] = None
    background: Annotated[Any, refused("nothing is stored: wait for the response, or stream it", False)] = None
    prompt: Annotated[Any, refused("nothing is stored: send instructions and input")] = None
    context_management: Annotated[Any, refused("shorten the input yourself", [])] = None
    n_probs: Annotated[Any, refused("top_logprobs gives log probabilities", 0)] = None
    moderation: Annotated[Any, refused("nothing is moderated")] = None


def messages_of(request: ResponseRequest) -> Sequence[Message]:
    """The conversation. Raises ``ApiError`` for items that are neither texts nor pictures."""
    if request.input is None:
        raise invalid("input", "missing: expected a text or a list of items")
    turns = Turns()
    if request.instructions:
        turns.system(request.instructions)
    items = [Item(role="user", content=request.input)] if isinstance(request.input, str) else request.input
    for at, item in enumerate(items):
        _add_item(turns, item, f"input[{at}]")
    if not items:
        turns.user("")  # clients that only probe the endpoint send none
    return turns.messages


def _add_item(turns: Turns, item: Item, path: str) -> None:
    if item.type in ("message", None):
        _add_message(turns, item, path)
    elif item.type in _CALLS:
        _add_call(turns, item, path)
    elif item.type in _OUTPUTS:
        call_id = item.call_id or (item.id if item.type == "local_shell_call_output" else None)
        if call_id is None or isinstance(item.output, dict):
            raise invalid(path, f"a {item.type} needs call_id, and a text or parts as output")
        turns.result(call_id, *_pieces(item.output, f"{path}.output"))
    elif item.type == "reasoning":
        content, name = (item.content, "content") if item.content else (item.summary, "summary")
        for text in _texts(content, f"{path}.{name}"):
            turns.reasoning(text)
    elif item.type == "item_reference":
        what = "a reference, for nothing is stored: expected the item itself, which the AI SDK sends with store: false"
        raise _unsupported(f"{path}.type", what)
    elif item.type not in ("additional_tools", "web_search_call"):  # ``functions`` reads the tools
        expected = "expected message, function_call, function_call_output, reasoning or additional_tools"
        raise _unsupported(f"{path}.type", f"an item of type {shown(item.type)}: {expected}")


def _add_call(turns: Turns, item: Item, path: str) -> None:
    """Add a call as the function that the model would know it by."""
    name, arguments = item.name, item.arguments
    if item.type == "custom_tool_call":
        arguments = {"input": item.input or ""}
    elif item.type == "local_shell_call":
        name, arguments = "local_shell", item.action
    if item.call_id is None or name is None:
        raise invalid(path, f"a {item.type} needs call_id, {_CALLS[str(item.type)]}")
    turns.call(item.call_id, ring_name(name, item.namespace), arguments)


def _add_message(turns: Turns, item: Item, path: str) -> None:
    add = {"user": turns.user, "assistant": turns.assistant, "system": turns.system, "developer": turns.system}
    if item.role not in add:
        raise invalid(f"{path}.role", f"{shown(item.role)}: expected user, assistant, system or developer")
    for piece in _pieces(item.content, f"{path}.content"):
        add[item.role](piece)


def _pieces(content: str | Sequence[ItemPart] | None, path: str) -> list[Piece]:
    if content is None or isinstance(content, str):
        return [content or ""]
    return [_piece(part, f"{path}[{number}]") for number, part in enumerate(content)]


def _piece(part: ItemPart, path: str) -> Piece:
    return picture_of_part(part, path) if part.type in PICTURE_TYPES else _text(part, path)


def _texts(content: str | Sequence[ItemPart] | None, path: str) -> list[str]:
    if content is None or isinstance(content, str):
        return [content or ""]
    return [_text(part, f"{path}[{number}]") for number, part in enumerate(content)]


def _text(part: ItemPart, path: str) -> str:
    if part.type == "refusal":
        return part.refusal or ""
    if part.type not in _TEXTS:
        raise _unsupported(f"{path}.type", f"a part of type {shown(part.type)}: expected text or input_image")
    if part.text is None:
        raise invalid(f"{path}.text", "missing: expected a text")
    return part.text


def functions(request: ResponseRequest) -> list[Function]:
    """The functions that the model may call, from the whole conversation."""
    items = [] if request.input is None or isinstance(request.input, str) else request.input
    added = ((f"input[{at}].tools", item.tools) for at, item in enumerate(items) if item.type == "additional_tools")
    return functions_of([("tools", request.tools), *added])


def wants_logprobs(request: ResponseRequest) -> bool:
    """Whether the response has log probabilities."""
    return request.top_logprobs is not None or _LOGPROBS in (request.include or ())


def all_options(request: ResponseRequest) -> Options:
    """The ring's options for a request."""
    tools = tool_options(functions(request), request.tool_choice, request.parallel_tool_calls)
    options = options_of(request) | tools | _form_options(request)
    if wants_logprobs(request):
        options["logprobs"] = request.top_logprobs or 0
        options["parse"]["content_tokens"] = True
    arguments = dict(request.chat_template_kwargs or {})
    effort = None if request.reasoning is None else request.reasoning.effort
    if effort is not None:
        arguments.setdefault("reasoning_effort", effort)
    arguments = thinking_arguments(request.enable_thinking, request.thinking, request.think) | arguments
    if effort is not None:
        arguments.setdefault("enable_thinking", effort != "none")
    limit_reasoning(options, request.thinking)
    if request.text is not None and request.text.verbosity is not None:
        arguments.setdefault("verbosity", request.text.verbosity)
    if arguments:
        options["template_args"] = arguments
    return cast("Options", options)


def prompt_options(request: ResponseRequest) -> TokenizeOptions:
    """Those that shape the prompt."""
    shaping = TokenizeOptions.__annotations__
    return cast("TokenizeOptions", {name: value for name, value in all_options(request).items() if name in shaping})


def _form_options(request: ResponseRequest) -> dict[str, Any]:
    given = None if request.text is None else request.text.format
    if given is None:
        return {}
    if given.json_schema is not None:
        raise invalid("text.format.json_schema", "not supported: give its members in text.format itself")
    if given.type not in ("text", "json_object", "json_schema"):
        raise _unsupported("text.format.type", f"{shown(given.type)}: expected text, json_object or json_schema")
    if given.schema is not None:
        if given.type == "text":
            raise invalid("text.format.schema", "given beside type text: expected type json_schema, or no schema")
        return {"json_schema": with_any_of(given.schema) if given.strict is False else given.schema}
    if given.type == "json_schema":
        raise invalid("text.format.schema", "missing: expected a JSON Schema")
    return {"json_object": True} if given.type == "json_object" else {}


def _unsupported(param: str, what: str) -> ApiError:
    return invalid(param, f"not supported: {what}", code="unsupported_parameter")
