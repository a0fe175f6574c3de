"""What can be asked for: the contract's fields as keyword arguments, and the request they make."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, MutableMapping, MutableSequence, Sequence
from typing import Any, Required, TypedDict

from google.protobuf.message import Message as ProtoMessage

from ringline.errors import invalid
from ringline.inference.v1 import inference_pb2 as pb
from ringline.types.v1.sampling_pb2 import SamplingParams


class ToolCall(TypedDict, total=False):
    """A call that an assistant made; ``{"id", "function": {"name", "arguments"}}`` is understood too."""

    id: str
    type: str
    name: str
    arguments: str | Mapping[str, Any]
    """A JSON object, as text or not."""
    function: Mapping[str, Any]


class Message(TypedDict, total=False):
    """One message of a conversation."""

    role: Required[str]
    """Such as system, user, assistant, tool."""
    content: str | None
    tool_calls: Sequence[ToolCall]
    tool_call_id: str
    """The call that a tool's message answers."""
    name: str


class TokenizeOptions(TypedDict, total=False):
    """Options of what is made of a text or a conversation. Absent or None: the contract's default."""

    model: str | None
    timeout: float | None
    """Seconds until it ends with DeadlineExceeded. Absent: the client's; None: no limit."""
    add_special_tokens: bool | None

    tools: Sequence[Mapping[str, Any]] | None
    """For messages: tools that the model may call, as its template expects them."""
    template_args: Mapping[str, Any] | None
    """For messages: further variables for the template."""
    add_generation_prompt: bool | None
    continue_final_message: bool | None
    template_name: str | None


class Options(TokenizeOptions, total=False):
    """Options of a generation. Absent or None: the default that the contract names at the field.

    They are the fields of ``GenerateRequest``, ``SamplingParams``, ``StoppingParams``, ``OutputParams`` and ``Chat``.
    """

    request_id: str | None
    """A name for the request, unique among the live ones. Default: one is made."""
    priority: int | None
    """Lower runs first."""
    cache_salt: str | None
    """Cached prefixes are shared only between requests of equal salt."""
    truncate_prompt_tokens: int | None
    """Keep only this many of the prompt's last tokens."""

    temperature: float | None
    """0 is greedy."""
    top_k: int | None
    top_p: float | None
    min_p: float | None
    frequency_penalty: float | None
    presence_penalty: float | None
    repetition_penalty: float | None
    logit_bias: Mapping[int, float] | None
    allowed_token_ids: Sequence[int] | None
    seed: int | None
    n: int | None
    """Number of choices."""

    max_tokens: int | None
    min_tokens: int | None
    stop: str | Sequence[str] | None
    include_stop_str_in_output: bool | None
    stop_token_ids: Sequence[int] | None
    ignore_eos: bool | None
    bad_words: str | Sequence[str] | None

    logprobs: int | None
    """Alternatives reported per output token; 0 reports the token's own."""
    prompt_logprobs: int | None
    skip_special_tokens: bool | None
    return_prompt_token_ids: bool | None
    prefill_progress: bool | None


_REQUEST = frozenset({"request_id", "model", "priority", "cache_salt", "add_special_tokens", "truncate_prompt_tokens"})
_CHAT = frozenset({"tools", "template_args", "add_generation_prompt", "continue_final_message", "template_name"})
_NESTED = {
    field.name: name
    for name, params in (("sampling", SamplingParams), ("stopping", pb.StoppingParams), ("output", pb.OutputParams))
    for field in params.DESCRIPTOR.fields
}
"""In which message of the request an option is."""


