"""Conversions between protobuf and data: responses for clients, and text frames of detokenizers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ringline.detokenizer.v1 import detokenizer_pb2
from ringline.inference.v1 import inference_pb2

from services.common.rpc.part_messages import read_parts, write_parts
from services.common.rpc.shared_messages import read_end, read_entries, status_to_proto, write_end, write_logprobs
from services.processor.pooling.plan import PooledAnswer
from services.ring.errors import Code, Status
from services.ring.events import ChoiceEnd, FinishReason, TypedParts
from services.ring.logprobs import PackedLogprobs
from services.ring.outbox import ChoiceUpdate, RequestUpdate

_ENDED_EARLY = {
    FinishReason.CANCELLED: Status(Code.CANCELLED, "cancelled before it was admitted"),
    FinishReason.DEADLINE: Status(Code.DEADLINE_EXCEEDED, "its deadline passed before it was admitted"),
}


def refusal(client_id: str, in_reply_to: int, status: Status) -> inference_pb2.GenerateResponse:
    """The response to a frame that does not become a request."""
    refused = inference_pb2.Refused(status=status_to_proto(status))
    return inference_pb2.GenerateResponse(request_id=client_id, in_reply_to=in_reply_to, refused=refused)


def refused_before_admission(finish_reason: FinishReason, status: Status | None) -> inference_pb2.Refused:
    """The end of a request that was not admitted."""
    return inference_pb2.Refused(status=status_to_proto(status or _ENDED_EARLY[finish_reason]))


def write_update(frame: inference_pb2.SessionResponse, update: RequestUpdate, name: str, ordinal: int) -> None:
    """Add one request's responses to ``frame``.

    ``name``: the client's request id; ``ordinal``: the number of the frame that asked for it. Deltas are built in
    place, because protobuf copies a message that is put into another.
    """
    add = frame.responses.add
    if isinstance(update.opening, bytes):
        add(request_id=name).admitted.MergeFromString(update.opening)
    for notice in update.notices:
        if isinstance(notice, inference_pb2.Started):
            add(request_id=name, started=notice)
    if update.prefill is not None:
        progress = inference_pb2.PrefillProgress(
            computed_tokens=update.prefill.computed_tokens, cached_tokens=update.prefill.cached_tokens
        )
        add(request_id=name, prefill=progress)
    if update.prompt_logprobs is not None:
        part_of_prompt = add(request_id=name).prompt_logprobs
        part_of_prompt.offset = update.prompt_offset
        write_logprobs(part_of_prompt.logprobs, update.prompt_logprobs)
    for choice, part in update.choices.items():
        if part.ids or any(part.texts):
            _write_delta(add(request_id=name).delta, choice, part)
        if part.end is not None:
            write_end(add(request_id=name, choice_finished={"choice": choice}).choice_finished, part.end)
    if isinstance(update.closing, inference_pb2.Usage):
        add(request_id=name, request_finished=inference_pb2.RequestFinished(usage=update.closing))
    if isinstance(update.closing, PooledAnswer):
        getattr(add(request_id=name), update.closing.event).MergeFromString(update.closing.packed)
    if isinstance(update.closing, inference_pb2.Refused):
        add(request_id=name, in_reply_to=ordinal, refused=update.closing)


def _write_delta(delta: inference_pb2.Delta, choice: int, part: ChoiceUpdate) -> None:
    delta.choice = choice
    delta.first_position = part.first_position
    delta.text = "".join(part.texts)
    delta.token_ids.extend(part.ids)
    if part.logprobs:
        write_logprobs(delta.logprobs, part.logprobs)
    if part.parts[-1] is not None:
        write_parts(delta.parts, part.parts)


class TextEntry(NamedTuple):
    """One choice's delta."""

    request_id: str
    epoch: int
    choice: int
    first_position: int
    ids: Sequence[int]
    logprobs: PackedLogprobs | None
    text: str
    parts: TypedParts | None


def entries_of(outputs: detokenizer_pb2.TextOutputs) -> Iterator[TextEntry]:
    """Every delta, in order."""
    parts = {one.entry: read_parts(one.parts, one.reasoning_tokens) for one in outputs.parts}
    for index, (entry, text) in enumerate(zip(read_entries(outputs), outputs.texts[:], strict=True)):
        yield TextEntry(*entry, text, parts.get(index))


def ends_of(outputs: detokenizer_pb2.TextOutputs) -> Iterator[tuple[str, int, int, ChoiceEnd]]:
    """Every (request id, epoch, choice, end), in order."""
    for finished in outputs.finished:
        yield finished.request_id, finished.epoch, finished.choice, read_end(finished)
