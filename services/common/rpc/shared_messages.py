"""Converts the ring's data to protobuf and back, where several services need it: statuses, handshakes, output."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, NoReturn

import grpc
from google.protobuf import duration_pb2
from google.rpc import error_details_pb2, status_pb2
from ringline.detokenizer.v1 import detokenizer_pb2
from ringline.engine.v1 import engine_pb2
from ringline.inference.v1 import inference_pb2
from ringline.types.v1 import adapter_pb2, link_pb2, output_pb2

from services.common.rpc.part_messages import read_parts, write_parts
from services.ring.adapters import Adapter
from services.ring.attached_peers import PeerChange
from services.ring.errors import USUAL_REASONS, Code, Reason, Status
from services.ring.events import ChoiceEnd, FinishReason, Pooled
from services.ring.identity import MAX_VERSION, MIN_VERSION, PeerId
from services.ring.logprobs import PackedLogprobs

_DOMAIN = "ringline"
_DETAILS_KEY = "grpc-status-details-bin"
_MAX_STATUS_BYTES = 1000
"""Limit on a status message. gRPC's trailers carry it three times, once with three characters for each byte that is not
ASCII, and may have 8 KiB in all."""
_STATUS_CODES = {code.value[0]: code for code in grpc.StatusCode}


def status_to_proto(status: Status) -> status_pb2.Status:
    """The message with its details: ``ErrorInfo`` (reason), ``BadRequest`` (field) and ``RetryInfo``."""
    message = status_pb2.Status(code=int(status.code), message=status.message)
    message.details.add().Pack(error_details_pb2.ErrorInfo(reason=status.reason.name, domain=_DOMAIN))
    if status.field is not None:
        violation = error_details_pb2.BadRequest.FieldViolation(
            field=status.field, description=status.message.removeprefix(f"{status.field}: ")
        )
        message.details.add().Pack(error_details_pb2.BadRequest(field_violations=[violation]))
    if status.retry_after_ms is not None:
        delay = duration_pb2.Duration()
        delay.FromMilliseconds(status.retry_after_ms)
        message.details.add().Pack(error_details_pb2.RetryInfo(retry_delay=delay))
    return message


def status_from_proto(message: status_pb2.Status) -> Status:
    """A code that the ring does not use reads as INTERNAL, an unknown reason as the code's usual one."""
    code = Code(message.code) if message.code in Code._value2member_map_ else Code.INTERNAL
    retry_after_ms = reason = field = None
    retry, info, request = error_details_pb2.RetryInfo(), error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
    for detail in message.details:
        if detail.Unpack(retry):
            retry_after_ms = retry.retry_delay.ToMilliseconds()
        elif detail.Unpack(info) and info.domain == _DOMAIN:
            reason = Reason.__members__.get(info.reason)
            reason = None if reason is USUAL_REASONS[code] else reason
        elif detail.Unpack(request) and request.field_violations:
            field = request.field_violations[0].field
    return Status(code, message.message, retry_after_ms, reason, field)


def status_of_call(error: grpc.aio.AioRpcError) -> Status:
    """The status with which a call to another service ended."""
    for key, value in error.trailing_metadata() or ():
        if key == _DETAILS_KEY and isinstance(value, bytes):
            return status_from_proto(status_pb2.Status.FromString(value))
    return status_from_proto(status_pb2.Status(code=error.code().value[0], message=error.details() or ""))


def adapter_from_proto(message: adapter_pb2.Adapter) -> Adapter | None:
    """An adapter of a message; None for one that this release cannot name."""
    try:
        return Adapter(message.name, message.digest)
    except ValueError:
        return None


def adapter_to_proto(adapter: Adapter | None) -> adapter_pb2.Adapter | None:
    """An adapter as messages have it."""
    return None if adapter is None else adapter_pb2.Adapter(name=adapter.name, digest=adapter.digest)


async def abort(context: grpc.aio.ServicerContext[Any, Any], status: Status) -> NoReturn:
    """End a call with a status and its details; the message is cut to what fits into gRPC's trailers."""
    text = status.message.encode()[:_MAX_STATUS_BYTES].decode(errors="ignore")
    status = replace(status, message=text)
    details = status_to_proto(status).SerializeToString()
    await context.abort(_STATUS_CODES[status.code], status.message, ((_DETAILS_KEY, details),))


class OutputEntry(NamedTuple):
    """The next ids of one choice."""

    request_id: str
    epoch: int
    choice: int
    first_position: int
    ids: Sequence[int]
    logprobs: PackedLogprobs | None


def read_entries(outputs: engine_pb2.StepOutputs | detokenizer_pb2.TextOutputs) -> Iterator[OutputEntry]:
    """Every entry of a frame, in order. Copies whole arrays first: iterating over protobuf's own is slow."""
    ids = outputs.token_ids[:]
    logprobs = {scored.entry: read_logprobs(scored.logprobs) for scored in outputs.logprobs}
    arrays = zip(
        outputs.request_ids[:],
        outputs.epochs[:],
        outputs.choices[:],
        outputs.first_positions[:],
        outputs.token_counts[:],
        strict=True,
    )
    start = 0
    for index, (request_id, epoch, choice, first_position, count) in enumerate(arrays):
        yield OutputEntry(request_id, epoch, choice, first_position, ids[start : start + count], logprobs.get(index))
        start += count


