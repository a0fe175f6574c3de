"""``/v1/chat/completions``."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Annotated, Any, cast

from ringline import (
    Admitted,
    Choice,
    Content,
    Delta,
    Event,
    Finished,
    FinishReason,
    Generation,
    Options,
    Part,
    Reasoning,
    ToolCallPiece,
    Usage,
)
from ringline.parts import Joints

from services.gateway.answer import Answer, Ask
from services.gateway.fields import PARSERS, ignored, passed, refused, supported
from services.gateway.generation import GenerationEndpoint, Writer
from services.gateway.http.api_error import ApiError, invalid
from services.gateway.http.call import Call, Endpoint
from services.gateway.openai.best_choices import best, best_naming, best_options, score_members
from services.gateway.openai.chunks import NULL, Chunks, ResponseHead, encode, error_event, usage_object
from services.gateway.openai.errors import openai_dialect, openai_naming
from services.gateway.openai.logprobs import (
    TokenNames,
    chat_logprobs,
    loaded_chat_logprobs,
    prompt_logprobs,
    token_names,
    write_whole,
)
from services.gateway.openai.messages import ChatMessage, Tool, ring_messages, tool_options
from services.gateway.openai.sampling_fields import (
    SamplingFields,
    call_of,
    form_names,
    last_members,
    sampling_options,
    stop_reason,
    usage_mode,
)
from services.gateway.other_servers import (
    EnableThinking,
    Think,
    ThinkingSwitch,
    budget_names,
    limit_reasoning,
    thinking_arguments,
)
from services.gateway.parsers import ReasoningParser, ToolCallParser, chosen_formats
from services.gateway.parts import StreamedCalls, calls_to_be_made


class ChatRequest(SamplingFields):
    """The request's body."""

    messages: Annotated[
        list[ChatMessage] | None,
        supported(
            "Parts of type `text` are joined as they are; `image_url` is a picture; audio and files are refused. "
            "`developer` is `system`; `reasoning_content` (or `reasoning`) of an assistant goes to the template."
        ),
    ] = None
    max_completion_tokens: Annotated[int | None, passed("Default: the room that is left.", option="max_tokens")] = None
    max_tokens: Annotated[int | None, supported("`max_completion_tokens` counts before it.")] = None
    logprobs: Annotated[bool | None, supported("Of the raw logits, before penalties and temperature.")] = None
    top_logprobs: Annotated[int | None, supported("0 to 20; with `logprobs`.")] = None
    tools: Annotated[list[Tool] | None, supported("Of type `function`; `strict` holds arguments to the schema.")] = None
    tool_choice: Annotated[
        str | dict[str, Any] | None, supported("`auto`, `none`, `required` or a function; `allowed_tools` is refused.")
    ] = None
    parallel_tool_calls: Annotated[bool | None, supported("false: at most one call.")] = None
    tool_call_parser: ToolCallParser = None
    reasoning_parser: ReasoningParser = None
    reasoning_effort: Annotated[
        str | None, supported("Goes to the model's template; `none` also as `enable_thinking: false`.")
    ] = None
    reasoning: Annotated[
        dict[str, Any] | None, supported("`effort` is `reasoning_effort`; `enabled: false` is the effort `none`.")
    ] = None
    verbosity: Annotated[str | None, supported("Goes to the model's template.")] = None
    include_reasoning: Annotated[bool | None, supported("false leaves `reasoning_content` out.")] = None
    chat_template_kwargs: Annotated[dict[str, Any] | None, supported("Variables for the model's template.")] = None
    enable_thinking: EnableThinking = None
    thinking: ThinkingSwitch = None
    think: Think = None
    documents: Annotated[list[Any] | None, supported("A variable for the model's template.")] = None
    add_generation_prompt: Annotated[bool | None, passed()] = None
    continue_final_message: Annotated[bool | None, passed()] = None

    metadata: Annotated[Any, ignored("Nothing is stored.")] = None
    store: Annotated[Any, ignored("Nothing is stored.")] = None
    service_tier: Annotated[Any, ignored("There is one; see `priority`.")] = None
    safety_identifier: Annotated[Any, ignored("Identity is the bearer token's.")] = None
    prompt_cache_key: Annotated[Any, ignored("Prefixes are cached without it.")] = None
    prompt_cache_options: Annotated[Any, ignored("Prefixes are cached without it.")] = None
    prompt_cache_retention: Annotated[Any, ignored("Prefixes are cached without it.")] = None
    prediction: Annotated[Any, ignored("It would change the speed alone.")] = None

    audio: Annotated[Any, refused("text is the only modality")] = None
    modalities: Annotated[Any, refused("text is the only modality", ["text"], [])] = None
    functions: Annotated[Any, refused("they are called tools", [])] = None
    function_call: Annotated[Any, refused("it is called tool_choice", "auto", "none")] = None
    web_search_options: Annotated[Any, refused("give a tool that searches")] = None
    moderation: Annotated[Any, refused("nothing is moderated")] = None
    echo: Annotated[Any, refused("the answer is the new message alone; see continue_final_message", False)] = None
    chat_template: Annotated[Any, refused("the model's own is used; chat_template_kwargs has its variables")] = None
    n_probs: Annotated[Any, refused("logprobs and top_logprobs give log probabilities", 0)] = None
    parse_tool_calls: Annotated[Any, refused("calls are tool_calls; see tool_choice none", True)] = None
    return_prompt_text: Annotated[Any, refused("/tokenize with return_token_strs shows the prompt", False)] = None


