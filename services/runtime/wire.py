"""Where protobuf meets the ring's data: statuses and log probabilities, alike in all three services."""

from __future__ import annotations

from collections.abc import Sequence

from google.protobuf import any_pb2, duration_pb2
from google.rpc import error_details_pb2, status_pb2
from ringline.types.v1 import output_pb2

from services.ring.events import Code, Status, TokenLogprob
from services.ring.logprobs import PackedLogprobs


def status_to_proto(status: Status) -> status_pb2.Status:
    """A canonical status; a time to retry becomes RetryInfo."""
    message = status_pb2.Status(code=int(status.code), message=status.message)
    if status.retry_after_ms is not None:
        delay = duration_pb2.Duration()
        delay.FromMilliseconds(status.retry_after_ms)
        detail = any_pb2.Any()
        detail.Pack(error_details_pb2.RetryInfo(retry_delay=delay))
        message.details.append(detail)
    return message


def status_from_proto(message: status_pb2.Status) -> Status:
    """The inverse; a code the ring does not use reads as INTERNAL."""
    code = Code(message.code) if message.code in Code._value2member_map_ else Code.INTERNAL
    retry_after_ms = None
    for detail in message.details:
        info = error_details_pb2.RetryInfo()
        if detail.Unpack(info):
            retry_after_ms = info.retry_delay.ToMilliseconds()
    return Status(code, message.message, retry_after_ms)


def pack_logprobs(entries: Sequence[TokenLogprob]) -> output_pb2.Logprobs:
    """Log probabilities of consecutive tokens, which all have equally many alternatives."""
    packed = output_pb2.Logprobs(
        logprobs=[entry.logprob for entry in entries],
        ranks=[entry.rank for entry in entries],
        top_count=len(entries[0].top_ids) if entries else 0,
    )
    for entry in entries:
        packed.top_ids.extend(entry.top_ids)
        packed.top_logprobs.extend(entry.top_logprobs)
    return packed


def unpack_logprobs(packed: output_pb2.Logprobs) -> list[TokenLogprob]:
    """The inverse."""
    k = packed.top_count
    ids, tops = list(packed.top_ids), list(packed.top_logprobs)
    return [
        TokenLogprob(logprob, rank, tuple(ids[i * k : i * k + k]), tuple(tops[i * k : i * k + k]))
        for i, (logprob, rank) in enumerate(zip(packed.logprobs, packed.ranks, strict=True))
    ]


def packed_to_proto(packed: PackedLogprobs) -> output_pb2.Logprobs:
    """Log probabilities that are packed already."""
    return output_pb2.Logprobs(
        logprobs=packed.logprobs,
        ranks=packed.ranks,
        top_count=packed.top_count,
        top_ids=packed.top_ids,
        top_logprobs=packed.top_logprobs,
    )


def packed_from_proto(message: output_pb2.Logprobs) -> PackedLogprobs:
    """The inverse; raises ``ValueError`` if the arrays are not aligned."""
    return PackedLogprobs(message.top_count, message.logprobs, message.ranks, message.top_ids, message.top_logprobs)
