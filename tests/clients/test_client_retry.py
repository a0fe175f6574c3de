"""What the library tries again by itself before a server has admitted it, and not for ever."""

import asyncio
import time
from types import SimpleNamespace

import grpc
import pytest
import ringline
from google.protobuf.duration_pb2 import Duration
from google.rpc import error_details_pb2
from ringline import session
from ringline.connect_errors import connection_failure
from ringline.inference.v1 import inference_pb2 as pb
from ringline.retry import Deadline, RetryPolicy, RetryState
from ringline.retrying_request import RetryingRequest
from ringline.server_pool import ServerPool
from ringline.types.v1 import output_pb2

from tests.clients.either_client import CLIENTS, answer, connected
from tests.clients.scripted_server import (
    Abort,
    Cut,
    ScriptedInference,
    admitted,
    delta,
    ended,
    hello,
    play,
    refusal,
    serving,
    status,
)
from tests.ports import HeldPort

UNAVAILABLE = grpc.StatusCode.UNAVAILABLE
EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED


pytestmark = pytest.mark.usefixtures("short_delays")


@pytest.mark.parametrize("failure", [refusal(UNAVAILABLE, "rerouted"), Abort(UNAVAILABLE)], ids=["refused", "cut"])
async def test_what_failed_before_admission_is_tried_again(server, ask, failure):
    server.plays(play(failure), play(failure), hello)
    outcome = await ask()
    assert outcome.generation.text == "Hello, world"
    assert len(server.service.requests) == 3


