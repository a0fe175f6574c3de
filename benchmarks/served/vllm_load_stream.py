"""Load on vLLM's gRPC engine: token ids, one call per request. Runs in the peers' interpreter."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from typing import Any

import grpc
from ringline.channel import RING_OPTIONS
from smg_grpc_proto import vllm_engine_pb2 as pb
from smg_grpc_proto import vllm_engine_pb2_grpc as rpc

from benchmarks.served.per_request_load_stream import UNKNOWN_TARGET, PerRequestLoadStream
from services.cli.bench.load_stream import Target


class VllmLoadStream(PerRequestLoadStream):
    """Sends one call per request to vLLM's engine. Requests are greedy and ignore eos."""

    def __init__(self, address: str) -> None:
        super().__init__()
        self._address = address
        self._prepared: list[Any] = []

    def prepare(self, prompts: Sequence[Sequence[int]], output_len: int) -> None:
        sampling = pb.SamplingParams(
            temperature=0.0, top_p=1.0, repetition_penalty=1.0, n=1, max_tokens=output_len, ignore_eos=True
        )
        self._prepared = [
            pb.GenerateRequest(
                request_id=uuid.uuid4().hex,
                tokenized=pb.TokenizedInput(input_ids=prompt),
                sampling_params=sampling,
                stream=True,
            )
            for prompt in prompts
        ]

    async def _connect(self) -> Target:
        self._channel = grpc.aio.insecure_channel(self._address, options=RING_OPTIONS)
        self._stub = rpc.VllmEngineStub(self._channel)
        return UNKNOWN_TARGET

    async def _disconnect(self) -> None:
        await self._channel.close()

    async def _request(self, number: int) -> None:
        position = 0
        async for answer in self._stub.Generate(self._prepared[number]):
            now = time.perf_counter()
            if self.listener is not None and answer.HasField("chunk"):
                count = len(answer.chunk.token_ids)
                self.listener.on_tokens(number, position, count, now)
                position += count
        if self.listener is not None:
            self.listener.on_finished(number, time.perf_counter(), None)
