"""Builds request messages from prompts and options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from ringline import constraints, tools
from ringline.beams import set_beam_search
from ringline.content_parts import has_pictures, set_content
from ringline.errors import invalid
from ringline.inference.v1 import inference_pb2 as pb
from ringline.options import Message, MessageToolCall
from ringline.proto_fields import assign, expect, json_text
from ringline.types.v1 import part_pb2, sampling_pb2

_REQUEST = frozenset(
    {
        "request_id",
        "model",
        "adapter",
        "priority",
        "cache_salt",
        "requires",
        "speculation",
        "traceparent",
        "add_special_tokens",
        "truncate_prompt_tokens",
    }
)
_CHAT = frozenset({*tools.OPTIONS, "template_args", "add_generation_prompt", "continue_final_message", "template_name"})
_MESSAGE = ("role", "content", "reasoning", "tool_calls", "tool_call_id", "name")
_NESTED = {
    field.name: name
    for name, params in (("sampling", pb.SamplingParams), ("stopping", pb.StoppingParams), ("output", pb.OutputParams))
    for field in params.DESCRIPTOR.fields
    if field.name != "parse"
}
"""For each option, the submessage of the request that holds it."""

_OF_OTHER_APIS = {
    "guided_json": "it is called json_schema here",
    **dict.fromkeys(("schema", "json"), "it is called json_schema here"),
    "extra_body": "give what is in it as options",
    "stream": "call stream() in place of generate()",
    "guided_regex": "it is called regex here",
    "guided_choice": "it is called choice here",
    "guided_grammar": "it is called grammar here",
    **dict.fromkeys(("structural_tag", "guided_structural_tag"), "it is called structural_tags here"),
    "guided_whitespace_pattern": "any_whitespace leaves the white space of JSON to the model",
    **dict.fromkeys(
        ("response_format", "structured_outputs", "guided_decoding"),
        "the form of an answer is json_schema, json_object, regex, choice, grammar or structural_tags",
    ),
    "functions": "they are called tools here",
    "function_call": "it is called tool_choice here",
    **dict.fromkeys(("include_reasoning", "separate_reasoning"), "parse=True divides reasoning from content"),
    **dict.fromkeys(
        ("enable_thinking", "reasoning_effort"), "give it to the model's template: template_args={{'{0}': …}}"
    ),
    "best_of": "n gives several choices, and logprobs tells which is the most likely",
    **dict.fromkeys(("use_beam_search", "num_beams"), "give beam_search={{'width': …}}"),
    **dict.fromkeys(("length_penalty", "early_stopping"), "give beam_search={{'width': …, '{0}': …}}"),
    "chat_template_kwargs": "it is called template_args here",
    **dict.fromkeys(("lora_request", "lora_path", "lora"), "give the name of one of the server's: adapter='…'"),
    "max_completion_tokens": "it is called max_tokens here",
}
"""Options of other APIs, with their replacements; {0} is the option's name."""


def build_request(
    prompt: str | None,
    messages: Sequence[Message] | None,
    token_ids: Sequence[int] | None,
    options: Mapping[str, Any],
) -> pb.GenerateRequest:
    """The request for one prompt (exactly one kind must be given) and its options, without ``timeout``.

    Raises TypeError for an unknown option or a value of a wrong type, InvalidRequest for a value that the field
    cannot hold; the server checks the rest.
    """
    kinds = {"prompt": prompt, "messages": messages, "token_ids": token_ids}
    if len(prompts := [name for name, kind in kinds.items() if kind is not None]) != 1:
        got = " and ".join(prompts) or "none"
        raise TypeError(f"expected exactly one of prompt, messages and token_ids, got {got}")
    request = pb.GenerateRequest()
    if prompt is not None:
        assign(request, "text", prompt)
    elif token_ids is not None:
        request.token_ids.SetInParent()
        assign(request.token_ids, "ids", token_ids, option="token_ids")
    given = {name: value for name, value in options.items() if value is not None}
    if messages is not None:
        build_chat(request.chat, messages, {name: given.pop(name) for name in _CHAT & given.keys()})
    if request.chat.tools and (calls := given.pop("tool_calls", None)) is not None:  # from options a server resolved
        after_reasoning = given.pop("after_reasoning", None)
        if isinstance(calls, Mapping) and calls.get("form"):
            given |= {**calls["form"], "after_reasoning": after_reasoning}
    constraints.set_constraint(
        request.constraint, {name: given.pop(name) for name in constraints.OPTIONS & given.keys()}
    )
    if "parse" in given:
        _set_parse(request, given.pop("parse"))
    if "no_repeat_ngram" in given:
        _set_no_repeat_ngram(request.sampling.no_repeat_ngram, given.pop("no_repeat_ngram"))
    if "beam_search" in given:
        set_beam_search(request.beam_search, given.pop("beam_search"))
    for name, value in given.items():
        if name in _REQUEST:
            assign(request, name, value)
        elif name in _NESTED:
            assign(getattr(request, _NESTED[name]), name, value)
        elif name in _CHAT:
            raise TypeError(f"option {name!r} is for messages only: give messages, or leave it out")
        else:
            raise _unknown(name)
    request.requires.extend(name for name in needed(request) if name not in request.requires)
    return request


