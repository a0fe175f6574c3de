"""A link's frame as protobuf: ring data in, one AttachResponse out."""

from __future__ import annotations

from ringline.engine.v1 import engine_pb2
from ringline.types.v1 import output_pb2

from services.ring.cursor import OutputFrame
from services.ring.events import ChoiceEnd, Prefill
from services.ring.ledger import LedgerEntry
from services.runtime.wire import peer_changes_to_proto, status_to_proto, write_logprobs


def response_of(frame: OutputFrame) -> engine_pb2.AttachResponse:
    """Everything a link had new."""
    response = engine_pb2.AttachResponse()
    if frame.peers is not None:
        response.peers.CopyFrom(peer_changes_to_proto(frame.peers))
    for rejected in frame.rejections:
        response.rejections.add(
            request_id=rejected.request_id,
            epoch=rejected.epoch,
            in_reply_to=rejected.in_reply_to,
            status=status_to_proto(rejected.status),
        )
    if frame.opened or frame.prefills or frame.prompt_logprobs or frame.request_ids or frame.ends or frame.closed:
        response.outputs.CopyFrom(_outputs(frame))
    return response


def _outputs(frame: OutputFrame) -> engine_pb2.StepOutputs:
    outputs = engine_pb2.StepOutputs(
        opened=map(_opened, frame.opened),
        prefills=[_prefill(*news) for news in frame.prefills],
        request_ids=frame.request_ids,
        epochs=frame.epochs,
        choices=frame.choices,
        first_positions=frame.first_positions,
        token_counts=frame.token_counts,
        token_ids=frame.token_ids,
        finished=[_finished(*news) for news in frame.ends],
        closed=[engine_pb2.Closed(request_id=request_id, epoch=epoch) for request_id, epoch in frame.closed],
    )
    for request_id, epoch, offset, scores in frame.prompt_logprobs:
        part = outputs.prompt_logprobs.add(request_id=request_id, epoch=epoch, offset=offset)
        write_logprobs(part.logprobs, scores)
    for entry, scores in frame.logprobs:
        write_logprobs(outputs.logprobs.add(entry=entry).logprobs, scores)
    return outputs


def _opened(entry: LedgerEntry) -> engine_pb2.Opened:
    return engine_pb2.Opened(
        request_id=entry.request_id,
        epoch=entry.epoch,
        output_context=entry.output_context,
        delivered=[engine_pb2.Delivered(choice=choice, count=count) for choice, count in entry.delivered.items()],
        choices=entry.choices,
    )


def _prefill(request_id: str, epoch: int, prefill: Prefill) -> engine_pb2.Prefill:
    return engine_pb2.Prefill(
        request_id=request_id,
        epoch=epoch,
        prompt_tokens=prefill.prompt_tokens,
        computed_tokens=prefill.computed_tokens,
        cached_tokens=prefill.cached_tokens,
    )


def _finished(request_id: str, epoch: int, choice: int, end: ChoiceEnd) -> engine_pb2.Finished:
    finished = engine_pb2.Finished(
        request_id=request_id,
        epoch=epoch,
        choice=choice,
        position=end.position,
        finish_reason=output_pb2.FinishReason.ValueType(end.cause),
        stop_token_id=end.stop_token_id,
    )
    if end.error is not None:
        finished.error.CopyFrom(status_to_proto(end.error))
    return finished
