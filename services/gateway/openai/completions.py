"""``/v1/completions``: continues texts or token ids, many at once, with log probabilities of prompts and answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, cast

from ringline import (
    Admitted,
    Choice,
    Delta,
    Event,
    Finished,
    Generation,
    Options,
    PromptLogprobs,
    TokenLogprob,
    Usage,
)

from services.gateway.answer import Answer, Ask
from services.gateway.fields import ignored, refused, same, supported
from services.gateway.generation import GenerationEndpoint, Writer
from services.gateway.http.api_error import ApiError, invalid
from services.gateway.http.call import Call, Endpoint
from services.gateway.model_names import names_of_lookup
from services.gateway.openai.best_choices import best, best_naming, best_options, generated, score_members
from services.gateway.openai.chunks import NULL, Chunks, ResponseHead, encode, error_event, usage_object
from services.gateway.openai.errors import openai_dialect, openai_naming
from services.gateway.openai.logprobs import (
    CompletionLogprobs,
    TokenNames,
    ids_in,
    prompt_logprobs,
    token_names,
    write_whole,
)
from services.gateway.openai.sampling_fields import (
    SamplingFields,
    call_of,
    form_names,
    last_members,
    sampling_options,
    stop_reason,
    usage_mode,
)

MAX_CHOICES = 1024
"""Prompts times n."""
MAX_OPTIONS_BYTES = 16 << 20
"""Over all prompts: each goes to the ring with a copy of the options."""
_DEFAULT_MAX_TOKENS = 16
_NO_TEMPLATE = "A prompt goes on as it is: it has no template, and its answer no parts."


class CompletionRequest(SamplingFields):
    """The request's body."""

    prompt: Annotated[
        str | list[str | int | list[int]] | None,
        supported(f"A text, token ids, or a list of either; prompts times `n` are at most {MAX_CHOICES}."),
    ] = None
    max_tokens: Annotated[int | None, supported(f"Default: {_DEFAULT_MAX_TOKENS}. With `echo` 0, too.")] = None
    echo: Annotated[
        bool | None, supported("The text, and `logprobs`, begin with those of the prompt; its first token has none.")
    ] = None
    logprobs: Annotated[
        int | None,
        supported("0 to 20: alternatives for each token. Of the raw logits, before penalties and temperature."),
    ] = None

    max_completion_tokens: Annotated[int | None, same("max_tokens", note="`max_tokens`, as in chats.")] = None
    n_probs: Annotated[int | None, same("logprobs", note="llama.cpp's `logprobs`; 0 is none.", neutral=(0,))] = None

    chat_template_kwargs: Annotated[Any, ignored(_NO_TEMPLATE)] = None
    reasoning_effort: Annotated[Any, ignored(_NO_TEMPLATE)] = None
    enable_thinking: Annotated[Any, ignored(_NO_TEMPLATE)] = None
    thinking: Annotated[Any, ignored(_NO_TEMPLATE)] = None
    think: Annotated[Any, ignored(_NO_TEMPLATE)] = None
    include_reasoning: Annotated[Any, ignored(_NO_TEMPLATE)] = None
    reasoning_format: Annotated[Any, ignored(_NO_TEMPLATE)] = None
    separate_reasoning: Annotated[Any, ignored(_NO_TEMPLATE)] = None
    parse_tool_calls: Annotated[Any, ignored(_NO_TEMPLATE)] = None

    suffix: Annotated[Any, refused("use the model's fill-in-the-middle format", "")] = None
    prompt_embeds: Annotated[Any, refused("a prompt is a text or token ids", [])] = None


def _asks(request: CompletionRequest) -> Sequence[Ask]:
    """One per prompt."""
    prompts, options = _prompts(request), _options(request)
    if len(prompts) * (size := len(encode(options))) > MAX_OPTIONS_BYTES:
        problem = f"{len(prompts)} prompts, each with options of {size} bytes: expected at most {MAX_OPTIONS_BYTES}"
        raise invalid("prompt", f"{problem} together; send fewer at once")
    tells = bool(request.echo or request.return_token_ids or request.prompt_logprobs is not None)
    copies = max(1, request.n or 1) if tells else 1
    return [
        Ask(options, prompt=prompt, prompt_copies=copies)
        if isinstance(prompt, str)
        else Ask(options, token_ids=prompt, prompt_copies=copies)
        for prompt in prompts
    ]


