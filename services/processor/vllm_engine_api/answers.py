"""Converts output to vLLM's responses: chunks of new ids as they come, or each choice whole at its end."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Collection, Iterator
from typing import Any

from ringline.inference.v1 import inference_pb2
from ringline.types.v1 import output_pb2
from smg_grpc_proto import vllm_engine_pb2

from services.common.rpc.shared_messages import read_logprobs, status_from_proto
from services.processor.vllm_engine_api.requests import as_named_here
from services.ring.errors import Code, Reason, Refused, Status
from services.ring.events import FinishReason
from services.ring.logprobs import PackedLogprobs

_FINISH_REASONS = {
    FinishReason.STOP: "stop",
    FinishReason.LENGTH: "length",
    FinishReason.CANCELLED: "abort",
}
_ID_BYTES = 5
_DEADLINE = Status(Code.DEADLINE_EXCEEDED, "the call's deadline passed before the answer was complete")


class HeldBytes:
    """Bytes that this processor holds of all unfinished answers."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._held = 0

    def add(self, size: int) -> None:
        """Raises ``Refused`` beyond the limit."""
        if self._held + size > self._limit:
            problem = f"answers that are awaited whole have more than {self._limit} bytes: set stream, or retry later"
            raise Refused(Code.RESOURCE_EXHAUSTED, problem, retry_after_ms=1000, reason=Reason.OVERLOAD)
        self._held += size

    def release(self, size: int) -> None:
        self._held -= size


class _Choice:
    """A choice's output: delivered, or held until its end."""

    def __init__(self) -> None:
        self.count = 0
        self.ids = array("I")
        """Empty in a stream."""
        self.logprobs: PackedLogprobs | None = None


