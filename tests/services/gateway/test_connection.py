"""Clients that send what is no HTTP, too much of it, or too slowly; and those that do not read."""

import asyncio
import itertools
import json
import socket
from contextlib import AsyncExitStack

import grpc
import pytest
from ringline.inference.v1 import inference_pb2, inference_pb2_grpc
from ringline.types.v1 import part_pb2

from services.cli.supervise.gateway_health import gateway_health
from services.gateway.http import connection
from services.gateway.http.http2 import PREFACE
from tests.clients.scripted_server import admitted, delta, started
from tests.services.gateway.http_harness import CHAT, Running, hello, request, running
from tests.waiting import until

GET = b"GET /v1/models HTTP/1.1\r\nhost: x\r\n"
POST = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
STREAM = {**CHAT, "stream": True}
TEXT = "x" * 100_000
SO_RCVBUF = (socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)


async def loud(_request):
    """More text than the system holds for a client, and no end."""
    yield admitted()
    yield started()
    for position in range(200):
        yield delta(position, [7], TEXT, parts=[part_pb2.Part(content=TEXT)])
        await asyncio.sleep(0)
    await asyncio.Event().wait()


@pytest.mark.parametrize(
    ("sent", "status", "code"),
    [
        (b"\x16\x03\x01\x02\x00 a handshake\r\n\r\n", 400, None),
        (b"PRI * HTTP/2.0\r\n\r\nNO\r\n\r\n", 400, None),
        (b"GET / HTTP/3.7\r\nhost: x\r\n\r\n", 400, None),
        (b"GET / HTTP/0.9\r\nhost: x\r\n\r\n", 505, None),
        (b"GET /v1/models HTTP/1.1\r\n\r\n", 400, None),
        (GET + b"host: y\r\n\r\n", 400, None),
        (b"GET /\xff HTTP/1.1\r\nhost: x\r\n\r\n", 400, None),
        (b"CONNECT x:80 HTTP/1.1\r\nhost: x\r\n\r\n", 405, "method_not_allowed"),
        (GET + b"x : y\r\n\r\n", 400, None),
        (GET + b"x: \x00\r\n\r\n", 400, None),
        (GET + b"x: " + b"y" * (64 << 10) + b"\r\n\r\n", 431, "headers_too_large"),
        (GET + b"x: y\r\n" * 300 + b"\r\n", 431, "headers_too_large"),
        (GET + b"x: " + b"y" * (1 << 20), 431, "headers_too_large"),
        (POST + b"content-length: 3\r\ntransfer-encoding: chunked\r\n\r\n", 400, None),
        (POST + b"content-length: -1\r\n\r\n", 400, None),
        (POST + b"content-length: 1\r\ncontent-length: 2\r\n\r\n", 400, None),
        (POST + b"transfer-encoding: gzip, chunked\r\n\r\n", 501, None),
        (POST + b"transfer-encoding: chunked\r\n\r\nzz\r\n", 400, None),
        (POST + b"transfer-encoding: chunked\r\n\r\n1\r\n{\r\n0\r\n" + b"x: y\r\n" * 300, 431, "headers_too_large"),
    ],
    ids=itertools.count(),
)
async def test_what_is_no_request_is_refused_and_the_connection_ends(gateway: Running, sent, status, code) -> None:
    async with gateway.connection() as one:
        one.send(sent)
        reply = await one.reply()
        assert (reply.status, reply.error["type"], reply.error["code"]) == (
            status,
            "server_error" if status > 500 else "invalid_request_error",
            code,
        )
        assert reply.headers["connection"] == "close"
        assert reply.headers["x-request-id"]
        assert await one.ended() == b""
    assert (await gateway.ask("GET", "/v1/models")).status == 200


async def test_a_grpc_client_is_told_which_port_it_wants(gateway: Running) -> None:
    async with grpc.aio.insecure_channel(gateway.address) as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        for _ in range(2):
            with pytest.raises(grpc.aio.AioRpcError, match="gRPC clients connect to the processor's port") as caught:
                await stub.ListModels(inference_pb2.ListModelsRequest(), timeout=20)
            assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert (await gateway.ask("GET", "/v1/models")).status == 200


