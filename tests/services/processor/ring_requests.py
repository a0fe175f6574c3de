"""A ring of one process, with what tests do to its requests, and how they look at what came of them."""

from __future__ import annotations

from ringline.engine.v1 import engine_pb2
from ringline.inference.v1 import inference_pb2
from ringline.types.v1 import link_pb2

from services.processor.request import Request
from services.ring.errors import Code
from services.ring.routing_logic import Route
from tests.services.ring.ring_simulation import EOS, AttachStream, RingSimulation, token_at

SEED = 19631
"""Whose choices 0 and 1 have no eos among the first 60 tokens."""


def ask(max_tokens: int = 20, n: int = 1, name: str = "r") -> inference_pb2.GenerateRequest:
    request = inference_pb2.GenerateRequest(request_id=name, text="ab")
    request.sampling.seed, request.sampling.n = SEED, n
    request.stopping.max_tokens = max_tokens
    return request


def expected(count: int, choice: int = 0) -> list[int]:
    ids = [token_at(SEED, choice, position) for position in range(count)]
    assert EOS not in ids
    return ids


def route_of(call: Request) -> Route:
    assert call.route is not None
    return call.route


class Ring(RingSimulation):
    """A ring whose requests are mostly one."""

    def begin(self, max_tokens: int = 20, tokens: int = 1) -> Request:
        """A request in flight that has a few tokens: as many as a step computes, or twice that."""
        call = self.ask(ask(max_tokens))
        self.flow(tokens)
        self.flow(tokens)
        return call

    def settle(self, rounds: int = 30) -> None:
        for _ in range(rounds):
            self.flow()
            self.client_reads()

    # What came of it

    def events(self, kind: str) -> list[inference_pb2.GenerateResponse]:
        self.client_reads()
        return [response for response in self.received if response.WhichOneof("event") == kind]

    def ids(self, choice: int = 0) -> list[int]:
        deltas = [response.delta for response in self.events("delta")]
        return [token for delta in deltas if delta.choice == choice for token in delta.token_ids]

    def end(self) -> inference_pb2.ChoiceFinished:
        (response,) = self.events("choice_finished")
        return response.choice_finished

    def usage(self) -> inference_pb2.Usage:
        (response,) = self.events("request_finished")
        return response.request_finished.usage

    def moves(self) -> list[inference_pb2.Started]:
        """What the client was told of engines that the request moved to."""
        return [response.started for response in self.events("started") if response.started.reason]

    # Between processor and engine

    def stream(self, engine: str = "engine-0") -> AttachStream:
        """The processor's stream."""
        return self.engines[engine].streams["processor"]

    def sent_submits(self) -> list[engine_pb2.Submit]:
        """What the processor wrote and nobody has read."""
        frames = [engine_pb2.AttachRequest.FromString(data) for data in self.stream().commands]
        return [command.submit for frame in frames for command in frame.commands if command.HasField("submit")]

    def engine_says(self, engine: str = "engine-0", **frame: object) -> None:
        stream, response = self.stream(engine), engine_pb2.AttachResponse(**frame)  # type: ignore[arg-type]
        self.link_events.engine_frame(stream, stream.engine.me, response)  # type: ignore[arg-type]

    def engine_rejects(self, call: Request, code: Code, epoch: int | None = None) -> None:
        """``epoch``: of what it rejects, if not the present one."""
        rejection = link_pb2.Rejection(request_id=call.request_id, epoch=epoch or call.delivery.epoch)
        rejection.status.code, rejection.status.message = code, "full"
        self.engine_says(next(iter(self.engines)), rejections=[rejection])