async def test_silent_servers_are_not_all_tried_once_patience_has_passed(monkeypatch):
    """They accept connections and never answer."""
    now, tried = [1.0], []

    async def never_answers(call, pool, server, names):
        call.cancel()
        tried.append(server.address)
        now[0] += 3.0
        raise ringline.Unavailable("failed to connect to all addresses; last error: Timeout occurred")

    monkeypatch.setattr(session, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(session.SessionStream, "open", never_answers)
    async with ringline.AsyncClient([f"unix:/nonexistent/{number}" for number in range(50)], patience=7.0) as client:
        with pytest.raises(ringline.Unavailable, match="Connection timed out"):
            await client._session._open_somewhere(None)
    assert len(tried) == 3


@pytest.mark.parametrize("options", [{"patience": -1}, {"patience": float("nan")}, {"retries": -1}])
@CLIENTS
def test_bounds_that_mean_nothing_are_refused(kind, options):
    with pytest.raises(ringline.InvalidRequest):
        kind("localhost:1", **options)


async def test_a_call_that_ends_well_without_a_word_is_not_success(server):
    server.plays(play(Cut()))
    with ringline.Client(server.address, patience=0) as client, pytest.raises(ringline.Truncated):
        await asyncio.to_thread(client.generate, "Hi")
    assert len(server.service.requests) == 1


def retry_after(seconds: float):
    delay = Duration()
    delay.FromMilliseconds(round(seconds * 1000))
    return error_details_pb2.RetryInfo(retry_delay=delay)


async def test_overload_is_tried_again_only_when_asked_and_not_before_the_server_says(server, ask):
    overloaded = play(refusal(EXHAUSTED, "queue is full", retry_after(0.2)))
    server.plays(overloaded, hello)
    outcome = await ask()
    assert type(outcome.error) is ringline.Overloaded
    assert outcome.error.retry_after == pytest.approx(0.2)

    server.plays(overloaded, hello)
    before = time.monotonic()
    outcome = await ask(client_options={"retry_overloaded": True})
    assert outcome.generation.text == "Hello, world"
    assert time.monotonic() - before >= 0.2  # a lower bound, which load cannot break


def test_those_who_are_refused_together_come_back_apart_and_ever_later():
    policy = RetryPolicy(patience=1000.0, retries=3, retry_overloaded=True)
    full = ringline.Overloaded("full")
    full.retry_after = 2.0
    crowd = [RetryState(policy, Deadline(None)) for _ in range(100)]
    for least in (2.0, 4.0, 8.0, 16.0, 30.0, 30.0):
        delays = [one.delay(full, any_available=True) for one in crowd]
        assert all(least <= delay <= 1.5 * least for delay in delays)
        assert max(delays) - min(delays) > 0.1 * least
    crowd[0].admitted()  # by a processor, whose engine is full
    assert crowd[0].delay(full, any_available=True) >= 30.0
    crowd[0].delivered()
    assert crowd[0].delay(full, any_available=True) <= 3.0


def full_engine(n: int = 1, resumed: int = 0) -> list[pb.GenerateResponse]:
    """Admitted, but the engine's queue has no place for it."""
    error = status(EXHAUSTED, "2 requests are waiting", retry_after(0.01))
    choices = [ended(output_pb2.FINISH_REASON_ERROR, choice, error=error) for choice in range(n)]
    ends = [response for responses in choices for response in responses]
    usage = pb.RequestFinished(usage=pb.Usage(prompt_tokens=3, completion_tokens=resumed))
    return [admitted(n, prompt_token_ids=[1, 2, 3]), *ends, pb.GenerateResponse(request_finished=usage)]


async def test_a_refusal_by_the_engine_is_tried_again_like_one_by_the_processor(server, ask):
    server.plays(play(full_engine()), hello)
    outcome = await ask()
    assert type(outcome.error) is ringline.Overloaded
    assert outcome.error.partial.usage.completion_tokens == 0
    assert len(server.service.requests) == 1

    server.service.requests.clear()
    server.plays(*[play(full_engine())] * 4, play(admitted(), delta(0, [10], "a"), ended(completion=1)))
    outcome = await ask(client_options={"retry_overloaded": True, "retries": 0})  # overload is no loss
    assert outcome.generation.text == "a"
    assert not [event for event in outcome.events if isinstance(event, ringline.Finished) and event.error is not None]
    first, *others = server.service.requests
    assert not first.HasField("resume")
    for again in others:  # it was admitted: the answer has the seed that the client was told
        assert again.sampling.seed == 7
        assert [(one.choice, list(one.token_ids)) for one in again.resume.choices] == [(0, [])]


@pytest.mark.parametrize(
    ("failure", "kind"),
    [(refusal(UNAVAILABLE, "down"), ringline.Unavailable), (full_engine(), ringline.Overloaded)],
    ids=["no server", "no engine with room"],
)
async def test_patience_bounds_the_attempts(server, ask, clock, failure, kind):
    """Though a processor may admit the request each time."""
    down = play(failure)
    server.plays(down, down, clock.passes(1000.0, down))
    outcome = await ask(client_options={"patience": 500.0, "retry_overloaded": True})
    assert type(outcome.error) is kind
    assert len(server.service.requests) == 3
    outcome = await ask(client_options={"patience": 0})
    assert type(outcome.error) is kind
    assert len(server.service.requests) == 4


async def test_a_resume_that_an_engine_has_no_room_for_is_tried_again(server, ask):
    """A processor of this release keeps it until there is room."""
    full = play(full_engine(n=2, resumed=1))
    lost = play(admitted(2, prompt_token_ids=[1, 2, 3]), delta(0, [10], "a"), Abort(UNAVAILABLE))
    server.plays(lost, full, full, play(admitted(2), delta(1, [11], "b"), ended(choice=1), ended(completion=2)))
    outcome = await ask(n=2)
    assert outcome.generation.text == "ab"


async def test_overload_without_a_time_is_not_tried_again(server, ask):
    server.plays(play(refusal(EXHAUSTED, "too many")), hello)
    outcome = await ask(client_options={"retry_overloaded": True})
    assert type(outcome.error) is ringline.Overloaded
    assert len(server.service.requests) == 1


async def test_an_attempt_is_not_begun_that_the_timeout_would_not_see(server, ask):
    server.plays(play(refusal(EXHAUSTED, "queue is full", retry_after(90.0))), hello)
    outcome = await ask(client_options={"retry_overloaded": True, "patience": 1000.0}, timeout=60)
    assert type(outcome.error) is ringline.Overloaded
    assert len(server.service.requests) == 1


async def test_a_later_attempt_has_the_time_that_is_left(server, ask):
    server.plays(play(refusal(EXHAUSTED, "queue is full", retry_after(0.2))), hello)
    outcome = await ask(client_options={"retry_overloaded": True}, timeout=60)
    assert outcome.generation.text == "Hello, world"
    first, second = (request.timeout_ms for request in server.service.requests)
    assert first - second >= 200


@pytest.fixture
async def attempts(monkeypatch) -> asyncio.Queue[str]:
    """The address of each server to which an attempt failed."""
    loop, queue = asyncio.get_running_loop(), asyncio.Queue()
    failed = ServerPool.attempt_failed

    def noted(self, server, error, began):
        loop.call_soon_threadsafe(queue.put_nowait, server.address)
        return failed(self, server, error, began)

    monkeypatch.setattr(ServerPool, "attempt_failed", noted)
    return queue


@CLIENTS
async def test_a_client_that_has_reached_nobody_fails_at_once(kind, attempts, tmp_path):
    port, socket = HeldPort(), f"unix:{tmp_path}/none"
    addresses = [f"127.0.0.1:{port.number}", socket]
    async with connected(kind, addresses, patience=1000.0) as client:
        for call in (lambda: client.generate("Hi"), client.models):
            with pytest.raises(ringline.Unavailable) as failed:
                await answer(client, call)
            assert failed.value.unreached == {addresses[0]: "Connection refused", socket: "No such file or directory"}
            assert f"{addresses[0]} is not available: Connection refused" in str(failed.value)
    assert attempts.qsize() <= 6, "each server is tried once, and the second call may meet an ejected one"
    port.release()


async def test_requests_that_fail_together_have_errors_of_their_own():
    port = HeldPort()
    async with ringline.AsyncClient(f"127.0.0.1:{port.number}") as client:
        outcomes = await asyncio.gather(*(client.generate("Hi") for _ in range(20)), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [ringline.Unavailable] * 20
    assert len({id(outcome) for outcome in outcomes}) == 20
    port.release()


@CLIENTS
@pytest.mark.parametrize("reached", [False, True])
async def test_a_client_that_was_asked_to_or_has_reached_a_server_waits_for_one(kind, reached, attempts, tmp_path):
    address = f"unix:{tmp_path}/late"
    async with connected(kind, address, wait_for_ready=not reached, patience=1000.0) as client:
        if reached:
            async with serving(ScriptedInference(), address):
                await answer(client, client.models)
        asked = asyncio.ensure_future(answer(client, lambda: client.generate("Hi")))
        await attempts.get()
        async with serving(ScriptedInference(), address):
            assert (await asked).text == "Hello, world"


@CLIENTS
@pytest.mark.parametrize("first", [0, 1])
async def test_of_several_servers_those_that_refuse_are_passed_over(kind, first, server, monkeypatch, tmp_path):
    monkeypatch.setattr("random.randrange", lambda _: first)
    async with connected(kind, f"unix:{tmp_path}/none,{server.address}") as client:
        assert (await answer(client, lambda: client.generate("Hi"))).text == "Hello, world"


FAILING = "connections to all backends failing; last error: UNKNOWN: ipv4:127.0.0.1:1: "


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (f"{FAILING}Failed to connect to remote host: connect: Connection refused (111)", "Connection refused"),
        (f"{FAILING}connection attempt timed out before receiving SETTINGS frame", "Connection timed out"),
        ("DNS resolution failed for x:5: C-ares status is not ARES_SUCCESS: Domain name not found", "the name has no"),
        ("errors resolving x:5: [field:hostname lookup error: Domain name not found]", "the name has no address"),
        (f"{FAILING}Ssl handshake failed: WRONG_VERSION_NUMBER: Invalid", "TLS handshake failed: the server does not"),
        (f"{FAILING}Tls handshake failed: CERTIFICATE_VERIFY_FAILED: self signed", "TLS handshake failed: the auth"),
        (f"{FAILING}Peer name foo is not in peer certificate", "TLS handshake failed: the server's certificate is for"),
        (f"{FAILING}Socket closed", "the server closed the connection: it may require TLS"),
        (f"{FAILING}of a new kind", "UNKNOWN: ipv4:127.0.0.1:1: of a new kind"),
    ],
)
def test_why_nobody_was_reached_is_said_plainly(text, reason):
    """The texts of gRPC 1.74 and 1.85."""
    assert connection_failure(ringline.Unavailable(text)).startswith(reason)


