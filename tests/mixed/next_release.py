"""The services of a made-up next release: ``python -m tests.mixed.next_release engine …``, in a tree with its protos.

It speaks one version more and can do one thing more. Every message between its services, and from its processors to
clients, has all fields that version 1 has not, and sessions bring events that version 1 does not know.
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
"""What only the next release can do."""


def main() -> None:
    """Run the command line as the next release's."""
    identity.MAX_VERSION += 1  # before other modules import these
    identity.ENGINE_CAPABILITIES = (*identity.ENGINE_CAPABILITIES, CAPABILITY)  # type: ignore[assignment]
    server = grpc.aio.server
    grpc.aio.server = lambda *given, interceptors=(), **options: server(
        *given, interceptors=[_GrowingAnswers(), *interceptors], **options
    )
    from services import cli

    for stub in (engine_pb2_grpc.EngineServiceStub, detokenizer_pb2_grpc.DetokenizerServiceStub):
        stub.__init__ = _sending_grown(stub.__init__)  # type: ignore[method-assign]
    cli.main()


def grown(message: Message) -> bytes:
    """The message on the wire as the next release sends it."""
    message = _with_unknown_events(message) if isinstance(message, inference_pb2.SessionResponse) else _copy(message)
    fill(message, _version_1())
    if isinstance(message, engine_pb2.AttachRequest):
        for command in message.commands:
            if command.submit.output_context:
                context = detokenizer_pb2.OutputContext.FromString(command.submit.output_context)
                fill(context, _version_1())
                command.submit.output_context = context.SerializeToString()
    return bytes(message.SerializeToString())


def _with_unknown_events(message: inference_pb2.SessionResponse) -> inference_pb2.SessionResponse:
    """The message with an event of the next version before each delta."""
    responses = []
    for response in message.responses:
        if response.HasField("delta"):
            unknown = inference_pb2.GenerateResponse(request_id=response.request_id)
            unknown.embedding.values.append(0.5)  # type: ignore[attr-defined]
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


class _GrowingAnswers(grpc.aio.ServerInterceptor):
    """What a server answers is that of the next release, whether its handlers serialize it or gRPC does."""

    async def intercept_service(self, continuation: Callable[..., Any], handler_call_details: Any) -> Any:
        handler, answer = await continuation(handler_call_details), _answers().get(handler_call_details.method)
        if handler is None or answer is None:
            return handler

        def serialize(message: Message | bytes) -> bytes:
            return grown(answer.FromString(message) if isinstance(message, bytes) else message)

        return handler._replace(response_serializer=serialize)


@cache
def _answers() -> dict[str, type[Message]]:
    """By RPC, as gRPC calls it."""
    return {
        f"/{service.full_name}/{method.name}": message_factory.GetMessageClass(method.output_type)
        for file in (engine_pb2, detokenizer_pb2, inference_pb2)
        for service in file.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    }


def _sending_grown(init: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
    return lambda stub, channel: init(stub, _GrowingChannel(channel))


class _GrowingChannel:
    """A channel that sends messages of the next release."""

    def __init__(self, channel: Any) -> None:
        self._channel = channel

    def __getattr__(self, name: str) -> Callable[..., Any]:
        make: Callable[..., Any] = getattr(self._channel, name)

        def call(method: str, request_serializer: object = None, **options: Any) -> Any:
            return make(method, request_serializer=grown, **options)

        return call


@cache
def _version_1() -> DescriptorPool:
    return pool_of(PROTOS / "baseline.binpb")


if __name__ == "__main__":
    main()
