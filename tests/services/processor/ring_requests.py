"""One request in a ring of one process: how tests ask for it, and look at what came of it."""

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


def begin(world: RingSimulation, max_tokens: int = 20, tokens: int = 1) -> Request:
    """A request in flight that has a few tokens, as many more as a step computes."""
    call = world.ask(ask(max_tokens))
    world.flow(tokens)
    world.flow(tokens)
    return call


def route_of(call: Request) -> Route:
    assert call.route is not None
    return call.route


def engine_says(world: RingSimulation, engine: str = "engine-0", **frame: object) -> None:
    """A frame that an engine writes to the processor."""
    stream = processors_stream(world, engine)
    response = engine_pb2.AttachResponse(**frame)  # type: ignore[arg-type]
    world.link_events.engine_frame(stream, stream.engine.me, response)  # type: ignore[arg-type]


def engine_rejects(world: RingSimulation, call: Request, code: Code, epoch: int | None = None) -> None:
    """``epoch``: of what it rejects, if not the present one."""
    rejection = link_pb2.Rejection(request_id=call.request_id, epoch=epoch or call.delivery.epoch)
    rejection.status.code, rejection.status.message = code, "full"
    engine_says(world, next(iter(world.engines)), rejections=[rejection])


def expected(count: int, choice: int = 0) -> list[int]:
    ids = [token_at(SEED, choice, position) for position in range(count)]
    assert EOS not in ids
    return ids


def settle(world: RingSimulation, rounds: int = 30) -> None:
    for _ in range(rounds):
        world.flow()
        world.client_reads()


def events(world: RingSimulation, kind: str) -> list[inference_pb2.GenerateResponse]:
    world.client_reads()
    return [response for response in world.received if response.WhichOneof("event") == kind]


def ids(world: RingSimulation, choice: int = 0) -> list[int]:
    deltas = [response.delta for response in events(world, "delta")]
    return [token for delta in deltas if delta.choice == choice for token in delta.token_ids]


def end(world: RingSimulation) -> inference_pb2.ChoiceFinished:
    (response,) = events(world, "choice_finished")
    return response.choice_finished


def usage(world: RingSimulation) -> inference_pb2.Usage:
    (response,) = events(world, "request_finished")
    return response.request_finished.usage


def moves(world: RingSimulation) -> list[inference_pb2.Started]:
    """What the client was told of engines that the request moved to."""
    return [response.started for response in events(world, "started") if response.started.reason]


def processors_stream(world: RingSimulation, engine: str = "engine-0") -> AttachStream:
    return world.engines[engine].streams["processor"]


def sent_submits(world: RingSimulation) -> list[engine_pb2.Submit]:
    """What the processor wrote and nobody has read."""
    frames = [engine_pb2.AttachRequest.FromString(data) for data in processors_stream(world).commands]
    return [command.submit for frame in frames for command in frame.commands if command.HasField("submit")]