def _prompts(request: CompletionRequest) -> Sequence[str | Sequence[int]]:
    """The prompts, each a text or ids."""
    given = request.prompt
    if given is None or given == []:
        problem = "missing" if given is None else "empty"
        raise invalid("prompt", f"{problem}: expected a text, token ids, or a list of either")
    if isinstance(given, str):
        return [given]
    if (n := generated(request)) * len(given) > MAX_CHOICES and type(given[0]) is not int:
        problem = f"{len(given)} prompts of {n} choices each: expected at most {MAX_CHOICES} choices"
        raise invalid("prompt", f"{problem}; send fewer at once")
    kinds = {type(one) for one in given}
    if len(kinds) > 1:
        raise invalid("prompt", "texts and ids are mixed: expected one kind")
    return [cast(list[int], given)] if kinds == {int} else cast(list[str | list[int]], given)


def _options(request: CompletionRequest) -> Options:
    """The ring's options for a request."""
    options = sampling_options(request)
    limits = (request.max_tokens, request.n_predict, request.num_predict, request.max_new_tokens)
    tokens = request.max_tokens if any(limit is not None for limit in limits) else _DEFAULT_MAX_TOKENS
    options["max_tokens"] = 1 if _drops_token(request) else tokens
    options["logprobs"] = request.logprobs
    if request.echo:
        options["return_prompt_token_ids"] = True
        if request.logprobs is not None:
            if request.prompt_logprobs is not None:
                raise invalid("prompt_logprobs", "set together with echo and logprobs, which report them: leave it out")
            options["prompt_logprobs"] = request.logprobs
    best_options(request, options, stream=bool(request.stream))
    return cast(Options, options)


def _naming(request: CompletionRequest) -> Callable[[str], str]:
    """Map the ring's field names to the request's."""
    name_of = openai_naming(form_names(request) | {"text": "prompt", "token_ids": "prompt"}, CompletionRequest)
    return best_naming(request, name_of, logprobs=request.logprobs is not None)


def _drops_token(request: CompletionRequest) -> bool:
    """Whether only the prompt is wanted: the ring generates one token, which is dropped."""
    return request.max_tokens == 0 and bool(request.echo)


def _usage(request: CompletionRequest, usage: Usage) -> Usage:
    return Usage(usage.prompt_tokens, usage.cached_tokens, 0) if _drops_token(request) else usage


async def _echo(call: Call, request: CompletionRequest, ask: Ask, admitted: Admitted) -> str:
    """The prompt's text that begins an answer; empty without ``echo``."""
    if not request.echo:
        return ""
    if ask.prompt is not None and request.truncate_prompt_tokens is None:
        return ask.prompt
    *_, name = names_of_lookup(admitted)
    return await call.client.detokenize(
        admitted.prompt_token_ids or (), model=name, skip_special_tokens=request.skip_special_tokens
    )


