"""What a client shows to whom, and what it refuses to send."""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc
import pytest
import ringline
from ringline.inference.v1 import inference_pb2 as pb
from ringline.inference.v1 import inference_pb2_grpc
from ringline.server_pool import ServerPool

from services.common.security.certificate_authority import CertificateAuthority
from tests.clients.either_client import CLIENTS, answer, connected, first
from tests.clients.scripted_server import admitted, delta, ended
from tests.loopback import DEAD_PROXY

HOUR = timedelta(hours=1)
_SECONDS = itertools.count(1)


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
        for end in ended(completion=2):
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


@asynccontextmanager
async def mirrored(folder: Path, *, tls: bool) -> AsyncIterator[tuple[Mirror, str, CertificateAuthority]]:
    """A server that asks for certificates if it speaks TLS; yields it, its address and the authority."""
    authority, mirror, server = CertificateAuthority.make("test", valid=HOUR), Mirror(), grpc.aio.server()
    inference_pb2_grpc.add_InferenceServiceServicer_to_server(mirror, server)
    write(folder, authority, "first")
    pair = [((folder / "key.pem").read_bytes(), (folder / "cert.pem").read_bytes())]
    credentials = grpc.ssl_server_credentials(pair, authority.certificate, require_client_auth=True)
    address = "127.0.0.1:0"
    port = server.add_secure_port(address, credentials) if tls else server.add_insecure_port(address)
    await server.start()
    try:
        yield mirror, f"localhost:{port}", authority
    finally:
        await server.stop(None)


@pytest.mark.parametrize("tls", [False, True])
async def test_a_token_is_asked_for_with_each_call(tls: bool, tmp_path: Path) -> None:
    tokens = iter(["one", "two", "three"])
    async with mirrored(tmp_path, tls=tls) as (_, address, authority):
        files = {"ca": authority.certificate, "cert": tmp_path / "cert.pem", "key": tmp_path / "key.pem"}
        options = files if tls else {}
        async with ringline.AsyncClient(address, token=lambda: next(tokens), timeout=30, **options) as client:
            told = [(await client.models())[0].name for _ in range(2)]
            write(tmp_path, authority, "second")
            told.append((await client.models())[0].name)
    names = ["first", "first", "second"] if tls else ["nobody"] * 3
    assert told == [f"{name} with Bearer {token}" for name, token in zip(names, ("one", "two", "three"), strict=True)]


@CLIENTS
async def test_streams_outlast_any_number_of_replacements(kind: type, tmp_path: Path) -> None:
    async with mirrored(tmp_path, tls=True) as (mirror, address, authority):
        files = {"ca": authority.certificate, "cert": tmp_path / "cert.pem", "key": tmp_path / "key.pem"}
        async with connected(kind, address, **files, timeout=60) as client:
            stream = client.stream("x")
            await first(stream)
            for name in ("second", "third", "fourth"):
                write(tmp_path, authority, name)
                await answer(client, client.models)
            pool = client._pool if kind is ringline.Client else client._connected
            open_now = len(pool.connections())
            mirror.may_end.set()
            generation = await answer(client, stream.result)
    assert (generation.text, generation.resumed) == ("ab", 0)
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


@CLIENTS
async def test_a_proxy_is_dialled_only_if_asked_for_and_never_for_this_machine(
    kind: type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append((await reader.readline()).split()[:2])
        writer.close()

    proxy = await asyncio.start_server(refuse, "127.0.0.1", 0)
    port = proxy.sockets[0].getsockname()[1]
    for name, value in DEAD_PROXY.items():
        monkeypatch.setenv(name, value.replace(":9", f":{port}").replace("localhost", "other.example"))
    async with proxy, mirrored(tmp_path, tls=False) as (_, address, _):
        for options in ({}, {"proxy": True}):
            async with connected(kind, address, timeout=30, **options) as client:
                await answer(client, client.models)
        assert not asked
        async with connected(kind, "elsewhere.invalid:50051", timeout=30, patience=0, proxy=True) as client:
            with pytest.raises(ringline.Unavailable):
                await answer(client, client.models)
    assert asked[0] == [b"CONNECT", b"elsewhere.invalid:50051"]
