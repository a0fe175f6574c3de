"""What every endpoint has: limits, ids, errors, origins; and what operators ask."""

import asyncio
import itertools
import json
import secrets

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from structlog.testing import capture_logs

from tests.clients.scripted_server import play, refusal
from tests.services.gateway.http_harness import CHAT, Reply, Running, begun, hello, running
from tests.waiting import until

CHATS = "/v1/chat/completions"


def told(reply: Reply) -> tuple[int, str, str | None, str | None]:
    """Status, type, param and code of an error."""
    return reply.status, reply.error["type"], reply.error["param"], reply.error["code"]


LARGE = b" " * (5 << 20)
CHUNKED = {"content-length": "", "transfer-encoding": "chunked"}
TENANT = {"x-ringline-tenant": "two words"}
INVALID = "invalid_request_error"


@pytest.mark.parametrize(
    ("method", "path", "body", "headers", "expected"),
    [
        ("GET", "/nothing", None, {}, (404, INVALID, None, "not_found")),
        ("DELETE", CHATS, None, {}, (405, INVALID, None, "method_not_allowed")),
        ("POST", "/health", None, {}, (405, INVALID, None, "method_not_allowed")),
        ("POST", CHATS, b"{", {}, (400, INVALID, None, "invalid_json")),
        ("POST", CHATS, b'"\xff"', {}, (400, INVALID, None, "invalid_field")),
        ("POST", CHATS, b"", {}, (400, INVALID, None, "invalid_json")),
        ("POST", CHATS, b"[" * 100_000, {}, (400, INVALID, None, "invalid_field")),
        ("POST", CHATS, b"[]", {}, (400, INVALID, None, "invalid_field")),
        ("POST", CHATS, {"messages": 3}, {}, (400, INVALID, "messages", "invalid_field")),
        ("POST", CHATS, CHAT | {"max_tokens": -1}, {}, (400, INVALID, "max_tokens", "invalid_field")),
        ("POST", CHATS, LARGE, {}, (413, INVALID, None, "too_large")),
        ("POST", CHATS, LARGE, CHUNKED, (400, INVALID, None, None)),
        ("POST", CHATS, CHAT, {"content-encoding": "gzip"}, (415, INVALID, None, "unsupported_media_type")),
        ("POST", CHATS, CHAT, {"content-type": "text/plain"}, (415, INVALID, None, "unsupported_media_type")),
        ("POST", CHATS, CHAT, {"origin": "http://evil"}, (403, "permission_error", None, "origin_not_allowed")),
        ("POST", CHATS, CHAT, {"authorization": "Bearer \xff"}, (401, "authentication_error", None, "invalid_api_key")),
        ("POST", CHATS, CHAT, TENANT, (400, INVALID, "x-ringline-tenant", "invalid_field")),
    ],
    ids=itertools.count(),
)
async def test_what_is_refused_before_a_processor_is_asked(gateway, method, path, body, headers, expected) -> None:
    given = {"x-request-id": "mine-1", **headers}
    reply = await gateway.ask(method, path, body, given)
    assert told(reply) == expected
    assert not gateway.processor.service.requests
    if "transfer-encoding" not in headers:  # else it is no HTTP, and the headers are not looked at
        assert reply.headers["x-request-id"] == "mine-1"
    if expected[0] == 405:
        assert "GET" in reply.headers["allow"] or "POST" in reply.headers["allow"]


@pytest.mark.parametrize(
    ("path", "advice"),
    [
        ("/chat/completions", "the base URL ends with /v1"),
        ("/v1/v1/messages", "leave it out of the base URL"),
        ("/api/embed", "/v1/embeddings makes vectors"),
        ("/completion", "/v1/completions continues texts"),
        ("/nothing", "docs/reference/openai.md"),
    ],
)
async def test_an_unknown_path_is_told_what_there_is(gateway: Running, path: str, advice: str) -> None:
    assert advice in (await gateway.ask("POST", path, CHAT)).error["message"]


async def test_a_refusal_keeps_its_status_even_where_a_stream_was_asked_for(gateway: Running) -> None:
    info = error_details_pb2.ErrorInfo(domain="ringline", reason="OVERLOAD")
    gateway.processor.plays(play(refusal(grpc.StatusCode.RESOURCE_EXHAUSTED, "full", info)))
    reply = await gateway.ask("POST", CHATS, {**CHAT, "stream": True})
    assert told(reply) == (429, "rate_limit_error", None, "overload")
    assert (reply.headers["retry-after"], reply.headers["retry-after-ms"]) == ("1", "1000")


