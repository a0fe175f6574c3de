"""A detokenizer's frame as ring data: its packed arrays taken apart."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ringline.detokenizer.v1 import detokenizer_pb2

from services.ring.events import ChoiceEnd
from services.ring.logprobs import PackedLogprobs
from services.runtime.wire import end_from_proto, read_logprobs


class TextEntry(NamedTuple):
    """One choice's delta."""

    request_id: str
    epoch: int
    choice: int
    first_position: int
    ids: Sequence[int]
    text: str
    logprobs: PackedLogprobs | None


def entries_of(outputs: detokenizer_pb2.TextOutputs) -> Iterator[TextEntry]:
    """Every delta, in order. Arrays are taken whole: protobuf's own are slow to walk."""
    ids = outputs.token_ids[:]
    logprobs = {scored.entry: read_logprobs(scored.logprobs) for scored in outputs.logprobs}
    arrays = zip(
        outputs.request_ids[:],
        outputs.epochs[:],
        outputs.choices[:],
        outputs.first_positions[:],
        outputs.token_counts[:],
        outputs.texts[:],
        strict=True,
    )
    start = 0
    for index, (request_id, epoch, choice, first_position, count, text) in enumerate(arrays):
        yield TextEntry(
            request_id, epoch, choice, first_position, ids[start : start + count], text, logprobs.get(index)
        )
        start += count


def ends_of(outputs: detokenizer_pb2.TextOutputs) -> Iterator[tuple[str, int, int, ChoiceEnd]]:
    """Every (request id, epoch, choice, end), in order."""
    for finished in outputs.finished:
        stop = finished.WhichOneof("stop")
        cause, error = end_from_proto(finished.finish_reason, finished.error if finished.HasField("error") else None)
        yield (
            finished.request_id,
            finished.epoch,
            finished.choice,
            ChoiceEnd(
                cause,
                position=finished.position,
                stop_token_id=finished.stop_token_id if stop == "stop_token_id" else None,
                stop_string=finished.stop_string if stop == "stop_string" else None,
                error=error,
            ),
        )