@pytest.mark.parametrize("text", ["Socket closed", "no engine is attached", "GOAWAY received"])
def test_a_server_that_was_reached_is_told_from_one_that_was_not(text):
    assert connection_failure(ringline.Unavailable(text)) is None


async def test_unary_calls_are_tried_again_too(server):
    server.service.unary_failures = [UNAVAILABLE]
    async with ringline.AsyncClient(server.address) as client:
        assert [model.name for model in await client.models()] == ["tiny"]
    server.service.unary_failures = [UNAVAILABLE, grpc.StatusCode.NOT_FOUND]
    with ringline.Client(server.address) as client, pytest.raises(ringline.NotFound):
        await asyncio.to_thread(client.models)


def test_a_refusal_from_before_a_requests_first_attempt_does_not_fail_it():
    """A stream may be made long before its first delta is awaited."""
    deadline = Deadline(None)
    retrying = RetryingRequest(pb.GenerateRequest(), RetryState(RetryPolicy(30.0, 3, False), deadline), deadline)
    pool = ServerPool(["a:1", "b:1"], lambda address: address)
    refusal = ringline.Unavailable("failed to connect to all addresses; last error: Connection refused")
    pool.attempt_failed(pool.choose(), refusal, time.monotonic())
    retrying.next_request()
    error = retrying.failed_at(pool.choose(), pool, refusal)
    assert isinstance(error, ringline.Unavailable)
    assert error.unreached is None, "the other server was not tried for this request"