async def test_ids_of_requests_come_back_or_are_made(gateway: Running) -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    headers = {"x-request-id": "a-b_c", "traceparent": trace}
    reply = await gateway.ask("POST", CHATS, CHAT, headers)
    assert reply.headers["x-request-id"] == "a-b_c"
    assert reply.headers["x-content-type-options"] == "nosniff"
    assert "server" not in reply.headers
    assert gateway.processor.service.requests[0].traceparent == trace
    assert gateway.processor.service.requests[0].request_id.startswith("a-b_c-")
    for unfit in ("x" * 129, "two words", "\xe9"):
        reply = await gateway.ask("POST", CHATS, CHAT, {"x-request-id": unfit, "traceparent": "nonsense"})
        assert reply.status == 200
        assert len(reply.headers["x-request-id"]) == 32
        assert not gateway.processor.service.requests[-1].traceparent


async def test_head_and_options(gateway: Running) -> None:
    async with gateway.connection() as one:
        one.send(b"HEAD /v1/models HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        head = await one.ended()
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert head.endswith(b"\r\n\r\n")
    async with gateway.connection() as one:
        one.send(b"OPTIONS /v1/models HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        head = await one.ended()
    assert head.startswith(b"HTTP/1.1 204 ")
    assert b"allow: HEAD, GET, OPTIONS\r\n" in head
    assert b"access-control" not in head


async def test_pages_of_given_origins_may_call_and_read_the_ids() -> None:
    async with running(cors_origins=("https://app.example",)) as gateway:
        asks = {"origin": "https://app.example", "access-control-request-method": "POST"}
        reply = await gateway.ask("OPTIONS", CHATS, headers={**asks, "access-control-request-headers": "authorization"})
        assert reply.status == 200
        assert reply.headers["access-control-allow-origin"] == "https://app.example"
        assert reply.headers["access-control-allow-headers"] == "authorization"
        reply = await gateway.ask("POST", CHATS, {**CHAT, "stream": True}, {"origin": "https://app.example"})
        assert reply.body.endswith(b"data: [DONE]\n\n")
        assert reply.headers["access-control-allow-origin"] == "https://app.example"
        assert "x-request-id" in reply.headers["access-control-expose-headers"].lower()
        reply = await gateway.ask("POST", CHATS, CHAT, {"origin": "https://other.example"})
        assert told(reply)[3] == "origin_not_allowed"


@pytest.mark.parametrize("host", ["127.0.0.1:8000", "[::1]:8000", "localhost", "box.localhost:8000"])
async def test_the_gateways_own_page_may_call_it(gateway: Running, host: str) -> None:
    assert (await gateway.ask("POST", CHATS, CHAT, {"origin": f"http://{host}", "host": host})).status == 200


@pytest.mark.parametrize("site", ["", "same-origin"])
async def test_a_name_that_was_bound_to_this_machine_is_no_page_of_its_own(gateway: Running, site: str) -> None:
    """By DNS rebinding: the browser takes the page and the gateway for one origin, and says so."""
    for host in ("evil.example:8000", "1.evil.example", "127.0.0.1.evil.example", "gateway", "[bad"):
        headers = {"origin": f"http://{host}", "host": host, "sec-fetch-site": site, "authorization": "Bearer made-up"}
        assert told(await gateway.ask("POST", CHATS, CHAT, headers))[3] == "origin_not_allowed"
    assert not gateway.processor.service.requests
    by_tls = {"origin": "https://chat.example", "host": "chat.example", "sec-fetch-site": site}
    assert (await gateway.ask("POST", CHATS, CHAT, by_tls)).status == 200, "a certificate tells whose name it is"
    async with running(cors_origins=("http://box.lan:8000",)) as named:
        headers = {"origin": "http://box.lan:8000", "host": "box.lan:8000"}
        assert (await named.ask("POST", CHATS, CHAT, headers)).status == 200


async def test_only_so_many_requests_and_connections_with_requests_of_a_client() -> None:
    async with running(max_calls=3, max_connections_per_client=2) as gateway:
        gateway.processor.plays(begun)
        asking = [asyncio.create_task(gateway.ask("POST", CHATS, CHAT)) for _ in range(2)]
        await until(lambda: gateway.process.load.num_requests == 2)
        reply = await gateway.ask("POST", CHATS, CHAT)
        assert told(reply) == (429, "rate_limit_error", None, "overload")
        assert "--max-connections-per-client" in reply.error["message"]
        assert (await gateway.ask("GET", "/live")).status == 200, "operators come in nevertheless"
        for one in asking:
            one.cancel()
        await until(lambda: gateway.process.load.num_requests == 0)


async def test_a_drain_refuses_new_requests_and_lets_the_others_finish(gateway: Running) -> None:
    goes_on = asyncio.Event()

    async def slow(request):
        await goes_on.wait()
        async for response in hello(request):
            yield response

    gateway.processor.plays(slow)
    asking = asyncio.create_task(gateway.ask("POST", CHATS, CHAT))
    await until(lambda: gateway.processor.service.requests)
    gateway.process.load.draining = True
    finishing = asyncio.create_task(gateway.process._finish(20.0))
    reply = await gateway.ask("POST", CHATS, CHAT)
    assert told(reply) == (503, "server_error", None, "draining")
    assert reply.headers["retry-after"] == "1"
    assert (await gateway.ask("GET", "/health")).status == 503
    assert not finishing.done()
    goes_on.set()
    reply = await asking
    assert (reply.status, reply.headers["connection"]) == (200, "close")
    await finishing


async def test_what_outlasts_the_drain_is_told_so(gateway: Running) -> None:
    gateway.processor.plays(begun)
    asking = asyncio.create_task(gateway.ask("POST", CHATS, CHAT))
    await until(lambda: gateway.processor.service.requests)
    gateway.process.load.draining = True
    await gateway.process._finish(0.0)
    await gateway.process.callers.close()
    reply = await asking
    assert told(reply)[0] == 503
    assert "retry-after" in reply.headers


async def test_a_failure_of_the_gateway_is_an_error_in_form_and_in_the_log(gateway, monkeypatch) -> None:
    async def fails(*_arguments, **_options):
        raise ZeroDivisionError("a secret")

    monkeypatch.setattr("ringline.AsyncClient.models", fails)
    reply = await gateway.ask("GET", "/v1/models")
    assert told(reply) == (500, "server_error", None, "internal")
    assert b"secret" not in reply.body


async def test_operators_learn_what_there_is(gateway: Running) -> None:
    assert json.loads((await gateway.ask("GET", "/version")).body)["version"]
    assert (await gateway.ask("GET", "/health")).status == 503, "nothing watches processors in this test"
    await gateway.ask("POST", CHATS, CHAT)
    await gateway.ask("GET", f"/{secrets.token_hex(8)}")
    await gateway.ask("GET", f"/{secrets.token_hex(8)}")
    async with gateway.connection() as one:
        one.send(b"garbage\r\n\r\n")
        await one.reply()
    await until(lambda: gateway.process.load.num_requests == 0)
    text = (await gateway.ask("GET", "/metrics")).body.decode()
    assert f'ringline_http_requests_total{{endpoint="{CHATS}",model_name="",status="200"}} 1.0' in text
    assert 'ringline_http_requests_total{endpoint="(unknown)",model_name="",status="404"} 2.0' in text
    assert 'ringline_http_malformed_total{model_name="",status="400"} 1.0' in text
    assert 'ringline_http_callers{model_name=""} 1.0' in text
    assert 'ringline_http_request_seconds_count{model_name=""} 3.0' in text


@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/", "/v1/models/tiny", "/tokenizer_info"])
async def test_while_no_model_is_served_the_list_of_models_is_asked_for_again(gateway: Running, path: str) -> None:
    gateway.processor.service.model = None
    reply = await gateway.ask("GET", path)
    assert told(reply) == (503, "server_error", None, "not_ready")
    assert reply.headers["retry-after"] == "1"
    gateway.process._readiness._serving.add("of another model")  # which this tenant may not use
    reply = await gateway.ask("GET", "/v1/models")
    assert (reply.status, json.loads(reply.body)["data"]) == (200, [])


async def test_the_log_says_that_no_processor_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.gateway.main._SILENCE", 0.0)
    async with running(processors=("127.0.0.1:1",)) as gateway:
        with capture_logs() as logged:
            work = asyncio.create_task(gateway.process._work())
            await until(lambda: logged)
            work.cancel()
    assert logged == [{"event": "no processor serves yet", "log_level": "warning", "processors": ["127.0.0.1:1"]}]


async def test_no_warning_says_that_a_processor_which_is_there_has_no_model_yet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("services.gateway.main._SILENCE", 0.0)
    server, checks = grpc.aio.server(), health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(checks, server)
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await checks.set("", health_pb2.HealthCheckResponse.NOT_SERVING)
    await server.start()
    async with running(processors=(address,)) as gateway:
        watch = asyncio.create_task(gateway.process._readiness.run())
        await until(lambda: gateway.process._readiness.found)
        with capture_logs() as logged:
            work = asyncio.create_task(gateway.process._work())
            await until(lambda: logged)
            work.cancel()
        await server.stop(None)
        await until(lambda: not gateway.process._readiness.found)
        watch.cancel()
    assert logged == [{"event": "no model is served yet", "log_level": "info", "processors": [address]}]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHATS, CHAT),
        ("/v1/completions", {"prompt": "a"}),
        ("/v1/messages", CHAT | {"max_tokens": 1}),
        ("/v1/responses", {"input": "a"}),
        ("/tokenize", {"prompt": "a"}),
    ],
)
async def test_a_caller_whom_processors_do_not_know_keeps_no_session(path, body) -> None:
    async with running() as gateway:
        gateway.processor.plays(play(refusal(grpc.StatusCode.UNAUTHENTICATED, "who?")))
        gateway.processor.service.unary_failures = [grpc.StatusCode.UNAUTHENTICATED]
        reply = await gateway.ask("POST", path, {"model": "tiny", **body}, {"authorization": "Bearer guess"})
        assert (reply.status, len(gateway.process.callers)) == (401, 0)