@pytest.mark.parametrize("size", [1, 7, 24, 1000])
async def test_http_2_is_refused_in_http_2_however_it_arrives(gateway: Running, size: int) -> None:
    settings, window = b"\0\0\6\4\0\0\0\0\0" + b"\0\3\0\0\0d", b"\0\0\4\x08\0\0\0\0\0" + b"\0\0\1\0"
    sent = settings + window + b"\0\0\1\1\5\0\0\0\1\x82"
    async with gateway.connection() as one:
        one.send(PREFACE)
        for start in range(0, len(sent), size):
            one.send(sent[start : start + size])
            await asyncio.sleep(0.001)
        answer = await one.ended()
        assert answer.startswith(b"\0\0\0\4")
        assert answer.count(b"this port speaks HTTP/1.1") == 2
        assert b"grpc-status" in answer


async def test_frames_of_http_2_that_are_too_large_end_the_connection(gateway: Running) -> None:
    async with gateway.connection() as one:
        one.send(PREFACE + b"\xff\xff\xff\4\0\0\0\0\0")
        assert b"this port speaks HTTP/1.1" in await one.ended()


@pytest.mark.parametrize("protocol", ["h2c", "websocket"])
async def test_a_request_for_another_protocol_is_answered_in_this_one(gateway: Running, protocol) -> None:
    """With its body: Java's clients ask for HTTP/2 with each POST."""
    upgrade = {"connection": "Upgrade, HTTP2-Settings", "upgrade": protocol, "http2-settings": "AAMAAABk"}
    async with gateway.connection() as one:
        for _ in range(2):
            sent = request("POST", "/v1/chat/completions", CHAT, upgrade)
            one.send(sent[:-10])
            await asyncio.sleep(0.01)
            one.send(sent[-10:])
            reply = await one.reply()
            assert json.loads(reply.body)["choices"][0]["message"]["content"] == "Hello, world"


async def test_http_1_0_gets_no_chunks(gateway: Running) -> None:
    reply = await gateway.ask("POST", "/v1/chat/completions", STREAM, version="1.0")
    assert "transfer-encoding" not in reply.headers
    assert reply.headers["connection"] == "close"
    assert reply.body.startswith(b"data: {")
    assert reply.body.endswith(b"data: [DONE]\n\n")


async def test_requests_on_one_connection_are_answered_in_turn_and_only_so_many_wait(gateway: Running) -> None:
    async with gateway.connection() as one:
        one.send(
            request("GET", "/v1/models"), request("GET", "/nothing"), request("POST", "/v1/chat/completions", CHAT)
        )
        assert [(await one.reply()).status for _ in range(3)] == [200, 404, 200]
        one.send(request("GET", "/v1/models") * 100)
        replies = [await one.reply() for _ in range(1 + connection._MAX_PIPELINED)]
        assert {reply.status for reply in replies} == {200}
        assert replies[-1].headers["connection"] == "close"
        assert await one.ended() == b""


async def test_garbage_after_a_request_leaves_its_answer_alone(gateway: Running) -> None:
    async with gateway.connection() as one:
        one.send(request("POST", "/v1/chat/completions", STREAM), b"\x00 garbage \r\n\r\n")
        reply = await one.reply()
        assert reply.status == 200
        assert reply.body.endswith(b"data: [DONE]\n\n")
        assert await one.ended() == b""


async def test_a_body_that_breaks_off_ends_its_request(gateway: Running) -> None:
    async with gateway.connection() as one:
        one.send(request("POST", "/v1/chat/completions", CHAT)[:-5])
        await until(lambda: gateway.process.load.num_requests == 1)
    await until(lambda: gateway.process.load.num_requests == 0)
    assert not gateway.processor.service.requests


