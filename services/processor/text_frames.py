"""A detokenizer's frame as ring data: its packed arrays taken apart."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ringline.detokenizer.v1 import detokenizer_pb2

from services.ring.events import Cause, ChoiceEnd
from services.ring.logprobs import PackedLogprobs
from services.runtime.wire import read_logprobs, status_from_proto


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
    for finish in outputs.finishes:
        stop = finish.WhichOneof("stop")
        yield (
            finish.request_id,
            finish.epoch,
            finish.choice,
            ChoiceEnd(
                cause=Cause(finish.cause),
                position=finish.position,
                stop_token_id=finish.stop_token_id if stop == "stop_token_id" else None,
                stop_string=finish.stop_string if stop == "stop_string" else None,
                error=status_from_proto(finish.error) if finish.HasField("error") else None,
            ),
        )
