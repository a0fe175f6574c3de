"""Bare stubs of Python and Node, as docs/how-to/channels.md tells them to be: pings, and a service config.

Those of Go are tried the same way by tests/stubs.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from ringline.inference.v1 import inference_pb2, inference_pb2_grpc

from tests.clients.node_programs import compiled_programs
from tests.clients.processor_processes import Processor, Processors
from tests.clients.service_config import service_config
from tests.ring import Ring, running_ring

pytestmark = [
    pytest.mark.doors,
    pytest.mark.skipif(not (shutil.which("node") and shutil.which("npm")), reason="Node and npm are not installed"),
]
SECONDS = 45.0
"""More than three pings of 10 s each: the third one too many ends a connection."""
PINGS_MS = (10_000, 1_000)
ANSWERS = 60


@pytest.fixture(scope="module")
def ring(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ring]:
    with running_ring(tmp_path_factory.mktemp("ring")) as running:
        yield running


@pytest.fixture(scope="module")
def programs() -> Path:
    return compiled_programs()


@pytest.fixture
async def processors(ring: Ring, tmp_path: Path) -> AsyncIterator[Processors]:
    both = Processors(ring, tmp_path)
    await both.start()
    yield both
    both.stop()


# Keepalive


async def node(programs: Path, *arguments: str) -> list[str]:
    """What balanced.ts prints, line by line; it must end well."""
    process = await asyncio.create_subprocess_exec(
        "node",
        str(programs / "balanced.js"),
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    shown, said = await asyncio.wait_for(process.communicate(), 200)
    assert process.returncode == 0, said.decode()
    return shown.decode().splitlines()


@contextlib.asynccontextmanager
async def pinging(address: str, every_ms: int) -> AsyncIterator[grpc.aio.Channel]:
    options = [
        ("grpc.keepalive_time_ms", every_ms),
        ("grpc.keepalive_timeout_ms", 5_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.default_authority", "localhost"),
    ]
    async with grpc.aio.insecure_channel(address, options=options) as channel:
        yield channel


async def stays(call: grpc.aio.UnaryStreamCall | grpc.aio.StreamStreamCall) -> None:
    """Nothing comes for so long, not even an end."""
    await call.read()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(call.read(), SECONDS)
    call.cancel()


async def watches(address: str, every_ms: int) -> None:
    """Every service has health to watch: an idle stream."""
    async with pinging(address, every_ms) as channel:
        await stays(health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest()))


async def holds_session(address: str, every_ms: int) -> None:
    async with pinging(address, every_ms) as channel:
        await stays(inference_pb2_grpc.InferenceServiceStub(channel).Session())


async def test_pings_end_no_stream(ring: Ring, programs: Path, tried: Callable[[str], None]) -> None:
    tried(f"grpcio {grpc.__version__}, @grpc/grpc-js")
    waits: list[Awaitable[object]] = []
    for every_ms in PINGS_MS:
        waits += [watches(address, every_ms) for address in ring.addresses.values()]
        waits += [holds_session(ring.address, every_ms)]
        waits += [node(programs, f"ipv4:{ring.address}", service_config(), "hold", f"{SECONDS:g}", str(every_ms))]
    await asyncio.gather(*waits)


# The service config


async def answers(processors: Processors) -> int:
    """How many short answers came whole. One that breaks off after its first event is begun anew, and no other is."""
    options = [("grpc.service_config", service_config()), ("grpc.enable_http_proxy", 0)]
    count = 0
    async with grpc.aio.insecure_channel(f"ipv4:{','.join(processors.addresses)}", options=options) as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        request = inference_pb2.GenerateRequest(text="Once upon a time", stopping={"max_tokens": 8, "ignore_eos": True})
        while count < ANSWERS:
            seen: list[str | None] = []
            try:
                async for response in stub.Generate(request, timeout=60):
                    seen.append(response.WhichOneof("event"))  # noqa: PERF401  # also when it fails
            except grpc.aio.AioRpcError:
                assert seen, "it failed before its first event"
            count += seen[-1:] == ["request_finished"]
    return count


async def kill(victim: Processor) -> None:
    victim.kill()


async def drain(victim: Processor) -> None:
    assert await victim.drain() == 0


@pytest.mark.parametrize("end", [kill, drain])
async def test_a_processor_among_two_ends(
    processors: Processors,
    programs: Path,
    end: Callable[[Processor], Awaitable[None]],
    tried: Callable[[str], None],
) -> None:
    tried(f"grpcio {grpc.__version__}, @grpc/grpc-js")
    addresses = f"ipv4:{','.join(processors.addresses)}"
    asked = [
        asyncio.ensure_future(answers(processors)),
        asyncio.ensure_future(node(programs, addresses, service_config(), str(ANSWERS))),
    ]
    victim, other = processors.all
    while victim.look()[1] < 10 * 8:  # it has answered ten, of either
        assert not any(one.done() for one in asked), "they were done before it ended"
        await asyncio.sleep(0.01)
    await end(victim)
    by_python, by_node = await asyncio.gather(*asked)
    assert by_python == len(by_node) == ANSWERS
    assert other.look()[1] >= ANSWERS * 8
