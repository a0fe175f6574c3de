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
            started = []
            for command in request.commands:
                if command.HasField("done"):
                    self.done.append((command.done.request_id, command.done.epoch))
                elif len(self.submits) in self.reject:
                    self.submits.append(command.submit)
                    rejection = link_pb2.Rejection(request_id=command.submit.request_id, epoch=1)
                    rejection.status.message = "queue is full"
                    await frames.put(pb.AttachResponse(rejections=[rejection]))
                else:
                    self.submits.append(command.submit)
                    started.append(command.submit)
            if started:
                asyncio.create_task(self._generate(started, frames))  # noqa: RUF006 (ends with the test)

    async def _generate(self, submits: list[pb.Submit], frames) -> None:
        """All of them together, two tokens a step; a request's end comes with its last tokens."""
        position = 0
        while live := [submit for submit in submits if submit.max_tokens > position]:
            outputs = pb.StepOutputs()
            if position == 0:
                outputs.opened.extend(pb.Opened(request_id=submit.request_id, epoch=1) for submit in live)
            for submit in live:
                count = min(2, submit.max_tokens - position)
                outputs.request_ids.append(submit.request_id)
                outputs.epochs.append(1)
                outputs.choices.append(0)
                outputs.first_positions.append(position)
                outputs.token_counts.append(count)
                outputs.token_ids.extend([7] * count)
                if position + count == submit.max_tokens:
                    cause = output_pb2.FINISH_REASON_LENGTH
                    outputs.finished.add(
                        request_id=submit.request_id, epoch=1, position=position + count, finish_reason=cause
                    )
            await frames.put(pb.AttachResponse(outputs=outputs, load=pb.Load(steps=position)))
            position += 2
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
