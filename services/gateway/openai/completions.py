"""``/v1/completions``: texts or token ids that go on as they are, many at once, with the log probabilities of both."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, cast

import msgspec
from ringline import (
    Admitted,
    Choice,
    Delta,
    Finished,
    Generation,
    Options,
    PromptLogprobs,
    RingError,
    TokenLogprob,
    Usage,
)
from starlette.responses import Response

from services.gateway.answer import Answer, Ask
from services.gateway.fields import checked, refused, supported
from services.gateway.http.api_error import api_error_from, invalid
from services.gateway.http.call import Call, Endpoint, parse
from services.gateway.http.event_stream import EventStream
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
    sampling_options,
    stop_reason,
    usage_mode,
)

MAX_CHOICES = 1024
"""Prompts times n."""
MAX_OPTIONS_BYTES = 16 << 20
"""Of all prompts together: each goes to the ring with a copy of the options."""
_DEFAULT_MAX_TOKENS = 16


class CompletionRequest(SamplingFields):
    """The body of a request."""

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

    suffix: Annotated[Any, refused("write the prompt as the model's form of filling in demands", "")] = None
    prompt_embeds: Annotated[Any, refused("a prompt is a text or token ids", [])] = None


_DECODER = msgspec.json.Decoder(CompletionRequest)


async def completions(call: Call) -> Response:
    """Continue prompts."""
    request, prompts, asks = await call.aside(lambda: _read(call.body))
    call = call_of(call, request)
    try:
        answer = await Answer.begin(call, asks, whole=not request.stream)
    except RingError as error:
        raise api_error_from(error, _naming(request)) from None
    wants_logprobs = request.logprobs is not None
    names = await answer.needing(token_names(call, request, answer.admitted[0], logprobs=wants_logprobs))
    echoes = [
        await answer.needing(_echo(call, request, prompt, admitted))
        for prompt, admitted in zip(prompts, answer.admitted, strict=True)
    ]
    head = ResponseHead.new("cmpl-", call, answer.admitted[0].model)
    if request.stream:
        prompt_tokens = sum(one.prompt_tokens for one in answer.admitted)
        chunks = Chunks(head.members("text_completion"), usage_mode(request), prompt_tokens)
        return EventStream(_events(call, answer, _Texts(request, names, echoes, answer.admitted), chunks))
    try:
        async with aclosing(answer):
            generations = await answer.generations()
    except RingError as error:
        raise api_error_from(error, _naming(request)) from None
    texts = _Texts(request, names, echoes, answer.admitted)

    def body() -> bytes:
        choices = [
            texts.whole(number, generation, choice)
            for number, generation in enumerate(generations)
            for choice in generation.choices
        ]
        usage = usage_object(_usage(request, answer.usage))
        return encode(head.members("text_completion") | {"choices": choices, "usage": usage})

    return Response(await write_whole(call, names, generations, body), media_type="application/json")


def _read(body: bytes) -> tuple[CompletionRequest, Sequence[str | Sequence[int]], Sequence[Ask]]:
    """The request, its prompts, and what each asks of the ring."""
    request = checked(parse(_DECODER, body))
    prompts, options = _prompts(request), _options(request)
    if len(prompts) * (size := len(encode(options))) > MAX_OPTIONS_BYTES:
        problem = f"{len(prompts)} prompts, each with options of {size} bytes: expected at most {MAX_OPTIONS_BYTES}"
        raise invalid("prompt", f"{problem} together; send fewer at once")
    tells = bool(request.echo or request.return_token_ids or request.prompt_logprobs is not None)
    copies = max(1, request.n or 1) if tells else 1
    asks = [
        Ask(options, prompt=prompt, prompt_copies=copies)
        if isinstance(prompt, str)
        else Ask(options, token_ids=prompt, prompt_copies=copies)
        for prompt in prompts
    ]
    return request, prompts, asks


def _prompts(request: CompletionRequest) -> Sequence[str | Sequence[int]]:
    """The prompts, each a text or ids."""
    given = request.prompt
    if given is None or given == []:
        problem = "missing" if given is None else "empty"
        raise invalid("prompt", f"{problem}: expected a text, token ids, or a list of either")
    if isinstance(given, str):
        return [given]
    if (n := request.n or 1) * len(given) > MAX_CHOICES and type(given[0]) is not int:
        problem = f"{len(given)} prompts of {n} choices each: expected at most {MAX_CHOICES} choices"
        raise invalid("prompt", f"{problem}; send fewer at once")
    kinds = {type(one) for one in given}
    if len(kinds) > 1:
        raise invalid("prompt", "texts and ids are mixed: expected one kind")
    return [cast(list[int], given)] if kinds == {int} else cast(list[str | list[int]], given)


def _options(request: CompletionRequest) -> Options:
    """The ring's options for a request."""
    options = sampling_options(request)
    tokens = _DEFAULT_MAX_TOKENS if request.max_tokens is None else request.max_tokens
    options["max_tokens"] = 1 if _drops_token(request) else tokens
    options["logprobs"] = request.logprobs
    if request.echo:
        options["return_prompt_token_ids"] = True
        if request.logprobs is not None:
            if request.prompt_logprobs is not None:
                raise invalid("prompt_logprobs", "set together with echo and logprobs, which report them: leave it out")
            options["prompt_logprobs"] = request.logprobs
    return cast(Options, options)


