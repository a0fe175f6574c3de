"""The life of a server: where it listens, and what health and reflection tell of it."""

import asyncio
import socket

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from ringline.inference.v1 import inference_pb2, inference_pb2_grpc

from services.common.config.errors import FatalError
from services.common.config.settings import ServerSettings
from services.common.links.channels import Endpoint, check_health, wait_serving
from services.common.rpc.health import LIVENESS
from services.common.rpc.server import Server
from services.ring.errors import Reason
from tests.ports import HeldPort
from tests.services.common.rpc.inference_server import SECONDS, SERVICE, Inference, details_of, serving
from tests.waiting import until


async def test_health_follows_the_service_and_ends_with_it():
    async with serving() as (server, channel, _):
        assert await check_health(channel, seconds=SECONDS) == "NOT_SERVING"
        waiting = asyncio.create_task(wait_serving(Endpoint(server.address)))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        await server.set_serving(True)
        await asyncio.wait_for(waiting, 30)
        assert await check_health(channel, SERVICE, SECONDS) == "SERVING"
        assert await check_health(channel, "no.such.Service", SECONDS) == "SERVICE_UNKNOWN"
    async with Endpoint(server.address).open() as channel:
        assert await check_health(channel, seconds=0.5) == "UNREACHABLE"


async def test_a_server_that_is_waited_for_is_seen_however_long_its_channel_would_pause(monkeypatch):
    """gRPC pauses longer after each attempt that fails, and an engine binds seconds after its start."""
    pauses = [("grpc.initial_reconnect_backoff_ms", 600_000), ("grpc.max_reconnect_backoff_ms", 600_000)]
    monkeypatch.setattr("services.common.links.channels.channel_options", lambda _: pauses)
    port = HeldPort()
    waiting = asyncio.create_task(wait_serving(Endpoint(f"127.0.0.1:{port.number}")))
    await asyncio.sleep(0.2)  # some attempts fail
    async with serving(ServerSettings(port=port.number)) as (server, _, _):
        await server.set_serving(True)
        await asyncio.wait_for(waiting, 30)
    port.release()


async def test_reflection_names_the_services():
    async with serving() as (_, channel, _):
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        call = stub.ServerReflectionInfo(iter([reflection_pb2.ServerReflectionRequest(list_services="")]))
        answer = await call.read()
        names = {service.name for service in answer.list_services_response.service}
        assert names == {SERVICE, "grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"}


@pytest.mark.parametrize("host", ["203.0.113.1", "no-such-host.invalid"])
async def test_a_host_that_is_not_this_machine_is_refused_in_words(host):
    with pytest.raises(FatalError, match="with --host"):
        await Server(ServerSettings(host=host), []).start()


async def test_two_servers_cannot_share_a_port_or_a_socket(tmp_path):
    path = str(tmp_path / "s")
    async with serving(ServerSettings(uds=path)) as (server, channel, _):
        for settings, words in (
            (ServerSettings(uds=path), "is in use"),
            (ServerSettings(uds=f"{path}/no/s"), "no dir"),
        ):
            with pytest.raises(FatalError, match=words):
                await Server(settings, []).start()
        assert await check_health(channel, seconds=SECONDS) == "NOT_SERVING"
        assert server.address == f"unix:{path}"
    assert list(tmp_path.iterdir()) == []


async def health_of(address):
    async with Endpoint(address).open() as channel:
        return await check_health(channel, seconds=SECONDS)


async def test_servers_share_a_port_until_one_drains(tmp_path):
    """It finishes its calls; connections that come meanwhile are the other's."""
    shared = ServerSettings(share_port=True, uds=str(tmp_path / "first"))
    first, done = Server(shared, [SERVICE]), asyncio.Event()
    servicer = Inference()
    inference_pb2_grpc.add_InferenceServiceServicer_to_server(servicer, first.grpc)
    running = asyncio.create_task(first.run(asyncio.Event().wait, lambda grace: done.wait()))
    await until(lambda: not first.address.endswith(":0"))
    port = int(first.address.rpartition(":")[2])
    with pytest.raises(FatalError, match="is in use"):
        await Server(ServerSettings(port=port), []).start()
    other = ServerSettings(port=port, share_port=True, uds=str(tmp_path / "second"))
    async with serving(other) as (second, _, _), Endpoint(f"unix:{shared.uds}").open() as own:
        await second.set_serving(True)
        seen = set()
        while len(seen) < 2:
            seen.add(await health_of(first.address))
        assert [await health_of(f"unix:{each.uds}") for each in (shared, other)] == ["NOT_SERVING", "SERVING"]
        session = inference_pb2_grpc.InferenceServiceStub(own).Session()
        await session.write(inference_pb2.SessionRequest())
        await session.read()
        first.drain.begin()
        await until(lambda: not list(tmp_path.glob("first")))
        assert {await health_of(first.address) for _ in range(20)} == {"SERVING"}
        await session.write(inference_pb2.SessionRequest())
        assert await session.read() == inference_pb2.SessionResponse()
        done.set()
        assert await asyncio.wait_for(running, SECONDS) == 0


async def test_the_socket_of_a_dead_process_is_taken_over_but_a_file_is_not(tmp_path):
    stale, file = tmp_path / "stale", tmp_path / "file"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(stale))
    file.write_text("precious")
    async with serving(ServerSettings(uds=str(stale))) as (_, channel, _):
        assert await check_health(channel, seconds=SECONDS) == "NOT_SERVING"
    with pytest.raises(FatalError, match="is not a socket"):
        await Server(ServerSettings(uds=str(file)), []).start()
    assert file.read_text() == "precious"


async def test_a_process_is_alive_from_its_first_moment_through_its_drain_until_it_hangs():
    async with serving() as (server, channel, _):
        watch = health_pb2_grpc.HealthStub(channel).Watch(
            health_pb2.HealthCheckRequest(service=LIVENESS), timeout=SECONDS
        )

        async def health():
            pages = [(page.status(), page.body()) for page in server.health.pages.values()]
            return await check_health(channel, seconds=SECONDS), await check_health(channel, LIVENESS, SECONDS), *pages

        good, bad = (200, b"SERVING\n"), (503, b"NOT_SERVING\n")
        assert await health() == ("NOT_SERVING", "SERVING", bad, good)
        await server.set_serving(True)
        assert await health() == ("SERVING", "SERVING", good, good)
        await server.health.drain()
        await server.set_serving(True)
        assert await health() == ("NOT_SERVING", "SERVING", bad, good)
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
        await server.health.set_hung()
        assert await health() == ("NOT_SERVING", "NOT_SERVING", bad, bad)
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING


async def test_health_keeps_no_name_that_no_service_has():
    async with serving() as (_, channel, _):
        stub = health_pb2_grpc.HealthStub(channel)
        request = health_pb2.HealthCheckRequest(service="x" * 1000)
        for call in (stub.Check(request, timeout=30), stub.Watch(request, timeout=30).read()):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert details_of(caught.value) == (Reason.INVALID_FIELD, "service")