class Answer:
    """Converts one request's frames to its answer."""

    def __init__(
        self, message: Any, eos_token_ids: Collection[int], max_message_bytes: int, held_by_all: HeldBytes
    ) -> None:
        """``message``: the ``vllm.grpc.engine.GenerateRequest``. ``max_message_bytes``: limit on held output."""
        params = message.sampling_params
        self._streams: bool = message.stream
        self._top_count = params.logprobs
        self._top_count_of_prompt = params.prompt_logprobs
        eos = () if params.ignore_eos else eos_token_ids
        self._stop_token_ids = frozenset(params.stop_token_ids).difference(eos)
        self._max_bytes = max_message_bytes
        self._held_bytes = 0
        self._held_by_all = held_by_all
        self._prompt_tokens = 0
        self._prompt_ids = array("I")
        self._prompt_logprobs: PackedLogprobs | None = None
        self._input_logprobs: Any | None = None
        """The same as a message, built for the first choice."""
        self._cached_tokens: int | None = None
        self._choices: dict[int, _Choice] = {}

    def pack(self, frame: inference_pb2.SessionResponse) -> Iterator[tuple[bytes | None, Status | None]]:
        """See ``services.processor.service.Pack``. Raises ``Refused`` if held output becomes too large."""
        for response in frame.responses:
            match response.WhichOneof("event"):
                case "admitted":
                    self._prompt_tokens = response.admitted.prompt_tokens
                    self._prompt_ids.extend(response.admitted.prompt_token_ids)
                case "prefill" if self._cached_tokens is None:
                    self._cached_tokens = response.prefill.cached_tokens
                case "prompt_logprobs":
                    scores = read_logprobs(response.prompt_logprobs.logprobs)
                    self._hold(len(scores), scores, "prompt_logprobs of a shorter prompt")
                    self._prompt_logprobs = _joined(self._prompt_logprobs, scores)
                case "delta":
                    if (chunk := self._delta(response.delta)) is not None:
                        yield chunk.SerializeToString(), None
                case "choice_finished":
                    yield self._end(response.choice_finished)
                case "refused":
                    yield None, as_named_here(status_from_proto(response.refused.status))

    def _delta(self, delta: inference_pb2.Delta) -> Any | None:
        """The chunk of a delta; None without ids, or if not streaming."""
        if not delta.token_ids:
            return None
        is_first = delta.choice not in self._choices
        choice = self._choices.setdefault(delta.choice, _Choice())
        choice.count += len(delta.token_ids)
        scores = read_logprobs(delta.logprobs) if delta.HasField("logprobs") else None
        if not self._streams:
            self._hold(len(delta.token_ids), scores, "stream")
            choice.ids.extend(delta.token_ids)
            if scores is not None:
                choice.logprobs = _joined(choice.logprobs, scores)
            return None
        response = vllm_engine_pb2.GenerateResponse()
        chunk = response.chunk
        chunk.token_ids.extend(delta.token_ids)
        chunk.prompt_tokens = self._prompt_tokens
        chunk.completion_tokens = len(delta.token_ids)
        chunk.cached_tokens = self._cached_tokens or 0
        chunk.index = delta.choice
        if scores is not None:
            _write_logprobs(chunk.output_logprobs, delta.token_ids, scores, self._top_count)
        if is_first:
            self._write_prompt_logprobs(chunk)
        return response

    def _hold(self, count: int, scores: PackedLogprobs | None, instead: str) -> None:
        """Charge for ``count`` held tokens. Raises ``Refused``, which suggests what to ask for ``instead``."""
        size = count * (_ID_BYTES + (scores.entry_bytes if scores is not None else 0))
        if self._held_bytes + size > self._max_bytes:
            problem = f"the answer has more than {self._max_bytes} bytes, the limit for one message: ask for {instead}"
            raise Refused(Code.RESOURCE_EXHAUSTED, problem, reason=Reason.TOO_LARGE)
        self._held_by_all.add(size)
        self._held_bytes += size

    def close(self) -> None:
        """Release held bytes."""
        self._held_by_all.release(self._held_bytes)
        self._held_bytes = 0

    def _end(self, finished: inference_pb2.ChoiceFinished) -> tuple[bytes | None, Status | None]:
        if finished.HasField("error"):
            return None, status_from_proto(finished.error)
        if finished.finish_reason == output_pb2.FINISH_REASON_DEADLINE:
            return None, _DEADLINE
        is_first = finished.choice not in self._choices
        choice = self._choices.pop(finished.choice, None) or _Choice()
        response = vllm_engine_pb2.GenerateResponse()
        complete = response.complete
        complete.output_ids.extend(choice.ids)
        complete.finish_reason = _FINISH_REASONS[FinishReason(finished.finish_reason)]
        complete.prompt_tokens = self._prompt_tokens
        complete.completion_tokens = choice.count
        complete.cached_tokens = self._cached_tokens or 0
        complete.index = finished.choice
        if finished.HasField("stop_string"):
            complete.matched_stop_str = finished.stop_string
        elif finished.HasField("stop_token_id") and finished.stop_token_id in self._stop_token_ids:
            complete.matched_token_id = finished.stop_token_id
        if choice.logprobs is not None:
            _write_logprobs(complete.output_logprobs, choice.ids, choice.logprobs, self._top_count)
        if is_first or not self._streams:
            self._write_prompt_logprobs(complete)
        return response.SerializeToString(), None

    def _write_prompt_logprobs(self, message: Any) -> None:
        """Fill in ``input_logprobs`` of a choice's first message; the prompt's first token has none."""
        if self._prompt_logprobs is None:
            return
        if self._input_logprobs is None:
            self._input_logprobs = self._made_input_logprobs(self._prompt_logprobs)
        message.input_logprobs.CopyFrom(self._input_logprobs)

    def _made_input_logprobs(self, scores: PackedLogprobs) -> Any:
        found = vllm_engine_pb2.InputLogProbs()
        found.token_ids.extend(self._prompt_ids)
        found.token_logprobs.add()
        for value in scores.logprobs:
            found.token_logprobs.add(value=value)
        if self._top_count_of_prompt:
            found.top_logprobs.add()
            _write_alternatives(found, scores)
        return found


def _joined(before: PackedLogprobs | None, more: PackedLogprobs) -> PackedLogprobs:
    if before is None:
        return more
    before.extend(more)
    return before


def _write_logprobs(message: Any, ids: Any, scores: PackedLogprobs, top_count: int) -> None:
    message.token_ids.extend(ids)
    message.token_logprobs.extend(scores.logprobs)
    if top_count:
        _write_alternatives(message, scores)


def _write_alternatives(message: Any, scores: PackedLogprobs) -> None:
    count = scores.top_count
    for start in range(0, len(scores.top_ids), count or 1):
        top = message.top_logprobs.add()
        top.token_ids.extend(scores.top_ids[start : start + count])
        top.values.extend(scores.top_logprobs[start : start + count])


def embed_response(embedded: inference_pb2.EmbedResponse) -> Any:
    """``vllm.grpc.engine.EmbedResponse`` of one input."""
    numbers = array("f", embedded.values)
    if sys.byteorder == "big":
        numbers.byteswap()
    tokens = embedded.report.usage.prompt_tokens
    return vllm_engine_pb2.EmbedResponse(embedding=numbers, prompt_tokens=tokens, embedding_dim=embedded.dimensions)
