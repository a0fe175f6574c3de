"""An EngineService that plays a script over Attach: two tokens a step for every request, or what a test makes of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
from ringline.engine.v1 import engine_pb2 as pb
from ringline.engine.v1.engine_pb2_grpc import EngineServiceServicer, add_EngineServiceServicer_to_server
from ringline.types.v1 import link_pb2, output_pb2


class ScriptedEngine(EngineServiceServicer):
    def __init__(self) -> None:
        self.hello: link_pb2.Hello | None = None
        self.submits: list[pb.Submit] = []
        self.done: list[tuple[str, int]] = []
        self.reject: set[int] = set()
        """Which submits (counted from 0) are rejected."""

    async def GetModel(self, request, context):
        return pb.GetModelResponse(model="tiny", vocab_size=512, max_model_len=64, eos_token_ids=[100, 101])

    async def Attach(self, request_iterator, context):
        hello = await anext(request_iterator)
        self.hello = hello.hello
        yield pb.AttachResponse(welcome=link_pb2.Welcome(name="engine-0", incarnation=1, version=1))
        frames: asyncio.Queue[pb.AttachResponse] = asyncio.Queue()
        reader = asyncio.create_task(self._read(request_iterator, frames))
        try:
            while True:
                yield await frames.get()
        finally:
            reader.cancel()

    async def _read(self, requests, frames) -> None:
        async for request in requests:
            for command in request.commands:
                submit = command.submit
                if command.HasField("done"):
                    self.done.append((command.done.request_id, command.done.epoch))
                    continue
                self.submits.append(submit)
                if len(self.submits) - 1 in self.reject:
                    rejection = link_pb2.Rejection(request_id=submit.request_id, epoch=1)
                    rejection.status.message = "queue is full"
                    await frames.put(pb.AttachResponse(rejections=[rejection]))
                else:
                    asyncio.create_task(self._generate(submit, frames))  # noqa: RUF006 (ends with the test)

    async def _generate(self, submit: pb.Submit, frames) -> None:
        """Two tokens a step; the end comes with the last tokens."""
        for position in range(0, submit.max_tokens, 2):
            count = min(2, submit.max_tokens - position)
            identity = {"request_id": submit.request_id, "epoch": 1}
            outputs = pb.StepOutputs(
                opened=[pb.Opened(**identity)] if position == 0 else [],
                request_ids=[submit.request_id],
                epochs=[1],
                choices=[0],
                first_positions=[position],
                token_counts=[count],
                token_ids=[7] * count,
            )
            if position + count == submit.max_tokens:
                cause = output_pb2.FINISH_REASON_LENGTH
                outputs.finished.add(**identity, position=position + count, finish_reason=cause)
            await frames.put(pb.AttachResponse(outputs=outputs, load=pb.Load(steps=position)))
            await asyncio.sleep(0.001)


@asynccontextmanager
async def serving_engine(engine: ScriptedEngine) -> AsyncIterator[str]:
    """Its address."""
    server = grpc.aio.server()
    add_EngineServiceServicer_to_server(engine, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)
