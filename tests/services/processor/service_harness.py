"""The inference service over gRPC in one process, without engines, and what its tests write and read."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import grpc
from ringline.inference.v1 import inference_pb2, inference_pb2_grpc

from services.common.rpc.call_interceptor import CallInterceptor
from services.common.rpc.handlers import rpc_handlers
from services.common.rpc.open_calls import CallRegistry
from services.processor.adapter_control import AdapterControl
from services.processor.admission.backlog import BacklogLimits
from services.processor.admission.tokenization_queue import THREADS
from services.processor.main import DESCRIPTION
from services.processor.service import InferenceService, SessionLimits
from services.ring.outbox import Outboxes
from tests.services.processor.model_specs import learned, served_model
from tests.services.processor.processor_core import NO_LIMITS, ProcessorCore

T = TypeVar("T")
MAX_LIVE = 3
ENDS = ("refused", "request_finished")
ROOM = 10_000
"""Bytes of one tenant that may wait to be tokenized."""


class ServiceHarness(ProcessorCore):
    """A processor whose engines never answer: requests that it takes wait."""

    def __init__(self, backlog_limits: BacklogLimits = NO_LIMITS, outboxes: Outboxes | None = None) -> None:
        generations = [served_model().generation]
        super().__init__(
            lambda routes: learned(preferred=lambda: generations),
            backlog_limits=backlog_limits,
            max_waiting_bytes=2 * ROOM,
            max_live_requests=MAX_LIVE,
            outboxes=outboxes,
        )
        limits = SessionLimits(
            max_live_requests=MAX_LIVE, max_message_bytes=1 << 24, stall_timeout=600.0, drain_grace=1.0, max_age=600.0
        )
        self.service = InferenceService(
            self.models,
            self.intake,
            self.queue,
            self.pictures,
            self.metrics,
            limits,
            "x-tenant",
            self.policies,
            self.choices,
            AdapterControl(self.models, self.routes.adapters, self.peers, self.policies, enabled=True),
        )
        self.go = threading.Event()

    def occupy_threads(self) -> list[asyncio.Task[object]]:
        """Occupy every thread until ``go``."""
        return [asyncio.create_task(self.queue.run_in_thread(self.go.wait, "", 0)) for _ in range(THREADS)]

    def counted(self) -> dict[tuple[str, str], float]:
        """Ends of choices by reason, refusals by code, as far as there are any."""
        names = ("vllm:request_success_total", "ringline_requests_refused_total")
        return {
            (sample.name, sample.labels.get("finished_reason") or sample.labels["code"]): sample.value
            for family in self.metrics.collect()
            for sample in family.samples
            if sample.name in names and sample.value
        }


@asynccontextmanager
async def served(harness: ServiceHarness, tmp_path: Path) -> AsyncIterator[inference_pb2_grpc.InferenceServiceStub]:
    """A stub of the service."""
    server = grpc.aio.server(interceptors=[CallInterceptor(CallRegistry(1000, 1000), 600.0, lambda *_: None)])
    server.add_generic_rpc_handlers((rpc_handlers(DESCRIPTION, harness.service),))
    server.add_insecure_port(f"unix:{tmp_path}/service.sock")
    await server.start()
    async with grpc.aio.insecure_channel(f"unix:{tmp_path}/service.sock") as channel:
        yield inference_pb2_grpc.InferenceServiceStub(channel)
    await server.stop(0)
    harness.go.set()
    harness.queue.close()


def ask(name: str, text: str = "ab") -> inference_pb2.GenerateRequest:
    return inference_pb2.GenerateRequest(request_id=name, text=text)


async def read_ends(call: grpc.aio.StreamStreamCall, count: int) -> list[inference_pb2.GenerateResponse]:
    """The next so many ends of requests of a session, refusals among them."""
    found: list[inference_pb2.GenerateResponse] = []
    async with asyncio.timeout(20):
        while len(found) < count:
            frame = await call.read()
            found += [response for response in frame.responses if response.WhichOneof("event") in ENDS]
    return found


async def read_into(shown: list[inference_pb2.GenerateResponse], call: grpc.aio.UnaryStreamCall) -> None:
    """All that a Generate call answers; raises its error."""
    async for response in call:
        shown.append(response)  # noqa: PERF401  # also when it fails


async def read_to_the_end(call: grpc.aio.UnaryStreamCall | grpc.aio.StreamStreamCall) -> None:
    """Take everything; raises what the call ends with."""
    async with asyncio.timeout(20):
        while await call.read() is not grpc.aio.EOF:
            pass