def _naming(request: CompletionRequest) -> Callable[[str], str]:
    """What the request calls a field of the ring."""
    return openai_naming(form_names(request) | {"text": "prompt", "token_ids": "prompt"}, CompletionRequest)


def _drops_token(request: CompletionRequest) -> bool:
    """Whether the prompt alone is asked for: the ring computes it with one token, which nobody sees."""
    return request.max_tokens == 0 and bool(request.echo)


def _usage(request: CompletionRequest, usage: Usage) -> Usage:
    return Usage(usage.prompt_tokens, usage.cached_tokens, 0) if _drops_token(request) else usage


async def _echo(call: Call, request: CompletionRequest, prompt: str | Sequence[int], admitted: Admitted) -> str:
    """The prompt's text, which an answer begins with; empty if it does not."""
    if not request.echo:
        return ""
    if isinstance(prompt, str) and request.truncate_prompt_tokens is None:
        return prompt
    return await call.client.detokenize(
        admitted.prompt_token_ids or (), model=admitted.model, skip_special_tokens=request.skip_special_tokens
    )


@dataclass(slots=True)
class _Texts:
    """Writes choices, in the order of prompts and then of n: whole, or delta by delta."""

    request: CompletionRequest
    names: TokenNames | None
    echoes: Sequence[str]
    admitted: Sequence[Admitted]
    _logprobs: dict[int, CompletionLogprobs] = field(default_factory=dict)
    """Of choices that have begun."""
    _prompt_logprobs: dict[int, list[TokenLogprob]] = field(default_factory=dict)
    """Of a stream's prompts, as far as they came."""
    _begun: set[int] = field(default_factory=set)

    def index(self, ask: int, choice: int) -> int:
        """Of a choice of an ask among all choices."""
        return ask * (self.request.n or 1) + choice

    def whole(self, ask: int, generation: Generation, choice: Choice) -> dict[str, Any]:
        """A choice of an answer that has ended."""
        kept = 0 if _drops_token(self.request) else len(choice.token_ids)
        token_ids, logprobs = choice.token_ids[:kept], (choice.logprobs or ())[:kept]
        index = self.index(ask, choice.index)
        body: dict[str, Any] = {
            "index": index,
            "text": self.echoes[ask] + (choice.text if kept else ""),
            "logprobs": None,
            "finish_reason": choice.finish_reason,
            "stop_reason": stop_reason(choice.stop, self.request),
        }
        if self.request.logprobs is not None:
            of_prompt = generation.prompt_logprobs or ()
            body["logprobs"] = self._lists(index, ask, token_ids, logprobs, of_prompt, body["text"])
        if (
            self.request.prompt_logprobs is not None
            and self.names is not None
            and generation.prompt_logprobs is not None
        ):
            body["prompt_logprobs"] = prompt_logprobs(self.names, generation.request, generation.prompt_logprobs)
        if self.request.return_token_ids:
            body |= {"token_ids": token_ids, "prompt_token_ids": generation.request.prompt_token_ids}
        return body

    def note_prompt(self, ask: int, event: PromptLogprobs) -> None:
        """Keep the prompt's log probabilities until its choices begin."""
        self._prompt_logprobs.setdefault(ask, []).extend(event.logprobs)

    async def chunk(self, call: Call, chunks: Chunks, ask: int, event: Delta) -> bytes:
        """The chunk of a delta; the first of a choice begins with the prompt, if the request says so."""
        index, text, token_ids, logprobs = self.index(ask, event.choice), event.text, event.token_ids, event.logprobs
        if _drops_token(self.request):
            text, token_ids, logprobs = "", (), logprobs and ()
        chunks.completion_tokens += len(token_ids)
        more = b""
        if index not in self._begun:
            self._begun.add(index)
            text = self.echoes[ask] + text
            if self.request.return_token_ids:
                more = b',"prompt_token_ids":' + encode(self.admitted[ask].prompt_token_ids)
        if self.request.return_token_ids:
            more += b',"token_ids":' + encode(token_ids)
        lists = NULL
        if logprobs is not None:
            assert self.names is not None
            echoed = self.request.echo and index not in self._logprobs
            prompt = self._prompt_logprobs.get(ask, ()) if echoed else ()
            prompt_ids = (self.admitted[ask].prompt_token_ids or ()) if echoed else ()
            entries = (len(prompt) + len(logprobs)) * (1 + (self.request.logprobs or 0))
            ids = await call.aside(lambda: {*ids_in(prompt_ids, prompt), *ids_in(token_ids, logprobs)}, entries)
            await self.names.texts.load(ids)
            write = partial(self._lists, index, ask, token_ids, logprobs, prompt, text)
            lists = await call.aside(lambda: encode(write()), entries)
        return chunks.chunk(index, b'"text":' + encode(text), lists, more=more)

    def _lists(
        self,
        index: int,
        ask: int,
        token_ids: Sequence[int],
        logprobs: Sequence[TokenLogprob],
        prompt_logprobs: Sequence[TokenLogprob],
        text: str,
    ) -> dict[str, Any]:
        """The log probabilities of a choice's next tokens, which complete ``text``; their texts are loaded.

        The first begin with the prompt's, if they are echoed.
        """
        assert self.names is not None
        lists = self._logprobs.get(index)
        entries: Sequence[TokenLogprob | None] = logprobs
        if lists is None:
            lists = self._logprobs[index] = CompletionLogprobs(self.names)
            if self.request.echo:
                prompt = self.admitted[ask].prompt_token_ids or ()
                token_ids, entries = (*prompt, *token_ids), (None, *prompt_logprobs, *logprobs)
        return lists.add(token_ids, entries, text)


async def _events(call: Call, answer: Answer, texts: _Texts, chunks: Chunks) -> AsyncGenerator[bytes, None]:
    """The events of a stream."""
    try:
        async for ask, event in answer.events():
            if type(event) is Delta:
                yield await texts.chunk(call, chunks, ask, event)
            elif type(event) is PromptLogprobs:
                texts.note_prompt(ask, event)
            elif type(event) is Finished and event.error is None:
                stop = b',"stop_reason":%b' % encode(stop_reason(event.stop, texts.request))
                yield chunks.chunk(texts.index(ask, event.choice), b'"text":""', NULL, encode(event.reason), stop)
        yield chunks.end(_usage(texts.request, answer.usage))
    except RingError as error:
        yield error_event(api_error_from(error, _naming(texts.request)), call.request_id)
    finally:
        await answer.close()


COMPLETIONS = openai_dialect({}, CompletionRequest)

ENDPOINTS = (Endpoint("POST", "/v1/completions", completions, COMPLETIONS),)
