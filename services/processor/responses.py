"""Ring data as the client's protobuf."""

from __future__ import annotations

from collections.abc import Iterator

from ringline.inference.v1 import inference_pb2
from ringline.types.v1 import output_pb2

from services.ring.events import Cause, ChoiceEnd, Status
from services.ring.outbox import ChoiceNews, RequestNews
from services.runtime.wire import pack_logprobs, packed_to_proto, status_to_proto


def refusal(client_id: str, in_reply_to: int, status: Status) -> inference_pb2.GenerateResponse:
    """The one terminal of a request that never had choices."""
    terminal = inference_pb2.Terminal(cause=output_pb2.FINISH_CAUSE_ERROR, error=status_to_proto(status))
    return inference_pb2.GenerateResponse(request_id=client_id, in_reply_to=in_reply_to, terminal=terminal)


def end_without_choice(cause: Cause, status: Status | None) -> inference_pb2.Terminal:
    """The terminal of a request that ended before it was admitted."""
    terminal = inference_pb2.Terminal(cause=output_pb2.FinishCause.ValueType(cause))
    if status is not None:
        terminal.error.CopyFrom(status_to_proto(status))
    return terminal


def responses_of(news: RequestNews, name: str, ordinal: int) -> Iterator[inference_pb2.GenerateResponse]:
    """One request's news, in order; the last terminal carries the usage.

    ``name`` is the client's for the request, ``ordinal`` which frame of its stream asked for it.
    """
    if isinstance(news.opening, inference_pb2.Admitted):
        yield inference_pb2.GenerateResponse(request_id=name, admitted=news.opening)
    if news.prefill is not None:
        progress = inference_pb2.PrefillProgress(
            computed_tokens=news.prefill.computed_tokens, cached_tokens=news.prefill.cached_tokens
        )
        yield inference_pb2.GenerateResponse(request_id=name, prefill=progress)
    if news.prompt_logprobs is not None:
        yield inference_pb2.GenerateResponse(
            request_id=name,
            prompt_logprobs=packed_to_proto(news.prompt_logprobs),
            prompt_logprobs_offset=news.prompt_offset,
        )
    for notice in news.notices:
        if isinstance(notice, inference_pb2.Continued):
            yield inference_pb2.GenerateResponse(request_id=name, continued=notice)
    usage = news.closing if isinstance(news.closing, inference_pb2.Usage) else None
    last = next((choice for choice in reversed(news.choices) if news.choices[choice].end is not None), None)
    for choice, part in news.choices.items():
        if part.ids or any(part.texts):
            yield inference_pb2.GenerateResponse(request_id=name, delta=_delta(choice, part))
        if part.end is not None:
            terminal = _terminal(choice, part.end, usage if choice == last else None)
            yield inference_pb2.GenerateResponse(request_id=name, terminal=terminal)
    if isinstance(news.closing, inference_pb2.Terminal):
        yield inference_pb2.GenerateResponse(request_id=name, in_reply_to=ordinal, terminal=news.closing)


def _delta(choice: int, part: ChoiceNews) -> inference_pb2.Delta:
    return inference_pb2.Delta(
        choice=choice,
        first_position=part.first_position,
        text="".join(part.texts),
        token_ids=part.ids,
        logprobs=pack_logprobs(part.logprobs) if part.logprobs else None,
    )


def _terminal(choice: int, end: ChoiceEnd, usage: inference_pb2.Usage | None) -> inference_pb2.Terminal:
    terminal = inference_pb2.Terminal(
        choice=choice,
        cause=output_pb2.FinishCause.ValueType(end.cause),
        error=None if end.error is None else status_to_proto(end.error),
        usage=usage,
    )
    if end.stop_string is not None:
        terminal.stop_string = end.stop_string
    elif end.stop_token_id is not None:
        terminal.stop_token_id = end.stop_token_id
    return terminal
