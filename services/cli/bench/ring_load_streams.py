"""Load on a service of the ring: on a processor over one Session, or on an engine alone over Attach."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import grpc
from ringline.channel import CHANNEL_OPTIONS
from ringline.engine.v1 import engine_pb2
from ringline.engine.v1.engine_pb2_grpc import EngineServiceStub
from ringline.inference.v1 import inference_pb2
from ringline.inference.v1.inference_pb2_grpc import InferenceServiceStub
from ringline.types.v1 import output_pb2, sampling_pb2

from services.cli.bench.load_stream import LoadError, LoadStream, Target
from services.common.process.run import new_incarnation
from services.common.rpc.shared_messages import hello_message
from services.common.security.credentials import PLAINTEXT, PeerCredentials
from services.ring.identity import PeerId, ring_id

if TYPE_CHECKING:  # a stub is one class at run time
    from ringline.engine.v1.engine_pb2_grpc import EngineServiceAsyncStub
    from ringline.inference.v1.inference_pb2_grpc import InferenceServiceAsyncStub

_FINISH_TIMEOUT = 5.0
"""Seconds to wait for the engine to read the last Done."""


class RingLoadStream(LoadStream):
    """Has its own channel; requests are greedy and ignore eos."""

    def __init__(self, address: str, credentials: PeerCredentials = PLAINTEXT, server_name: str | None = None) -> None:
        """``server_name``: the name in the server's certificate, if it is not the host of ``address``."""
        super().__init__()
        self._channel = credentials.open(address, server_name, CHANNEL_OPTIONS)

    async def _disconnect(self) -> None:
        await self._channel.close()


class SessionLoadStream(RingLoadStream):
    """Sends requests to a processor, over one Session."""

    def __init__(self, address: str, credentials: PeerCredentials = PLAINTEXT, server_name: str | None = None) -> None:
        super().__init__(address, credentials, server_name)
        self._prepared: list[inference_pb2.SessionRequest] = []
        self._outbox: deque[inference_pb2.SessionRequest] = deque()

    def prepare(self, prompts: Sequence[Sequence[int]], output_len: int) -> None:
        sampling = inference_pb2.SamplingParams(temperature=0.0)
        stopping = inference_pb2.StoppingParams(max_tokens=output_len, ignore_eos=True)
        self._prepared = [
            inference_pb2.SessionRequest(
                generate=inference_pb2.GenerateRequest(
                    request_id=str(number),
                    token_ids=sampling_pb2.TokenIds(ids=prompt),
                    sampling=sampling,
                    stopping=stopping,
                )
            )
            for number, prompt in enumerate(prompts)
        ]

    def send(self, number: int) -> None:
        self._outbox.append(self._prepared[number])
        self._pending.set()

    async def _connect(self) -> Target:
        stub = cast("InferenceServiceAsyncStub", InferenceServiceStub(self._channel))
        models = await stub.ListModels(inference_pb2.ListModelsRequest())
        self._call = stub.Session()
        first = await self._call.read()
        if not isinstance(first, inference_pb2.SessionResponse) or not models.models:
            raise LoadError("the server serves no model")
        model = models.models[0]
        return Target(
            model=model.name,
            vocab_size=model.vocab_size,
            max_model_len=model.max_model_len,
            eos_token_ids=frozenset(model.eos_token_ids),
            max_live_requests=first.limits.max_live_requests or None,
        )

    async def _write(self) -> None:
        while True:
            await self._pending.wait()
            self._pending.clear()
            while self._outbox:
                await self._call.write(self._outbox.popleft())

    async def _read(self) -> None:
        while isinstance(frame := await self._call.read(), inference_pb2.SessionResponse):
            now = time.perf_counter()
            listener = self.listener
            if listener is None:
                continue
            for response in frame.responses:
                if response.HasField("delta"):
                    delta = response.delta
                    listener.on_tokens(int(response.request_id), delta.first_position, len(delta.token_ids), now)
                elif response.HasField("choice_finished"):
                    listener.on_finished(int(response.request_id), now, _problem(response.choice_finished))
                elif response.HasField("refused"):
                    listener.on_finished(int(response.request_id), now, response.refused.status.message)
        raise LoadError("the server ended the session")