def needed(request: pb.GenerateRequest) -> list[str]:
    """The capabilities without which a server would ignore a part of ``request``."""
    parses = request.output.HasField("parse") or request.chat.tools
    has_form, calls = request.HasField("constraint"), request.constraint.tool_calls
    may_call = request.chat.tools and request.chat.tool_choice.mode != pb.ToolChoice.MODE_NONE
    stopping = request.stopping
    asked = {
        "answer_stops": parses
        and request.output.parse.reasoning != "none"
        and stopping.HasField("stop_in_reasoning")
        and not stopping.stop_in_reasoning
        and (stopping.stop or stopping.stop_token_ids),
        "adapters": request.adapter,
        "beam_search": request.HasField("beam_search"),
        "constraint": has_form,
        "form_beside_tools": has_form and (may_call or calls.HasField("form")),
        "parse": parses,
        "reasoning_budget": stopping.HasField("max_reasoning_tokens"),
        "content_tokens": request.output.parse.content_tokens,
        "media": has_pictures(request.chat),
        "no_repeat_ngram": request.sampling.HasField("no_repeat_ngram"),
        "tools": request.chat.tools,
    }
    return [name for name, needed in asked.items() if needed]


def _set_parse(request: pb.GenerateRequest, value: object) -> None:
    if value is False and not request.chat.tools:
        return  # there is nothing to turn off
    target = request.output.parse
    target.SetInParent()
    if isinstance(value, bool):
        if not value:
            target.tool_calls = target.reasoning = "none"
        return
    keys = part_pb2.ParseParams.DESCRIPTOR.fields_by_name
    expect(Mapping, "True, or a dict such as {'reasoning': 'think'}", value, "parse")
    for key, one in dict(value).items():  # type: ignore[call-overload]
        if key not in keys:
            raise TypeError(f"parse: unknown key {key!r}: expected {', '.join(keys)}")
        if one is not None:
            assign(target, key, one, option=f"parse.{key}")


def _set_no_repeat_ngram(target: sampling_pb2.NoRepeatNgram, value: object) -> None:
    expect(Mapping, "a dict such as {'ngram_size': 30, 'window_size': 90}", value, "no_repeat_ngram")
    target.SetInParent()
    given = dict(value)  # type: ignore[call-overload]
    for key, one in given.items():
        if key not in target.DESCRIPTOR.fields_by_name:
            expected = ", ".join(target.DESCRIPTOR.fields_by_name)
            raise TypeError(f"no_repeat_ngram: unknown key {key!r}: expected {expected}")
        if one is not None:
            assign(target, key, one, option=f"no_repeat_ngram.{key}")
    for key in ("ngram_size", "window_size"):
        if given.get(key) is None:
            raise invalid(f"no_repeat_ngram.{key}", "missing: expected a number of tokens")