def build_request(
    prompt: str | None,
    messages: Sequence[Message] | None,
    token_ids: Sequence[int] | None,
    options: Mapping[str, Any],
) -> pb.GenerateRequest:
    """The request of one prompt (exactly one kind must be given) and its options, ``timeout`` aside.

    Raises TypeError for an unknown option or a value of a wrong type, InvalidRequest for a value that the field
    cannot hold; everything else is the server's to judge.
    """
    if sum(kind is not None for kind in (prompt, messages, token_ids)) != 1:
        raise TypeError("exactly one of prompt, messages and token_ids must be given")
    request = pb.GenerateRequest()
    if prompt is not None:
        _assign(request, "text", prompt)
    elif token_ids is not None:
        request.token_ids.SetInParent()
        _assign(request.token_ids, "ids", token_ids, option="token_ids")
    given = {name: value for name, value in options.items() if value is not None}
    if messages is not None:
        build_chat(request.chat, messages, {name: given.pop(name) for name in _CHAT & given.keys()})
    for name, value in given.items():
        if name in _REQUEST:
            _assign(request, name, value)
        elif name in _NESTED:
            _assign(getattr(request, _NESTED[name]), name, value)
        elif name in _CHAT:
            raise TypeError(f"option {name!r} needs messages")
        else:
            raise TypeError(f"unknown option {name!r}")
    return request


def build_tokenize(
    text: str | None, messages: Sequence[Message] | None, options: Mapping[str, Any]
) -> pb.TokenizeRequest:
    """The request for the ids of a text or a chat (exactly one must be given)."""
    if (text is None) == (messages is None):
        raise TypeError("exactly one of text and messages must be given")
    request = pb.TokenizeRequest()
    given = {name: value for name, value in options.items() if value is not None}
    if messages is not None:
        build_chat(request.chat, messages, {name: given.pop(name) for name in _CHAT & given.keys()})
    else:
        _assign(request, "text", text)
    for name, value in given.items():
        if name not in ("model", "add_special_tokens"):
            raise TypeError(f"option {name!r} needs messages" if name in _CHAT else f"unknown option {name!r}")
        _assign(request, name, value)
    return request


def build_detokenize(
    token_ids: Sequence[int], model: str | None, skip_special_tokens: bool | None
) -> pb.DetokenizeRequest:
    """The request for the text of ids."""
    request = pb.DetokenizeRequest()
    _assign(request, "token_ids", token_ids)
    for name, value in (("model", model), ("skip_special_tokens", skip_special_tokens)):
        if value is not None:
            _assign(request, name, value)
    return request


def build_chat(chat: pb.Chat, messages: Sequence[Message], options: Mapping[str, Any]) -> None:
    """Write a conversation and its template's options into ``chat``."""
    chat.SetInParent()
    for number, message in enumerate(messages):
        _add_message(chat.messages.add(), message, f"messages[{number}]")
    for name, value in options.items():
        if name in ("tools", "template_args"):
            _assign(chat, f"{name}_json", _json(value, name), option=name)
        else:
            _assign(chat, name, value)


def _add_message(target: pb.ChatMessage, message: Message, path: str) -> None:
    for key, value in message.items():
        if key == "tool_calls":
            for call in message["tool_calls"]:
                _add_tool_call(target.tool_calls.add(), call, f"{path}.tool_calls")
        elif key not in ("role", "content", "tool_call_id", "name"):
            raise TypeError(f"unknown key {key!r} in {path}")
        elif value is not None:
            _assign(target, key, value, option=f"{path}.{key}")


def _add_tool_call(target: pb.ToolCall, call: ToolCall, path: str) -> None:
    function = call.get("function", call)
    arguments = function.get("arguments", "{}")
    text = arguments if isinstance(arguments, str) else _json(arguments, f"{path}.arguments")
    _assign(target, "id", call.get("id", ""), option=f"{path}.id")
    _assign(target, "name", function.get("name", ""), option=f"{path}.name")
    _assign(target, "arguments_json", text, option=f"{path}.arguments")


def _json(value: object, option: str) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except ValueError as error:
        raise invalid(option, f"cannot be written as JSON ({error})") from None


def _assign(message: ProtoMessage, name: str, value: Any, option: str | None = None) -> None:
    """Set a field of any kind; ``option`` names it in errors."""
    option = option or name
    try:
        _setter(message, name)(value)
    except TypeError as error:
        raise TypeError(f"{option}: {error}") from None
    except (ValueError, OverflowError) as error:
        raise invalid(option, str(error)) from None


def _setter(message: ProtoMessage, name: str) -> Callable[[Any], None]:
    field = getattr(message, name)
    if isinstance(field, MutableMapping):
        return field.update
    if isinstance(field, MutableSequence):
        return lambda value: field.extend([value] if isinstance(value, str) else value)
    return lambda value: setattr(message, name, value)