class EngineLoadStream(RingLoadStream):
    """Sends token ids to an engine, without processor or detokenizer; outputs come to their submitter."""

    def __init__(self, address: str, credentials: PeerCredentials = PLAINTEXT, server_name: str | None = None) -> None:
        super().__init__(address, credentials, server_name)
        self._incarnation = new_incarnation()
        self._prepared: list[engine_pb2.Command] = []
        self._prepared_before = 0
        self._numbers: dict[str, int] = {}
        self._commands: list[engine_pb2.Command] = []
        self._written = asyncio.Event()
        """Set while no command is waiting to be written."""

    def prepare(self, prompts: Sequence[Sequence[int]], output_len: int) -> None:
        self._prepared_before += len(self._prepared)  # a ring id is used once
        names = [ring_id(self._incarnation, self._prepared_before + number) for number in range(len(prompts))]
        self._numbers = {name: number for number, name in enumerate(names)}
        self._prepared = [
            engine_pb2.Command(submit=_submit(name, prompt, output_len))
            for name, prompt in zip(names, prompts, strict=True)
        ]

    def send(self, number: int) -> None:
        self._queue(self._prepared[number])

    async def _connect(self) -> Target:
        stub = cast("EngineServiceAsyncStub", EngineServiceStub(self._channel))
        model = await stub.GetModel(engine_pb2.GetModelRequest())
        self._call = stub.Attach()
        me = PeerId(f"operator-bench-{self._incarnation}", self._incarnation)
        await self._call.write(engine_pb2.AttachRequest(hello=hello_message(me)))
        first = await self._call.read()
        if not isinstance(first, engine_pb2.AttachResponse) or not first.HasField("welcome"):
            raise LoadError("the engine did not send a Welcome first")
        return Target(
            model=model.model,
            vocab_size=model.vocab_size,
            max_model_len=model.max_model_len,
            eos_token_ids=frozenset(model.eos_token_ids),
            max_live_requests=None,
        )

    async def _finish(self) -> None:
        """Let the engine read the last Done before the stream ends; else its ledger would keep requests as orphans."""
        with contextlib.suppress(TimeoutError, grpc.aio.AioRpcError, asyncio.InvalidStateError):
            async with asyncio.timeout(_FINISH_TIMEOUT):
                await self._written.wait()
                await self._call.done_writing()
                await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)

    def _queue(self, command: engine_pb2.Command) -> None:
        self._commands.append(command)
        self._written.clear()
        self._pending.set()

    async def _write(self) -> None:
        while True:
            await self._pending.wait()
            self._pending.clear()
            commands, self._commands = self._commands, []
            await self._call.write(engine_pb2.AttachRequest(commands=commands))
            if not self._commands:
                self._written.set()

    async def _read(self) -> None:
        while isinstance(frame := await self._call.read(), engine_pb2.AttachResponse):
            now = time.perf_counter()
            if frame.HasField("outputs"):
                self._take_outputs(frame.outputs, now)
            for rejection in frame.rejections:
                self._report_end(rejection.request_id, now, rejection.status.message)
        raise LoadError("the engine ended the stream")

    def _take_outputs(self, outputs: engine_pb2.StepOutputs, now: float) -> None:
        if self.listener is not None:
            for request_id, position, count in zip(
                outputs.request_ids, outputs.first_positions, outputs.token_counts, strict=True
            ):
                if (number := self._numbers.get(request_id)) is not None:
                    self.listener.on_tokens(number, position, count, now)
        for finished in outputs.finished:
            self._queue(engine_pb2.Command(done=engine_pb2.Done(request_id=finished.request_id, epoch=finished.epoch)))
            self._report_end(finished.request_id, now, _problem(finished))

    def _report_end(self, request_id: str, now: float, problem: str | None) -> None:
        if self.listener is not None and request_id in self._numbers:
            self.listener.on_finished(self._numbers[request_id], now, problem)


def _submit(request_id: str, prompt: Sequence[int], output_len: int) -> engine_pb2.Submit:
    sampling = engine_pb2.SamplingParams(
        temperature=0.0,
        top_k=0,
        top_p=1.0,
        min_p=0.0,
        frequency_penalty=0.0,
        presence_penalty=0.0,
        repetition_penalty=1.0,
        seed=0,
        n=1,
    )
    return engine_pb2.Submit(
        request_id=request_id,
        epoch=1,
        prompt_token_ids=prompt,
        sampling=sampling,
        ignore_eos=True,
        max_tokens=output_len,
    )


def _problem(finished: inference_pb2.ChoiceFinished | engine_pb2.Finished) -> str | None:
    """Why a choice or a request did not end with the requested number of tokens; None if it did."""
    if finished.HasField("error"):
        return finished.error.message
    if finished.finish_reason == output_pb2.FINISH_REASON_LENGTH:
        return None
    return output_pb2.FinishReason.Name(finished.finish_reason)