def _asks(request: ChatRequest) -> Sequence[Ask]:
    return [Ask(_options(request), messages=ring_messages(request.messages))]


def _options(request: ChatRequest) -> Options:
    """The ring's options for a request."""
    options: dict[str, Any] = tool_options(request.tools, request.tool_choice, request.parallel_tool_calls)
    options |= _parse_options(request, options["parse"])
    options |= sampling_options(request)
    if request.max_completion_tokens is None:
        options["max_tokens"] = request.max_tokens
    if request.logprobs:
        options["logprobs"] = request.top_logprobs or 0
    elif request.top_logprobs:
        raise invalid("top_logprobs", "needs logprobs: give logprobs: true, too")
    template_args, effort = dict(request.chat_template_kwargs or {}), _effort(request)
    if effort is not None:
        template_args.setdefault("reasoning_effort", effort)
    template_args = thinking_arguments(request.enable_thinking, request.thinking, request.think) | template_args
    if effort is not None:
        template_args.setdefault("enable_thinking", effort != "none")
    if request.verbosity is not None:
        template_args.setdefault("verbosity", request.verbosity)
    limit_reasoning(options, request.thinking)
    best_options(request, options, stream=bool(request.stream))
    if request.documents is not None:
        template_args.setdefault("documents", request.documents)
    if template_args:
        options["template_args"] = template_args
    return cast(Options, options)


def _effort(request: ChatRequest) -> str | None:
    """How much the model is to reason, by either of the fields for it."""
    given = request.reasoning or {}
    if unknown := sorted(given.keys() - {"effort", "enabled", "exclude"}):
        raise invalid(f"reasoning.{unknown[0]}", "not supported: effort and enabled are")
    if given.get("exclude"):
        raise invalid("reasoning.exclude", "not supported: give include_reasoning: false")
    effort = "none" if given.get("enabled") is False else given.get("effort")
    if effort is not None and not isinstance(effort, str):
        raise invalid("reasoning.effort", "not a text: expected none, low, medium, high or another of the model's")
    return request.reasoning_effort or effort


def _parse_options(request: ChatRequest, given: bool | dict[str, Any]) -> dict[str, Any]:
    """The formats that a request chooses, beside those ``given``; none of calls where none may be made."""
    parse: dict[str, Any] = dict(chosen_formats(request.tool_call_parser, request.reasoning_parser))
    if not isinstance(given, bool):
        parse |= given
    return {"parse": parse or given}


def _naming(request: ChatRequest) -> Callable[[str], str]:
    """Map the ring's field names to the request's."""
    given = form_names(request) | budget_names(request.thinking)
    names = given | {"logprobs": "top_logprobs", "template_args": "chat_template_kwargs"}
    names |= {"chat": "messages", "prompt": "messages"}
    if request.max_completion_tokens is None:
        names["max_tokens"] = given.get("max_tokens", "max_tokens")
    name_of = best_naming(request, openai_naming(names, ChatRequest), logprobs=bool(request.logprobs))
    return lambda field: PARSERS.get(field) or name_of(field)


def finish_reason(reason: FinishReason | None, *, called: bool) -> str:
    """OpenAI's reason for a choice's end."""
    return "tool_calls" if called and reason is FinishReason.STOP else str(reason)


def _choice(choice: Choice, request: ChatRequest, names: TokenNames | None) -> dict[str, Any]:
    calls = calls_to_be_made(choice.tool_calls, choice.finish_reason)
    message: dict[str, Any] = {
        "role": "assistant",
        "content": choice.content if choice.content or not calls else None,
        "refusal": None,
    }
    if choice.reasoning is not None and request.include_reasoning is not False:
        message["reasoning_content"] = choice.reasoning
    if calls:
        message["tool_calls"] = [
            {"id": one.id, "type": "function", "function": {"name": one.name, "arguments": one.arguments}}
            for one in calls
        ]
    logprobs = None
    if names is not None and choice.logprobs is not None:
        logprobs = {"content": chat_logprobs(names, choice.token_ids, choice.logprobs), "refusal": None}
    body = {
        "index": choice.index,
        "message": message,
        "logprobs": logprobs,
        "finish_reason": finish_reason(choice.finish_reason, called=bool(calls)),
        "stop_reason": stop_reason(choice.stop, request),
    } | score_members(choice.beam_score)
    return body | {"token_ids": choice.token_ids} if request.return_token_ids else body


