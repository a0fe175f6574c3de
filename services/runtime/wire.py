"""Where protobuf meets the ring's data: statuses and log probabilities, alike in all three services."""

from __future__ import annotations

from google.protobuf import any_pb2, duration_pb2
from google.rpc import error_details_pb2, status_pb2
from ringline.types.v1 import output_pb2

from services.ring.events import Code, Status
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


def write_logprobs(message: output_pb2.Logprobs, packed: PackedLogprobs) -> None:
    """Fill ``message``, which is empty, where it is: protobuf copies a message that is put into another."""
    message.logprobs.extend(packed.logprobs.tolist())
    message.ranks.extend(packed.ranks.tolist())
    if packed.top_count:
        message.top_count = packed.top_count
        message.top_ids.extend(packed.top_ids.tolist())
        message.top_logprobs.extend(packed.top_logprobs.tolist())


def read_logprobs(message: output_pb2.Logprobs) -> PackedLogprobs:
    """The inverse; raises ``ValueError`` if the arrays are not aligned. They are taken whole: slow to walk."""
    if not message.top_count:
        return PackedLogprobs(0, message.logprobs[:], message.ranks[:], message.top_ids, message.top_logprobs)
    return PackedLogprobs(
        message.top_count, message.logprobs[:], message.ranks[:], message.top_ids[:], message.top_logprobs[:]
    )