def read_end(finished: engine_pb2.Finished | detokenizer_pb2.TextFinished) -> ChoiceEnd:
    """The end of a choice. A reason that only a later contract version knows becomes an error, never a success."""
    reason = finished.finish_reason
    error = status_from_proto(finished.error) if finished.HasField("error") else None
    if reason not in FinishReason._value2member_map_:
        error = error or Status(Code.UNKNOWN, f"it ended with an unknown finish reason ({reason})")
        reason = output_pb2.FinishReason.ValueType(FinishReason.ERROR)
    stop_token_id = finished.stop_token_id if finished.HasField("stop_token_id") else None
    stop_string = parts = pooled = None
    if isinstance(finished, engine_pb2.Finished) and finished.HasField("pooled"):
        pooled = Pooled(finished.pooled.values, finished.pooled.rows)
    if isinstance(finished, detokenizer_pb2.TextFinished):
        stop_string = finished.stop_string if finished.HasField("stop_string") else None
        if finished.parts or finished.reasoning_tokens:
            parts = read_parts(finished.parts, finished.reasoning_tokens)
    return ChoiceEnd(
        FinishReason(reason),
        finished.position,
        stop_token_id,
        stop_string,
        error,
        parts,
        (finished.accepted_draft_tokens, finished.rejected_draft_tokens),
        finished.beam_score if finished.HasField("beam_score") else None,
        pooled,
    )


def write_end(message: detokenizer_pb2.TextFinished | inference_pb2.ChoiceFinished, end: ChoiceEnd) -> None:
    """Fill in why a choice ended."""
    message.finish_reason = output_pb2.FinishReason.ValueType(end.finish_reason)
    if end.parts is not None:
        write_parts(message.parts, [end.parts])
        message.reasoning_tokens = end.parts.reasoning_tokens
    if end.error is not None:
        message.error.CopyFrom(status_to_proto(end.error))
    if end.stop_string is not None:
        message.stop_string = end.stop_string
    elif end.stop_token_id is not None:
        message.stop_token_id = end.stop_token_id
    if end.beam_score is not None:
        message.beam_score = end.beam_score
    if isinstance(message, detokenizer_pb2.TextFinished):  # a client is told in its request's usage
        message.accepted_draft_tokens, message.rejected_draft_tokens = end.drafts


def hello_message(me: PeerId, capabilities: Iterable[str] = ()) -> link_pb2.Hello:
    """The first frame of a link; ``capabilities``: what ``me`` can do beyond the version."""
    return link_pb2.Hello(
        name=me.name,
        incarnation=me.incarnation,
        min_version=MIN_VERSION,
        max_version=MAX_VERSION,
        capabilities=capabilities,
    )


def welcome_message(
    me: PeerId, version: int, max_message_bytes: int, capabilities: Iterable[str] = ()
) -> link_pb2.Welcome:
    """The answer to a Hello; ``version`` is the chosen one."""
    return link_pb2.Welcome(
        name=me.name,
        incarnation=me.incarnation,
        version=version,
        max_message_bytes=max_message_bytes,
        capabilities=capabilities,
    )


def peer_changes_to_proto(change: PeerChange) -> link_pb2.PeerChanges:
    """How a list of peers changed, as a message."""
    return link_pb2.PeerChanges(
        revision=change.revision,
        reset=change.reset,
        added=[link_pb2.Peer(name=peer.name, incarnation=peer.incarnation) for peer in change.added],
        removed=[link_pb2.Peer(name=peer.name, incarnation=peer.incarnation) for peer in change.removed],
    )


def peer_changes_from_proto(message: link_pb2.PeerChanges) -> PeerChange:
    """How a list of peers changed, from a message."""
    added, removed = (
        tuple(PeerId(peer.name, peer.incarnation) for peer in peers) for peers in (message.added, message.removed)
    )
    return PeerChange(message.revision, message.reset, added, removed)


def write_logprobs(message: output_pb2.Logprobs, packed: PackedLogprobs) -> None:
    """Fill ``message`` in place: protobuf would copy a message that is assigned to a field."""
    message.logprobs.extend(packed.logprobs.tolist())
    message.ranks.extend(packed.ranks.tolist())
    if packed.top_count:
        message.top_count = packed.top_count
        message.top_ids.extend(packed.top_ids.tolist())
        message.top_logprobs.extend(packed.top_logprobs.tolist())


def read_logprobs(message: output_pb2.Logprobs) -> PackedLogprobs:
    """Raises ``ValueError`` if the arrays are not aligned. Copies slices: iterating over repeated fields is slow."""
    if not message.top_count:
        return PackedLogprobs(0, message.logprobs[:], message.ranks[:], message.top_ids, message.top_logprobs)
    return PackedLogprobs(
        message.top_count, message.logprobs[:], message.ranks[:], message.top_ids[:], message.top_logprobs[:]
    )
