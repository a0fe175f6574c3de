"""A server with a service that answers, refuses and breaks."""

import asyncio
from contextlib import asynccontextmanager

import grpc
import pytest
from ringline.inference.v1 import inference_pb2, inference_pb2_grpc

from services.common.config.settings import ServerSettings
from services.common.links.channels import Endpoint
from services.common.rpc.server import Server
from tests.services.in_process import status_of

SERVICE = "ringline.inference.v1.InferenceService"
SECONDS = 60.0
"""For which whoever asks for health waits: a server may stand still for a while."""


class Inference(inference_pb2_grpc.InferenceServiceServicer):
    """Answers, refuses and breaks, in both ways that a handler can be written."""

    def __init__(self):
        self.seen = []
        self.closed = asyncio.Event()

    async def Tokenize(self, request, context):
        if request.text == "break":
            raise KeyError("a secret")
        if request.text == "refuse":
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "not now")
        if request.text == "refuse twice":
            with pytest.raises(grpc.aio.AbortError):
                await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "not now")
            await context.abort(grpc.StatusCode.UNKNOWN, "once more")
        if request.text == "refuse and break":
            with pytest.raises(grpc.aio.AbortError):
                await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "not now")
            raise KeyError("a secret")
        return inference_pb2.TokenizeResponse(rendered=request.text)

    async def Generate(self, request, context):
        if request.request_id == "on and on":
            task = asyncio.current_task()
            try:
                while True:
                    yield inference_pb2.GenerateResponse(request_id="x" * (1 << 20))
            finally:
                self.seen.append("in its own task" if asyncio.current_task() is task else "later")
                self.closed.set()
        yield inference_pb2.GenerateResponse(request_id=request.request_id)
        if request.request_id == "break":
            raise KeyError("a secret")

    async def Session(self, request_iterator, context):
        async for request in request_iterator:
            self.seen.append(request.WhichOneof("frame"))
            await context.write(inference_pb2.SessionResponse())


@asynccontextmanager
async def serving(settings=None, authorizers=()):
    """A started server with ``Inference``, and a channel to it."""
    server = Server(settings or ServerSettings(), [SERVICE], authorizers=authorizers)
    servicer = Inference()
    inference_pb2_grpc.add_InferenceServiceServicer_to_server(servicer, server.grpc)
    await server.start()
    try:
        async with Endpoint(server.address).open() as channel:
            yield server, channel, servicer
    finally:
        await server.stop()


def details_of(error):
    """The reason, and the field that is to blame."""
    status = status_of(error)
    return status.reason, status.field