@pytest.mark.parametrize("version", ["1.0", "1.1"])
@pytest.mark.parametrize("body", [CHAT, STREAM], ids=["whole", "stream"])
async def test_a_client_that_ends_its_side_gets_its_answers(gateway: Running, body, version) -> None:
    may_answer = asyncio.Event()

    async def late(asked):
        await may_answer.wait()
        async for response in hello(asked):
            yield response

    gateway.processor.plays(late)
    async with gateway.connection() as one:
        one.send(request("POST", "/v1/chat/completions", body, version=version))
        if version == "1.1":
            one.send(request("GET", "/nothing"))
        one.writer.write_eof()
        await gateway.processor.service.asked.wait()
        await asyncio.sleep(2 * connection._RESET_SECONDS)
        may_answer.set()
        reply = await one.reply()
        while reply.status == 100:
            reply = await one.reply()
        assert (reply.status, b"ld" in reply.body) == (200, True)
        if version == "1.1":
            assert (await one.reply()).status == 404
        assert await one.ended() == b""


async def test_expect_100_continue(gateway: Running) -> None:
    async with gateway.connection() as one:
        sent = request("POST", "/v1/chat/completions", CHAT, {"expect": "100-continue"})
        head, _, body = sent.partition(b"\r\n\r\n")
        one.send(head, b"\r\n\r\n")
        assert await one.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        one.send(body)
        assert (await one.reply()).status == 200
        one.send(POST + b"expect: 100-continue\r\ncontent-length: 99999999\r\n\r\n")
        reply = await one.reply()
        assert (reply.status, reply.error["code"]) == (413, "too_large")
        assert await one.ended() == b""


async def test_slow_heads_and_bodies_and_idle_connections_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "HEAD_SECONDS", 0.2)
    monkeypatch.setattr(connection, "_REST_SECONDS", 0.2)
    monkeypatch.setattr("services.gateway.http.body.BODY_SECONDS", 0.2)
    monkeypatch.setattr("services.gateway.http.server._SWEEP_SECONDS", 0.05)
    async with running(connection_idle_timeout=0.2) as gateway:

        async def send(data: bytes) -> bytes:
            async with gateway.connection() as one:
                one.send(data)
                return await one.ended()

        head, blank, body, idle, unused = await asyncio.gather(
            send(GET),
            send(b"\r\n"),
            send(POST + b"content-length: 100\r\n\r\n{"),
            send(b""),
            send(POST + b"content-length: 99999999\r\n\r\n{"),
        )
        assert head.startswith(b"HTTP/1.1 408 ")
        assert blank.startswith(b"HTTP/1.1 408 ")
        assert body.startswith(b"HTTP/1.1 408 ")
        assert idle == b""
        assert unused.startswith(b"HTTP/1.1 413 ")
        await until(lambda: gateway.process.server.num_connections == 0)


async def test_gateways_share_a_port_until_one_leaves_it(tmp_path) -> None:
    paths = [str(tmp_path / name) for name in "ab"]
    async with running(share_port=True, uds=paths[0]) as first:
        port = int(first.address.rpartition(":")[2])
        async with running(share_port=True, uds=paths[1], port=port) as second:
            both = [each.process.server for each in (first, second)]
            async with AsyncExitStack() as held:
                while not all(server.num_connections for server in both):
                    await held.enter_async_context(first.connection())
                    await asyncio.sleep(0)
            ask = [asyncio.to_thread(gateway_health, f"unix:{path}", None, None) for path in paths]
            assert await asyncio.gather(*ask) == ["NOT_SERVING"] * 2  # each was asked, and has not looked yet
            both[0].leave_shared_port()
            await until(lambda: not both[0].num_connections)
            assert {(await first.ask("GET", "/live")).status for _ in range(20)} == {200}
            assert not both[0].num_connections
            assert await asyncio.to_thread(gateway_health, f"unix:{paths[0]}", None, None) == "UNREACHABLE"


async def test_a_client_that_does_not_read_loses_its_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.gateway.http.server._SWEEP_SECONDS", 0.05)
    async with running(stall_timeout=0.3) as gateway:
        gateway.processor.plays(loud, hello)
        async with gateway.connection() as one:
            one.writer.get_extra_info("socket").setsockopt(*SO_RCVBUF)
            one.send(request("POST", "/v1/chat/completions", {**STREAM, "max_tokens": None}))
            await asyncio.wait_for(gateway.processor.service.cancelled.wait(), 60)
        assert (await gateway.ask("POST", "/v1/chat/completions", STREAM)).body.endswith(b"data: [DONE]\n\n")
