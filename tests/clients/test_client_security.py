"""What a client shows to whom, and what it refuses to send."""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc
import pytest
import ringline
from ringline.inference.v1 import inference_pb2 as pb
from ringline.inference.v1 import inference_pb2_grpc
from ringline.server_pool import ServerPool
from ringline.types.v1 import output_pb2

from services.common.security.certificate_authority import CertificateAuthority
from tests.clients.scripted_server import admitted, delta, ended

HOUR = timedelta(hours=1)
_SECONDS = itertools.count(1)

FINISH = output_pb2.FINISH_REASON_LENGTH


class Mirror(inference_pb2_grpc.InferenceServiceServicer):
    """Tells callers, as the name of its one model, what they showed; streams end when they may."""

    def __init__(self) -> None:
        self.may_end = asyncio.Event()

    async def ListModels(self, request, context):
        shown = dict(context.invocation_metadata()).get("authorization", "nothing")
        (name,) = context.auth_context().get("x509_common_name", [b"nobody"])
        return pb.ListModelsResponse(models=[pb.Model(name=f"{name.decode()} with {shown}")])

    async def Generate(self, request, context):
        yield admitted()
        yield delta(0, [10], "a")
        await self.may_end.wait()
        yield delta(1, [11], "b")
        for end in ended(FINISH, completion=2):
            yield end

    async def Session(self, requests, context):
        yield pb.SessionResponse(limits=pb.SessionLimits(max_live_requests=4))
        async for request in requests:
            async for response in self.Generate(request.generate, context):
                response.request_id = request.generate.request_id
                yield pb.SessionResponse(responses=[response])


def write(folder: Path, authority: CertificateAuthority, name: str) -> None:
    now = datetime.now(UTC)
    issued = authority.issue(name, hosts=["localhost"], uri="spiffe://ringline/client", begin=now, end=now + HOUR)
    # Told apart by their times, which a file system may keep in steps that are longer than what is between two writes.
    written = next(_SECONDS) * 10**9
    for file, content in (("key.pem", issued.key), ("cert.pem", issued.certificate)):
        (folder / file).write_bytes(content)
        os.utime(folder / file, ns=(written, written))


@pytest.mark.parametrize("kind", ["plain", "tls"])
async def test_a_token_is_asked_for_with_each_call(kind: str, tmp_path: Path) -> None:
    authority = CertificateAuthority.make("test", valid=HOUR)
    write(tmp_path, authority, "first")
    pair = [((tmp_path / "key.pem").read_bytes(), (tmp_path / "cert.pem").read_bytes())]
    server = grpc.aio.server()
    inference_pb2_grpc.add_InferenceServiceServicer_to_server(Mirror(), server)
    if kind == "tls":
        credentials = grpc.ssl_server_credentials(pair, authority.certificate, require_client_auth=True)
        port = server.add_secure_port("127.0.0.1:0", credentials)
    else:
        port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    tokens = iter(["one", "two", "three"])
    files = {"ca": authority.certificate, "cert": tmp_path / "cert.pem", "key": tmp_path / "key.pem"}
    options = files if kind == "tls" else {}
    async with ringline.AsyncClient(f"localhost:{port}", token=lambda: next(tokens), timeout=30, **options) as client:
        told = [(await client.models())[0].name for _ in range(2)]
        write(tmp_path, authority, "second")
        told.append((await client.models())[0].name)
    await server.stop(None)
    names = ["first", "first", "second"] if kind == "tls" else ["nobody"] * 3
    assert told == [f"{name} with Bearer {token}" for name, token in zip(names, ("one", "two", "three"), strict=True)]


@pytest.mark.parametrize("kind", ["blocking", "asyncio"])
async def test_streams_outlast_any_number_of_replacements(kind: str, tmp_path: Path) -> None:
    authority, mirror = CertificateAuthority.make("test", valid=HOUR), Mirror()
    write(tmp_path, authority, "first")
    pair = [((tmp_path / "key.pem").read_bytes(), (tmp_path / "cert.pem").read_bytes())]
    server = grpc.aio.server()
    inference_pb2_grpc.add_InferenceServiceServicer_to_server(mirror, server)
    port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials(pair))
    await server.start()
    options = {"ca": authority.certificate, "cert": tmp_path / "cert.pem", "key": tmp_path / "key.pem", "timeout": 60}

    async def asked(client: ringline.AsyncClient) -> tuple[int, ringline.Generation]:
        stream = client.stream("x")
        await anext(aiter(stream))
        for name in ("second", "third", "fourth"):
            write(tmp_path, authority, name)
            await client.models()
        open_now = len(client._connected.connections())
        mirror.may_end.set()
        return open_now, await stream.result()

    def asked_blocking() -> tuple[int, ringline.Generation]:
        with ringline.Client(f"localhost:{port}", **options) as client:
            stream = client.stream("x")
            next(stream)
            for name in ("second", "third", "fourth"):
                write(tmp_path, authority, name)
                client.models()
            open_now = len(client._pool.connections())
            loop.call_soon_threadsafe(mirror.may_end.set)
            return open_now, stream.result()

    loop = asyncio.get_running_loop()
    if kind == "blocking":
        open_now, answer = await asyncio.to_thread(asked_blocking)
    else:
        async with ringline.AsyncClient(f"localhost:{port}", **options) as client:
            open_now, answer = await asked(client)
    await server.stop(None)
    assert (answer.text, answer.resumed) == ("ab", 0)
    assert open_now == 3, "the stream's, that of the last call but one, which is idle, and the new one"


def test_a_connection_that_was_replaced_is_closed_when_nobody_uses_it() -> None:
    class Call:
        pass

    stamps, made, closed = iter(range(100)), iter(range(100)), []
    pool = ServerPool(["a"], lambda _: next(made), stamp=lambda: next(stamps), close=closed.append)
    server = pool.choose()
    with pool.using(server) as used:
        call = used.keep(Call())
        pool.choose()
        pool.choose()
        assert (used.connection, closed) == (1, [0])
    pool.choose()
    assert closed == [0, 2]
    assert pool.connections() == [4, 1, 3]
    del call
    gc.collect()
    pool.choose()
    assert closed == [0, 2, 1, 3]
    assert pool.connections() == [5, 4]


@pytest.mark.parametrize(
    ("address", "options", "field"),
    [
        ("10.0.0.1:50051", {"token": "t"}, "token"),
        ("localhost:1,dns:///elsewhere:50051", {"token": "t"}, "token"),
        ("localhost:1", {"ca": b"x", "cert": b"x"}, "cert"),
        ("localhost:1", {"ca": b"x", "key": b"x"}, "key"),
        ("localhost:1", {"server_name": "x"}, "server_name"),
        ("localhost:1", {"tls": True, "credentials": grpc.ssl_channel_credentials()}, "credentials"),
        ("localhost:1", {"ca": "no/such/file"}, "ca"),
        ("localhost:1", {"ca": b"-----BEGIN PRIVATE KEY-----"}, "ca"),
    ],
)
def test_what_does_not_go_together_is_refused(address: str, options: dict, field: str) -> None:
    with pytest.raises(ringline.InvalidRequest) as caught:
        ringline.Client(address, **options)
    assert caught.value.field == field


@pytest.mark.parametrize(
    "address", ["127.0.0.1:1", "[::1]:1", "unix:/x.sock", "localhost:1", "ipv4:127.0.0.1:1", "dns:///localhost:1"]
)
def test_a_token_may_stay_on_this_machine(address: str) -> None:
    ringline.Client(address, token="t").close()
