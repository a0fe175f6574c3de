"""Ring data as the client's protobuf."""

from __future__ import annotations

from ringline.inference.v1 import inference_pb2
from ringline.types.v1 import output_pb2

from services.ring.events import Cause, ChoiceEnd, Code, Status
from services.ring.outbox import ChoiceNews, RequestNews
from services.runtime.wire import status_to_proto, write_logprobs

_ENDED_EARLY = {
    Cause.CANCELLED: Status(Code.CANCELLED, "cancelled before it was admitted"),
    Cause.DEADLINE: Status(Code.DEADLINE_EXCEEDED, "its time was over before it was admitted"),
}


def refusal(client_id: str, in_reply_to: int, status: Status) -> inference_pb2.GenerateResponse:
    """All that is said of a frame that does not become a request."""
    refused = inference_pb2.Refused(status=status_to_proto(status))
    return inference_pb2.GenerateResponse(request_id=client_id, in_reply_to=in_reply_to, refused=refused)


def refused_before_admission(cause: Cause, status: Status | None) -> inference_pb2.Refused:
    """The end of a request that was not admitted."""
    return inference_pb2.Refused(status=status_to_proto(status or _ENDED_EARLY[cause]))


def write_news(frame: inference_pb2.SessionResponse, news: RequestNews, name: str, ordinal: int) -> None:
    """Add one request's news to ``frame``, in order.

    ``name`` is the client's for the request, ``ordinal`` which frame of its stream asked for it. What comes with every
    token is made in its place: protobuf copies a message that is put into another.
    """
    add = frame.responses.add
    if isinstance(news.opening, bytes):
        add(request_id=name).admitted.MergeFromString(news.opening)
    for notice in news.notices:
        if isinstance(notice, inference_pb2.Started):
            add(request_id=name, started=notice)
    if news.prefill is not None:
        progress = inference_pb2.PrefillProgress(
            computed_tokens=news.prefill.computed_tokens, cached_tokens=news.prefill.cached_tokens
        )
        add(request_id=name, prefill=progress)
    if news.prompt_logprobs is not None:
        part_of_prompt = add(request_id=name).prompt_logprobs
        part_of_prompt.offset = news.prompt_offset
        write_logprobs(part_of_prompt.logprobs, news.prompt_logprobs)
    for choice, part in news.choices.items():
        if part.ids or any(part.texts):
            _write_delta(add(request_id=name).delta, choice, part)
        if part.end is not None:
            add(request_id=name, choice_finished=_choice_finished(choice, part.end))
    if isinstance(news.closing, inference_pb2.Usage):
        add(request_id=name, request_finished=inference_pb2.RequestFinished(usage=news.closing))
    if isinstance(news.closing, inference_pb2.Refused):
        add(request_id=name, in_reply_to=ordinal, refused=news.closing)


def _write_delta(delta: inference_pb2.Delta, choice: int, part: ChoiceNews) -> None:
    delta.choice = choice
    delta.first_position = part.first_position
    delta.text = "".join(part.texts)
    delta.token_ids.extend(part.ids)
    if part.logprobs:
        write_logprobs(delta.logprobs, part.logprobs)


def _choice_finished(choice: int, end: ChoiceEnd) -> inference_pb2.ChoiceFinished:
    finished = inference_pb2.ChoiceFinished(
        choice=choice,
        finish_reason=output_pb2.FinishReason.ValueType(end.cause),
        error=None if end.error is None else status_to_proto(end.error),
    )
    if end.stop_string is not None:
        finished.stop_string = end.stop_string
    elif end.stop_token_id is not None:
        finished.stop_token_id = end.stop_token_id
    return finished