class CompletionWriter(Writer):
    """Writes choices, in the order of prompts and then of n."""

    def __init__(
        self,
        call: Call,
        request: CompletionRequest,
        names: TokenNames | None,
        echoes: Sequence[str],
        admitted: Sequence[Admitted],
        model: str,
    ) -> None:
        """``names`` of tokens, if the answer has log probabilities; ``echoes``: by ask, its choices' first text."""
        self.request = request
        self._call = call
        self._names = names
        self._echoes = echoes
        self._admitted = admitted
        self._head = ResponseHead.new("cmpl-", call, model).members("text_completion")
        self._chunks = Chunks(self._head, usage_mode(request), sum(one.prompt_tokens for one in admitted))
        self._logprobs: dict[int, CompletionLogprobs] = {}
        """Of begun choices."""
        self._prompt_logprobs: dict[int, list[TokenLogprob]] = {}
        """Of a stream's prompts, so far."""
        self._begun: set[int] = set()

    @classmethod
    async def begin_answer(
        cls, call: Call, request: CompletionRequest, asks: Sequence[Ask], answer: Answer
    ) -> CompletionWriter:
        wants_logprobs = request.logprobs is not None
        names = await token_names(call, request, answer.admitted[0], logprobs=wants_logprobs)
        echoes = [
            await _echo(call, request, ask, admitted) for ask, admitted in zip(asks, answer.admitted, strict=True)
        ]
        return cls(call, request, names, echoes, answer.admitted, answer.model)

    async def whole(self, answer: Answer) -> bytes:
        generations = await answer.generations()
        usage = usage_object(_usage(self.request, answer.usage))
        return await write_whole(self._call, self._names, generations, lambda: self._body(generations, usage))

    def _body(self, generations: Sequence[Generation], usage: Mapping[str, object]) -> bytes:
        choices = [
            self._whole(number, generation, choice)
            for number, generation in enumerate(generations)
            for choice in best(self.request, generation, logprobs=self.request.logprobs is not None).choices
        ]
        return encode(self._head | {"choices": choices, "usage": usage})

    async def add(self, ask: int, event: Event) -> bytes:
        if type(event) is Delta:
            return await self._chunk(ask, event)
        if type(event) is PromptLogprobs:  # kept until the prompt's choices begin
            self._prompt_logprobs.setdefault(ask, []).extend(event.logprobs)
        elif type(event) is Finished and event.error is None:
            last = last_members(event, self.request)
            return self._chunks.chunk(self._index(ask, event.choice), b'"text":""', NULL, encode(event.reason), last)
        return b""

    def end(self, usage: Usage) -> bytes:
        return self._chunks.end(_usage(self.request, usage))

    def fail(self, error: ApiError) -> bytes:
        return error_event(error, self._call.request_id)

    def _index(self, ask: int, choice: int) -> int:
        """A choice's index among all asks' choices."""
        return ask * (self.request.n or 1) + choice

    def _whole(self, ask: int, generation: Generation, choice: Choice) -> dict[str, Any]:
        """A finished choice."""
        kept = 0 if _drops_token(self.request) else len(choice.token_ids)
        token_ids, logprobs = choice.token_ids[:kept], (choice.logprobs or ())[:kept]
        index = self._index(ask, choice.index)
        body: dict[str, Any] = {
            "index": index,
            "text": self._echoes[ask] + (choice.text if kept else ""),
            "logprobs": None,
            "finish_reason": choice.finish_reason,
            "stop_reason": stop_reason(choice.stop, self.request),
        } | score_members(choice.beam_score)
        if self.request.logprobs is not None:
            of_prompt = generation.prompt_logprobs or ()
            body["logprobs"] = self._lists(index, ask, token_ids, logprobs, of_prompt, body["text"])
        if (
            self.request.prompt_logprobs is not None
            and self._names is not None
            and generation.prompt_logprobs is not None
        ):
            body["prompt_logprobs"] = prompt_logprobs(self._names, generation.request, generation.prompt_logprobs)
        if self.request.return_token_ids:
            body |= {"token_ids": token_ids, "prompt_token_ids": generation.request.prompt_token_ids}
        return body

    async def _chunk(self, ask: int, event: Delta) -> bytes:
        """A delta's chunk; a choice's first begins with the prompt if echoed."""
        index, text, token_ids, logprobs = self._index(ask, event.choice), event.text, event.token_ids, event.logprobs
        if _drops_token(self.request):
            text, token_ids, logprobs = "", (), logprobs and ()
        self._chunks.completion_tokens += len(token_ids)
        more = b""
        if index not in self._begun:
            self._begun.add(index)
            text = self._echoes[ask] + text
            if self.request.return_token_ids:
                more = b',"prompt_token_ids":' + encode(self._admitted[ask].prompt_token_ids)
        if self.request.return_token_ids:
            more += b',"token_ids":' + encode(token_ids)
        lists = NULL
        if logprobs is not None:
            assert self._names is not None
            echoed = self.request.echo and index not in self._logprobs
            prompt = self._prompt_logprobs.get(ask, ()) if echoed else ()
            prompt_ids = (self._admitted[ask].prompt_token_ids or ()) if echoed else ()
            entries = (len(prompt) + len(logprobs)) * (1 + (self.request.logprobs or 0))
            ids = await self._call.aside(lambda: {*ids_in(prompt_ids, prompt), *ids_in(token_ids, logprobs)}, entries)
            await self._names.texts.load(ids)
            write = partial(self._lists, index, ask, token_ids, logprobs, prompt, text)
            lists = await self._call.aside(lambda: encode(write()), entries)
        return self._chunks.chunk(index, b'"text":' + encode(text), lists, more=more)

    def _lists(
        self,
        index: int,
        ask: int,
        token_ids: Sequence[int],
        logprobs: Sequence[TokenLogprob],
        prompt_logprobs: Sequence[TokenLogprob],
        text: str,
    ) -> dict[str, Any]:
        """The log probabilities of a choice's next tokens, which complete ``text``. Load their texts before.

        A choice's first begin with the prompt's if echoed.
        """
        assert self._names is not None
        lists = self._logprobs.get(index)
        entries: Sequence[TokenLogprob | None] = logprobs
        if lists is None:
            lists = self._logprobs[index] = CompletionLogprobs(self._names)
            if self.request.echo:
                prompt = self._admitted[ask].prompt_token_ids or ()
                token_ids, entries = (*prompt, *token_ids), (None, *prompt_logprobs, *logprobs)
        return lists.add(token_ids, entries, text)


COMPLETIONS = GenerationEndpoint(CompletionRequest, _asks, CompletionWriter.begin_answer, _naming, call_of)

ENDPOINTS = (Endpoint("POST", "/v1/completions", COMPLETIONS.answer, openai_dialect({}, CompletionRequest)),)