def _unknown(name: str) -> TypeError:
    """The error for an unknown option: another API's, or misspelt."""
    if (instead := _OF_OTHER_APIS.get(name)) is not None:
        return TypeError(f"option {name!r} is not supported: {instead.format(name)}")
    known = _REQUEST | _NESTED.keys() | _CHAT | constraints.OPTIONS | {"parse", "beam_search"}
    near = get_close_matches(name, known, 1, cutoff=0.8)
    return TypeError(f"unknown option {name!r}" + (f"; did you mean {near[0]!r}?" if near else ""))


def build_tokenize(
    text: str | None, messages: Sequence[Message] | None, options: Mapping[str, Any]
) -> pb.TokenizeRequest:
    """The request for the token ids of a text or a chat. Raises TypeError unless exactly one is given."""
    if (text is None) == (messages is None):
        got = "none" if text is None else "both"
        raise TypeError(f"expected exactly one of text and messages, got {got}")
    request = pb.TokenizeRequest()
    given = {name: value for name, value in options.items() if value is not None}
    if messages is not None:
        build_chat(request.chat, messages, {name: given.pop(name) for name in _CHAT & given.keys()})
    else:
        assign(request, "text", text)
    for name, value in given.items():
        if name not in ("model", "add_special_tokens"):
            only = "is for messages only: give messages, or leave it out"
            raise TypeError(f"option {name!r} {only}" if name in _CHAT else f"unknown option {name!r}")
        assign(request, name, value)
    return request


def build_detokenize(
    token_ids: Sequence[int], model: str | None, skip_special_tokens: bool | None, *, pieces: bool = False
) -> pb.DetokenizeRequest:
    """The request for the text of token ids, or with ``pieces``, for the bytes of each token."""
    request = pb.DetokenizeRequest(pieces=pieces)
    assign(request, "token_ids", token_ids)
    for name, value in (("model", model), ("skip_special_tokens", skip_special_tokens)):
        if value is not None:
            assign(request, name, value)
    return request


def build_chat(chat: pb.Chat, messages: Sequence[Message], options: Mapping[str, Any]) -> None:
    """Write a conversation, its tools and its template's options into ``chat``."""
    chat.SetInParent()
    if isinstance(messages, str | Mapping):
        raise TypeError(f"messages: expected a list of messages, got {type(messages).__name__}")
    for number, message in enumerate(messages):
        _add_message(chat.messages.add(), message, f"messages[{number}]")
    tools.set_tools(chat, options)
    for name, value in options.items():
        if name == "template_args":
            assign(chat, "template_args_json", json_text(value, name), option=name)
        elif name not in tools.OPTIONS:
            assign(chat, name, value)


def _add_message(target: pb.ChatMessage, message: Message, path: str) -> None:
    expect(Mapping, "a dict such as {'role': 'user', 'content': 'Hello'}", message, path)
    for key, value in message.items():
        if key not in _MESSAGE:
            raise TypeError(f"{path}: unknown key {key!r}: expected {', '.join(_MESSAGE)}")
        if value is None:
            continue
        if key == "tool_calls":
            expect(Sequence, "a list of calls", value, f"{path}.tool_calls")
            for number, call in enumerate(message["tool_calls"] or ()):
                _add_tool_call(target.tool_calls.add(), call, f"{path}.tool_calls[{number}]")
        elif key == "content" and isinstance(value, list | tuple):
            set_content(target, value, f"{path}.content")
        else:
            assign(target, key, value, option=f"{path}.{key}")
    if message.get("content") is None and not target.tool_calls:
        raise invalid(f"{path}.content", "missing: expected a text; only a message with tool_calls may have none")


def _add_tool_call(target: pb.ToolCall, call: MessageToolCall, path: str) -> None:
    expect(Mapping, "a dict such as {'id': 'c1', 'name': 'add', 'arguments': {'a': 1}}", call, path)
    function = call.get("function", call)
    expect(Mapping, "a dict such as {'name': 'add', 'arguments': {'a': 1}}", function, f"{path}.function")
    arguments = function.get("arguments", "{}")
    text = arguments if isinstance(arguments, str) else json_text(arguments, f"{path}.arguments")
    assign(target, "id", call.get("id", ""), option=f"{path}.id")
    assign(target, "name", function.get("name", ""), option=f"{path}.name")
    assign(target, "arguments_json", text, option=f"{path}.arguments")
