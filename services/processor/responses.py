"""Ring data as the client's protobuf."""

from __future__ import annotations

from ringline.inference.v1 import inference_pb2
from ringline.types.v1 import output_pb2

from services.ring.events import Cause, ChoiceEnd, Status
from services.ring.outbox import ChoiceNews, RequestNews
from services.runtime.wire import status_to_proto, write_logprobs


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


def write_news(frame: inference_pb2.SessionResponse, news: RequestNews, name: str, ordinal: int) -> None:
    """Add one request's news to ``frame``, in order; the last terminal carries the usage.

    ``name`` is the client's for the request, ``ordinal`` which frame of its stream asked for it. What comes with every
    token is made in its place: protobuf copies a message that is put into another.
    """
    add = frame.responses.add
    if isinstance(news.opening, inference_pb2.Admitted):
        add(request_id=name, admitted=news.opening)
    if news.prefill is not None:
        progress = inference_pb2.PrefillProgress(
            computed_tokens=news.prefill.computed_tokens, cached_tokens=news.prefill.cached_tokens
        )
        add(request_id=name, prefill=progress)
    if news.prompt_logprobs is not None:
        response = add(request_id=name, prompt_logprobs_offset=news.prompt_offset)
        write_logprobs(response.prompt_logprobs, news.prompt_logprobs)
    for notice in news.notices:
        if isinstance(notice, inference_pb2.Continued):
            add(request_id=name, continued=notice)
    last = None
    for choice, part in news.choices.items():
        if part.ids or any(part.texts):
            _write_delta(add(request_id=name).delta, choice, part)
        if part.end is not None:
            last = add(request_id=name, terminal=_terminal(choice, part.end)).terminal
    if isinstance(news.closing, inference_pb2.Usage) and last is not None:
        last.usage.CopyFrom(news.closing)
    if isinstance(news.closing, inference_pb2.Terminal):
        add(request_id=name, in_reply_to=ordinal, terminal=news.closing)


def _write_delta(delta: inference_pb2.Delta, choice: int, part: ChoiceNews) -> None:
    delta.choice = choice
    delta.first_position = part.first_position
    delta.text = "".join(part.texts)
    delta.token_ids.extend(part.ids)
    if part.logprobs:
        write_logprobs(delta.logprobs, part.logprobs)


def _terminal(choice: int, end: ChoiceEnd) -> inference_pb2.Terminal:
    terminal = inference_pb2.Terminal(
        choice=choice,
        cause=output_pb2.FinishCause.ValueType(end.cause),
        error=None if end.error is None else status_to_proto(end.error),
    )
    if end.stop_string is not None:
        terminal.stop_string = end.stop_string
    elif end.stop_token_id is not None:
        terminal.stop_token_id = end.stop_token_id
    return terminal
