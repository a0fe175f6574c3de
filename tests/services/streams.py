"""Transcripts of requests to a processor; reading one checks the protocol's rules."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import grpc
from google.protobuf.message import Message
from ringline.inference.v1 import inference_pb2
from ringline.types.v1 import output_pb2, part_pb2

from services.common.rpc.shared_messages import read_logprobs
from tests.services.ring.token_logprobs import TokenLogprob, unpacked


@dataclass
class Transcript:
    """Everything that a processor sent for one request."""

    admitted: inference_pb2.Admitted | None = None
    ids: dict[int, list[int]] = field(default_factory=dict)
    texts: dict[int, str] = field(default_factory=dict)
    parts: dict[int, list[tuple[str, int, str, str, str]]] = field(default_factory=dict)
    """Typed parts by choice, as (kind, number of the call, its id, its name, text); what continues is joined."""
    logprobs: dict[int, list[TokenLogprob]] = field(default_factory=dict)
    deltas: dict[int, list[inference_pb2.Delta]] = field(default_factory=dict)
    prompt_logprobs: output_pb2.Logprobs | None = None
    progress: list[inference_pb2.PrefillProgress] = field(default_factory=list)
    started: list[inference_pb2.Started] = field(default_factory=list)
    ends: dict[int, inference_pb2.ChoiceFinished] = field(default_factory=dict)
    finished: inference_pb2.RequestFinished | None = None
    refused: inference_pb2.Refused | None = None

    def add(self, response: inference_pb2.GenerateResponse) -> None:
        """Raises ``AssertionError`` for an event that the protocol does not allow here."""
        assert not self.complete, "an event after the end"
        match response.WhichOneof("event"):
            case "admitted":
                assert self.admitted is None
                self.admitted = response.admitted
            case "delta":
                self._delta(response.delta)
            case "choice_finished":
                self._end(response.choice_finished)
            case "request_finished":
                assert self.admitted is not None
                self.finished = response.request_finished
            case "refused":
                assert self.admitted is None
                self.refused = response.refused
            case "started":
                self.started.append(response.started)
            case "prefill":
                self.progress.append(response.prefill)
            case "prompt_logprobs":
                assert not self.deltas, "prompt logprobs after a delta"
                self.prompt_logprobs = self.prompt_logprobs or output_pb2.Logprobs()
                assert response.prompt_logprobs.offset == len(self.prompt_logprobs.logprobs), "a gap or a repeat"
                self.prompt_logprobs.MergeFrom(response.prompt_logprobs.logprobs)
            case other:
                raise AssertionError(other)

    def _delta(self, delta: inference_pb2.Delta) -> None:
        assert self.admitted is not None
        assert delta.choice not in self.ends, "a delta after the end of its choice"
        assert self.started, "a delta before Started"
        ids = self.ids.setdefault(delta.choice, [])
        assert delta.first_position == len(ids), "a gap or a repeat"
        ids += delta.token_ids
        self.texts[delta.choice] = self.texts.get(delta.choice, "") + delta.text
        self.add_parts(delta.choice, delta.parts)
        self.logprobs.setdefault(delta.choice, []).extend(unpacked(read_logprobs(delta.logprobs)))
        self.deltas.setdefault(delta.choice, []).append(delta)

    def _end(self, end: inference_pb2.ChoiceFinished) -> None:
        assert self.admitted is not None
        assert end.choice not in self.ends, "a second end of a choice"
        self.ends[end.choice] = end
        self.add_parts(end.choice, end.parts)

    def add_parts(self, choice: int, parts: Iterable[part_pb2.Part]) -> None:
        """Parts that came in this order."""
        joined = self.parts.setdefault(choice, [])
        for part in parts:
            kind = part.WhichOneof("kind") or ""
            call = part.tool_call
            texts = (call.id, call.name, part.content + part.reasoning + call.arguments_json)
            if joined and joined[-1][:2] == (kind, call.index):
                before = joined.pop()[2:]
                texts = (before[0] + texts[0], before[1] + texts[1], before[2] + texts[2])
            joined.append((kind, call.index, *texts))

    @property
    def usage(self) -> inference_pb2.Usage:
        assert self.finished is not None
        return self.finished.usage

    @property
    def complete(self) -> bool:
        return self.finished is not None or self.refused is not None


def ask(
    name: str = "", text: str = "Once upon a time", max_tokens: int = 16, **fields: Any
) -> inference_pb2.GenerateRequest:
    """``fields``: of the request, and of its parameters for sampling, stopping and output."""
    request = inference_pb2.GenerateRequest(request_id=name, text=text)
    parts = (request.sampling, request.stopping, request.output, request)
    for name_of_field, value in (fields | {"max_tokens": max_tokens}).items():
        part = next(part for part in parts if name_of_field in part.DESCRIPTOR.fields_by_name)
        match value:
            case list():
                getattr(part, name_of_field).extend(value)
            case Message():
                getattr(part, name_of_field).CopyFrom(value)
            case _:
                setattr(part, name_of_field, value)
    return request


LONG_CHOICES, LONG_TOKENS = 32, 1500


def long_work(name: str = "", **fields: Any) -> inference_pb2.GenerateRequest:
    """A request that takes an engine many seconds on any machine, so that tests can act while it runs, even if this
    process is not scheduled for a while.
    """
    return ask(name, max_tokens=LONG_TOKENS, n=LONG_CHOICES, ignore_eos=True, **fields)


async def generate(
    front, request: inference_pb2.GenerateRequest, transcript: Transcript | None = None, **call: Any
) -> Transcript:
    """Call Generate and read to the end; ``transcript`` is filled also when the call fails."""
    transcript = transcript or Transcript()
    async for response in front.Generate(request, timeout=250, **call):
        assert response.request_id == request.request_id
        transcript.add(response)
    return transcript


async def send(call: grpc.aio.StreamStreamCall, *requests: inference_pb2.GenerateRequest) -> None:
    """On a session."""
    for request in requests:
        await call.write(inference_pb2.SessionRequest(generate=request))


async def cancel(call: grpc.aio.StreamStreamCall, name: str) -> None:
    """On a session."""
    await call.write(inference_pb2.SessionRequest(cancel=inference_pb2.CancelRequest(request_id=name)))


async def read_until(
    call: grpc.aio.StreamStreamCall, transcripts: Mapping[str, Transcript], condition: Callable[[], object]
) -> None:
    """Read a session until ``condition`` holds."""
    while not condition():
        frame = await call.read()
        missing = [name for name, one in transcripts.items() if not one.complete]
        assert frame is not grpc.aio.EOF, f"the session ended without {missing}"
        for response in frame.responses:
            transcripts[response.request_id].add(response)


async def read_session(
    call: grpc.aio.StreamStreamCall, names: Iterable[str], before: Mapping[str, Transcript] | None = None
) -> dict[str, Transcript]:
    """Read a session until every named request is complete; ``before``: transcripts that are continued."""
    transcripts = {name: (before or {}).get(name) or Transcript() for name in names}
    await read_until(call, transcripts, lambda: all(one.complete for one in transcripts.values()))
    return transcripts