class ChatWriter(Writer):
    """Writes a chat's answer."""

    def __init__(
        self, call: Call, request: ChatRequest, admitted: Admitted, names: TokenNames | None, model: str
    ) -> None:
        """``names`` of tokens, if the answer has log probabilities."""
        self.request = request
        self._call = call
        self._admitted = admitted
        self._names = names
        self._head = ResponseHead.new("chatcmpl-", call, model)
        self._chunks = Chunks(self._head.members("chat.completion.chunk"), usage_mode(request), admitted.prompt_tokens)
        if request.stream and request.return_token_ids:
            self._chunks.once = b',"prompt_token_ids":' + encode(admitted.prompt_token_ids)
        self._reasons = request.include_reasoning is not False
        self._wants_ids = bool(request.return_token_ids)
        self._begun: set[int] = set()
        self._calls: dict[int, StreamedCalls] = defaultdict(StreamedCalls)
        self._joints: dict[int, Joints] = defaultdict(Joints)

    @classmethod
    async def begin_answer(cls, call: Call, request: ChatRequest, _asks: Sequence[Ask], answer: Answer) -> ChatWriter:
        admitted = answer.admitted[0]
        names = await token_names(call, request, admitted, logprobs=bool(request.logprobs))
        return cls(call, request, admitted, names, answer.model)

    async def whole(self, answer: Answer) -> bytes:
        (generation,) = await answer.generations()
        return await write_whole(self._call, self._names, [generation], lambda: self._body(generation))

    def _body(self, generation: Generation) -> bytes:
        generation = best(self.request, generation, logprobs=bool(self.request.logprobs))
        members = self._head.members("chat.completion") | {
            "choices": [_choice(choice, self.request, self._names) for choice in generation.choices],
            "usage": usage_object(generation.usage),
        }
        if self._wants_ids:
            members["prompt_token_ids"] = self._admitted.prompt_token_ids
        if self._names is not None and generation.prompt_logprobs is not None:
            members["prompt_logprobs"] = prompt_logprobs(self._names, self._admitted, generation.prompt_logprobs)
        return encode(members)

    async def add(self, ask: int, event: Event) -> bytes:
        if type(event) is Delta:
            logprobs = NULL
            if self._names is not None and event.logprobs is not None:
                entries = await loaded_chat_logprobs(self._names, event)
                logprobs = b'{"content":%b,"refusal":null}' % encode(entries)
            return self._delta(event, logprobs)
        return self._finished(event) if type(event) is Finished and event.error is None else b""

    def end(self, usage: Usage) -> bytes:
        return self._chunks.end(usage)

    def fail(self, error: ApiError) -> bytes:
        return error_event(error, self._call.request_id)

    def _delta(self, event: Delta, logprobs: bytes) -> bytes:
        """A delta's chunks; a choice's first has the role. Empty if there is nothing to send."""
        index, chunks = event.choice, self._chunks
        chunks.completion_tokens += len(event.token_ids)
        parts = self._joints[index].joined(event.parts)
        members = [_member(part) for part in parts if self._reasons or type(part) is not Reasoning]
        more = b',"token_ids":' + encode(event.token_ids) if self._wants_ids else b""
        if index not in self._begun:
            self._begun.add(index)
            members[:1] = [_ROLE + b"," + (members[0] if members else b'"content":""')]
        elif not members:
            if not more and logprobs is NULL:
                return b""
            members = [b'"content":""']
        for part in event.parts:
            if type(part) is ToolCallPiece:
                self._calls[index].add(part)
        data = chunks.chunk(index, b'"delta":{%b}' % members[0], logprobs, more=more)
        for member in members[1:]:
            data += chunks.chunk(index, b'"delta":{%b}' % member)
        return data

    def _finished(self, event: Finished) -> bytes:
        """A choice's last chunk."""
        delta = b'"delta":{}' if event.choice in self._begun else b'"delta":{%b,"content":""}' % _ROLE
        called = event.choice in self._calls and self._calls[event.choice].any_to_be_made(event.reason)
        reason = encode(finish_reason(event.reason, called=called))
        stop = last_members(event, self.request)
        return self._chunks.chunk(event.choice, delta, NULL, reason, stop)


_ROLE = b'"role":"assistant"'


def _member(part: Part) -> bytes:
    """A part as a member of a delta."""
    if type(part) is Content:
        return b'"content":' + encode(part.text)
    if type(part) is Reasoning:
        return b'"reasoning_content":' + encode(part.text)
    assert isinstance(part, ToolCallPiece)
    function = {"arguments": part.arguments}
    call: dict[str, object] = {"index": part.index, "function": function}
    if part.name:
        call = {"index": part.index, "id": part.id, "type": "function", "function": {"name": part.name, **function}}
    return b'"tool_calls":[%b]' % encode(call)


CHAT = GenerationEndpoint(ChatRequest, _asks, ChatWriter.begin_answer, _naming, call_of)

ENDPOINTS = (Endpoint("POST", "/v1/chat/completions", CHAT.answer, openai_dialect({}, ChatRequest)),)
