"""The services of a simulated next release: ``python -m tests.mixed.next_release engine …``, in a tree with its protos.

They speak one more version and have one more capability. They fill all fields that the present release lacks in every
message to each other and to clients, and send events in Sessions that it does not know.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import grpc
from google.protobuf import message_factory
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import Message
from ringline.detokenizer.v1 import detokenizer_pb2, detokenizer_pb2_grpc
from ringline.engine.v1 import engine_pb2, engine_pb2_grpc
from ringline.inference.v1 import inference_pb2

from services.ring import identity
from tests.contract.later import PROTOS, fill, pool_of

CAPABILITY = "constraint.regex"
"""Only the next release has it."""


def main() -> None:
    """Patch this tree's services into the next release's, and run their command line."""
    identity.MAX_VERSION += 1  # before other modules import it
    identity.ENGINE_CAPABILITIES = (*identity.ENGINE_CAPABILITIES, CAPABILITY)  # type: ignore[assignment]
    server = grpc.aio.server
    grpc.aio.server = lambda *given, interceptors=(), **options: server(
        *given, interceptors=[_LaterAnswers(), *interceptors], **options
    )
    from services.cli import main as cli

    for stub in (engine_pb2_grpc.EngineServiceStub, detokenizer_pb2_grpc.DetokenizerServiceStub):
        init = stub.__init__
        stub.__init__ = lambda made, channel, init=init: init(made, _LaterChannel(channel))  # type: ignore[method-assign]
    cli.main()


def with_later_fields(message: Message) -> bytes:
    """Serialize a message with all fields that the present release lacks."""
    message = _with_unknown_events(message) if isinstance(message, inference_pb2.SessionResponse) else _copy(message)
    fill(message, _present())
    if isinstance(message, engine_pb2.AttachRequest):
        for command in message.commands:
            if command.submit.output_context:
                context = detokenizer_pb2.OutputContext.FromString(command.submit.output_context)
                fill(context, _present())
                command.submit.output_context = context.SerializeToString()
    return bytes(message.SerializeToString())


def _with_unknown_events(message: inference_pb2.SessionResponse) -> inference_pb2.SessionResponse:
    """Insert an event that the present release does not know before each delta."""
    responses = []
    for response in message.responses:
        if response.HasField("delta"):
            unknown = inference_pb2.GenerateResponse(request_id=response.request_id)
            unknown.preempted.choices = 1  # type: ignore[attr-defined]
            responses.append(unknown)
        responses.append(response)
    copy: inference_pb2.SessionResponse = _copy(message)
    del copy.responses[:]
    copy.responses.extend(responses)
    return copy


def _copy(message: Any) -> Any:
    copy = type(message)()
    copy.CopyFrom(message)
    return copy


class _LaterAnswers(grpc.aio.ServerInterceptor):
    """Adds later fields to answers, whether handlers or gRPC serialize them."""

    async def intercept_service(self, continuation: Callable[..., Any], handler_call_details: Any) -> Any:
        handler, answer = await continuation(handler_call_details), _answers().get(handler_call_details.method)
        if handler is None or answer is None:
            return handler

        def serialize(message: Message | bytes) -> bytes:
            return with_later_fields(answer.FromString(message) if isinstance(message, bytes) else message)

        return handler._replace(response_serializer=serialize)


@cache
def _answers() -> dict[str, type[Message]]:
    """Response types by gRPC method path."""
    return {
        f"/{service.full_name}/{method.name}": message_factory.GetMessageClass(method.output_type)
        for file in (engine_pb2, detokenizer_pb2, inference_pb2)
        for service in file.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    }


class _LaterChannel:
    """Adds later fields to requests."""

    def __init__(self, channel: Any) -> None:
        self._channel = channel

    def __getattr__(self, name: str) -> Callable[..., Any]:
        make: Callable[..., Any] = getattr(self._channel, name)

        def call(method: str, request_serializer: object = None, **options: Any) -> Any:
            return make(method, request_serializer=with_later_fields, **options)

        return call


@cache
def _present() -> DescriptorPool:
    return pool_of(PROTOS / "present.binpb")


if __name__ == "__main__":
    main()
