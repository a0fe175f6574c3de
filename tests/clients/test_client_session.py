"""Many requests on one stream, and what ends them."""

import asyncio
import gc
import itertools
import threading
import weakref
from contextlib import asynccontextmanager

import grpc
import pytest
import ringline
from google.protobuf.duration_pb2 import Duration
from google.rpc import error_details_pb2
from ringline.inference.v1 import inference_pb2 as pb
from ringline.types.v1 import output_pb2

from tests.clients.either_client import answer, connected, events, first
from tests.clients.scripted_server import (
    Abort,
    admitted,
    delta,
    ended,
    forever,
    hello,
    play,
    refusal,
    status,
)
from tests.ports import HeldPort
from tests.waiting import until

TOP_P = error_details_pb2.BadRequest(
    field_violations=[error_details_pb2.BadRequest.FieldViolation(field="sampling.top_p")]
)


async def echo(request: pb.GenerateRequest):
    """The prompt's text, one word a delta."""
    yield admitted()
    for position, word in enumerate(request.text.split(" ")):
        yield delta(position, [position], f" {word}" if position else word)
        await asyncio.sleep(0)
    for end in ended(completion=position + 1):
        yield end


async def test_requests_share_a_session_and_each_has_its_own_answer(server):
    server.plays(echo)
    prompts = [f"prompt {number} of many" for number in range(200)]
    async with ringline.AsyncClient(server.address) as client:
        answers = await asyncio.gather(*(client.generate(prompt) for prompt in prompts))
    assert [answer.text for answer in answers] == prompts
    assert server.service.sessions == 1


async def test_clients_with_other_metadata_share_the_connections_and_leave_nothing_behind(server):
    async with ringline.AsyncClient(server.address, metadata={"x-all": "1"}) as client:
        connection = (await client.models(), client._pool().connections())[1]

        async def ask(number: int) -> weakref.ref:
            async with client.with_metadata({"x-caller": str(number)}) as other:
                assert (await other.generate("Hi")).text == "Hello, world"
                unfinished = other.stream("Hi")
                await anext(unfinished)
            with pytest.raises(ringline.Cancelled):
                await other.models()
            return weakref.ref(other)

        left = await asyncio.gather(*map(ask, range(50)))
        assert sorted(int(one["x-caller"]) for one in server.service.metadata) == list(range(50))
        assert {one["x-all"] for one in server.service.metadata} == {"1"}
        assert client._pool().connections() == connection
        assert await client.generate("Hi")
        gc.collect()
        assert not [one for one in left if one() is not None]
        assert not client._closing
    assert len(asyncio.all_tasks()) < 25  # the server has some; each of the 50 would leave one


async def test_more_requests_than_the_session_allows_wait_their_turn(server):
    together = asyncio.Barrier(3)

    async def three_at_a_time(request):
        await together.wait()
        async for response in echo(request):
            yield response

    server.service.limits.max_live_requests = 3
    server.plays(three_at_a_time)
    async with ringline.AsyncClient(server.address) as client:
        answers = await asyncio.gather(*(client.generate(f"prompt {number}") for number in range(21)))
    assert [answer.text for answer in answers] == [f"prompt {number}" for number in range(21)]
    assert server.service.most_live == 3


async def test_waiting_for_a_turn_ends_with_the_timeout(server):
    server.service.limits.max_live_requests = 1
    server.plays(forever)
    async with ringline.AsyncClient(server.address) as client:
        occupant = client.stream("Hi")
        await anext(occupant)
        with pytest.raises(ringline.DeadlineExceeded):
            await client.generate("Hi", timeout=0.05)
        assert len(server.service.requests) == 1
        await occupant.close()
        server.plays(hello)
        assert (await client.generate("Hi")).text == "Hello, world"


async def test_a_slow_consumer_does_not_stall_the_others(server):
    deltas = [delta(position, [1], "x" * 1000) for position in range(200)]
    server.plays(play(admitted(), deltas, ended(completion=200)), hello)
    async with ringline.AsyncClient(server.address) as client:
        slow = client.stream("slow")
        begin = await anext(slow)
        assert (await client.generate("quick")).text == "Hello, world"
        rest = [delta.text async for delta in slow]
    assert begin.text + "".join(rest) == "x" * 200_000


async def test_an_error_belongs_to_its_request(server):
    others_failed = asyncio.Event()
    server.plays(
        play(admitted(), others_failed, delta(0, [1], "still here"), ended(completion=1)),
        play(refusal(grpc.StatusCode.INVALID_ARGUMENT, "sampling.top_p: must be in (0, 1]", TOP_P)),
        play(admitted(), delta(4, [1], "gap")),
    )
    async with ringline.AsyncClient(server.address) as client:
        good = asyncio.create_task(client.generate("good"))
        await server.service.asked.wait()
        with pytest.raises(ringline.InvalidRequest) as refused:
            await client.generate("bad", top_p=2.0)
        assert refused.value.field == "sampling.top_p"
        with pytest.raises(ringline.ProtocolError):
            await client.generate("broken")
        others_failed.set()
        assert (await good).text == "still here"
    assert server.service.sessions == 1


async def test_a_refusal_without_an_id_is_found_by_its_ordinal(server):
    response = refusal(grpc.StatusCode.INVALID_ARGUMENT, "request_id: at most 128 bytes")
    response.in_reply_to = 2
    server.plays(hello, play(response))
    async with ringline.AsyncClient(server.address) as client:
        await client.generate("Hi")
        with pytest.raises(ringline.InvalidRequest):
            await client.generate("Hi", request_id="x" * 200)


async def test_a_broken_session_fails_its_requests_and_is_reopened(server):
    server.plays(forever, play(Abort(grpc.StatusCode.UNAVAILABLE)), hello)
    async with ringline.AsyncClient(server.address, patience=0) as client:
        admitted_one = client.stream("Hi")
        await anext(admitted_one)
        with pytest.raises(ringline.Unavailable) as unadmitted:
            await client.generate("Hi")
        assert type(unadmitted.value) is ringline.Unavailable
        with pytest.raises(ringline.Truncated):
            await admitted_one.result()
        assert (await client.generate("Hi")).text == "Hello, world"
    assert server.service.sessions == 2


async def test_those_who_wait_for_a_turn_move_to_the_next_session(server):
    server.service.limits.max_live_requests = 1
    server.plays(play(Abort(grpc.StatusCode.UNAVAILABLE)), echo)
    async with ringline.AsyncClient(server.address) as client:
        answers = await asyncio.gather(*(client.generate(f"prompt {number}") for number in range(5)))
    assert [answer.text for answer in answers] == [f"prompt {number}" for number in range(5)]


@pytest.mark.parametrize("attempt", range(5))
async def test_a_session_that_breaks_while_it_is_written_to_is_reopened(server, attempt):
    """grpc.aio then reports an internal error instead of the server's status; seen with several writes in a row."""
    server.plays(play(Abort(grpc.StatusCode.UNAVAILABLE)), echo)
    prompts = [f"prompt {number} " + "x" * 2000 for number in range(50)]
    async with ringline.AsyncClient(server.address) as client:
        answers = await asyncio.gather(*(client.generate(prompt) for prompt in prompts))
    assert [answer.text for answer in answers] == prompts


async def test_a_session_that_ended_leaves_nothing_waiting(server):
    server.plays(*[play(Abort(grpc.StatusCode.UNAVAILABLE))] * 5, hello)
    async with ringline.AsyncClient(server.address) as client:
        assert (await client.generate("Hi")).text == "Hello, world"
        await until(lambda: link_tasks() == ["SessionStream._read", "SessionStream._write"])


def link_tasks() -> list[str]:
    """Of whatever sessions there are."""
    tasks = [task.get_coro().__qualname__ for task in asyncio.all_tasks()]
    return sorted(name for name in tasks if name.startswith("SessionStream."))


async def test_a_live_request_id_cannot_be_given_twice(server):
    server.plays(forever)
    async with ringline.AsyncClient(server.address) as client:
        live = client.stream("Hi", request_id="mine")
        await anext(live)
        with pytest.raises(ringline.InvalidRequest) as refused:
            await client.generate("Hi", request_id="mine")
        assert refused.value.field == "request_id"
        assert (await anext(live)).text == "x"


async def test_a_caller_may_use_any_id_beside_those_that_the_library_makes_up(server):
    server.plays(forever)
    async with ringline.AsyncClient(server.address) as client:
        nameless = [client.stream("Hi") for _ in range(3)]
        for stream in nameless:
            await anext(stream)
        for name in ("1", "2", "3", "4"):
            async with client.stream("Hi", request_id=name) as named:
                await anext(named)


async def test_a_request_whose_other_server_is_gone_comes_back_to_the_session_that_it_has(server):
    """Else each would leave another stream at the one server, for as long as the client lives."""
    no_engine = status(grpc.StatusCode.UNAVAILABLE, "no engine")
    server.plays(play(admitted(), ended(output_pb2.FINISH_REASON_ERROR, completion=0, error=no_engine)))
    gone = HeldPort()
    async with ringline.AsyncClient([server.address, f"127.0.0.1:{gone.number}"], retries=1) as client:
        for _ in range(3):
            with pytest.raises(ringline.Unavailable):
                await client.generate(token_ids=[1, 2, 3])
            for each in client._pool()._pool:
                each.ejected_until = 0.0
    gone.release()
    assert len(server.service.requests) == 6
    assert server.service.sessions == 1


async def test_a_request_that_the_session_could_not_take_is_not_sent(server):
    server.service.limits.max_message_bytes = 10_000
    async with ringline.AsyncClient(server.address) as client:
        with pytest.raises(ringline.InvalidRequest):
            await client.generate("x" * 10_000)
        assert (await client.generate("Hi")).text == "Hello, world"
    assert len(server.service.requests) == 1


async def test_a_session_of_its_own_is_another_stream(server):
    async with ringline.AsyncClient(server.address) as client, client.session() as session:
        assert (await client.generate("Hi")).text == (await session.generate("Hi")).text
    assert server.service.sessions == 2


async def test_a_closed_session_ends_its_requests(server):
    server.plays(forever)
    client = ringline.AsyncClient(server.address)
    waiting = asyncio.create_task(client.generate("Hi"))
    await server.service.asked.wait()
    await client.close()
    with pytest.raises(ringline.Cancelled):
        await waiting
    with pytest.raises(ringline.Cancelled):
        await client.generate("Hi")


async def outcome_of(work):
    return (await asyncio.gather(work, return_exceptions=True))[0]


async def test_a_look_up_of_a_closed_client_says_so(server):
    gate = asyncio.Event()

    async def hold(context):
        server.service.asked.set()
        await gate.wait()

    server.service._fail_unary = hold
    client, never_used = ringline.AsyncClient(server.address), ringline.AsyncClient(server.address)
    blocking = ringline.Client(server.address)
    under_way = asyncio.create_task(client.models())
    await server.service.asked.wait()
    server.service.asked.clear()
    under_way_too = asyncio.create_task(asyncio.to_thread(blocking.models))
    await server.service.asked.wait()
    other = client.session()
    await client.close()
    await never_used.close()
    blocking.close()
    for work in (
        under_way,
        under_way_too,
        client.models(),
        client.tokenize("a"),
        client.detokenize([5]),
        other.generate("a"),
        never_used.models(),
        never_used.session().generate("a"),
        asyncio.to_thread(blocking.models),
        asyncio.to_thread(blocking.generate, "a"),
    ):
        assert type(await outcome_of(work)) is ringline.Cancelled


async def test_a_cancelled_look_up_is_cancelled(server):
    async def hold(context):
        server.service.asked.set()
        await asyncio.Event().wait()

    server.service._fail_unary = hold
    async with ringline.AsyncClient(server.address) as client:
        task = asyncio.create_task(client.models())
        await server.service.asked.wait()
        task.cancel()
        assert type(await outcome_of(task)) is asyncio.CancelledError


async def leave_loop(client, service):
    await first(client.stream("Hi"))


async def leave_block(client, service):
    """With a reference that stays, and by an error."""
    stream = client.stream("Hi")

    async def read(same):
        assert same is stream
        assert await first(same)
        raise ZeroDivisionError

    async def enter():
        if isinstance(client, ringline.Client):
            with stream as same:
                await read(same)
        else:
            async with stream as same:
                await read(same)

    with pytest.raises(ZeroDivisionError):
        await enter()
    assert [event async for event in events(stream)] == []


async def close_stream(client, service):
    stream = client.stream("Hi")
    delta = await first(stream)
    await answer(client, stream.close)
    assert [event async for event in events(stream)] == []
    with pytest.raises(ringline.Cancelled) as cancelled:
        await answer(client, stream.result)
    assert cancelled.value.partial.choices[0].text.startswith(delta.text), "it tells what it had"


async def cancel_task(client, service):
    task = asyncio.create_task(client.generate("Hi"))
    await service.asked.wait()  # whether or not the client has heard yet that it is admitted
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def close_from_another_thread(client, service):
    stream = client.stream("Hi")
    await first(stream)
    threading.Timer(0.05, stream.close).start()
    await asyncio.to_thread(list, stream)


@pytest.mark.parametrize(
    ("kind", "leave"),
    [
        *itertools.product((ringline.Client, ringline.AsyncClient), (leave_loop, leave_block, close_stream)),
        (ringline.Client, close_from_another_thread),
        (ringline.AsyncClient, cancel_task),
    ],
)
async def test_whoever_leaves_cancels_the_request_and_nothing_else(server, kind, leave):
    server.plays(forever, hello)
    async with connected(kind, server.address) as client:
        await leave(client, server.service)
        gc.collect()
        async with asyncio.timeout(60):
            await server.service.cancelled.wait()
        assert (await answer(client, lambda: client.generate("Hi"))).text == "Hello, world"
    assert server.service.sessions == (kind is ringline.AsyncClient)


async def close_it(stream, result):
    await stream.close()
    await stream.close()


async def cancel_it(stream, result):
    result.cancel()


@asynccontextmanager
async def no_session(client, server):
    """The server does not begin the session yet."""
    server.service.may_begin.clear()
    yield lambda: server.service.sessions
    server.service.may_begin.set()


@asynccontextmanager
async def no_turn(client, server):
    """As many requests are live as may."""
    server.service.limits.max_live_requests = 1
    server.plays(forever, hello)
    async with client.stream("Hi") as occupant:
        await anext(occupant)
        (session_stream,) = client._session._session_streams
        yield lambda: session_stream._slots._waiters


@asynccontextmanager
async def no_retry(client, server):
    """The server has asked for a pause."""
    pause = error_details_pb2.RetryInfo(retry_delay=Duration(seconds=50))
    server.plays(play(refusal(grpc.StatusCode.RESOURCE_EXHAUSTED, "full", pause)), hello)
    yield lambda: server.service.requests


@pytest.mark.parametrize("leave", [close_it, cancel_it])
@pytest.mark.parametrize("hold", [no_session, no_turn, no_retry])
async def test_whoever_leaves_before_an_attempt_has_begun_is_not_computed_for(server, hold, leave):
    async with ringline.AsyncClient(server.address, retry_overloaded=True, patience=1000) as client:
        async with hold(client, server) as held:
            stream = client.stream("left")
            result = asyncio.create_task(stream.result())
            await until(held)
            await until(lambda: stream._wait is not None and stream._attempt is None)
            await leave(stream, result)
            async with asyncio.timeout(60):
                (outcome,) = await asyncio.gather(result, return_exceptions=True)
            before = len(server.service.requests)
        assert isinstance(outcome, ringline.Cancelled if leave is close_it else asyncio.CancelledError)
        assert (await client.generate("the next")).text == "Hello, world"
    assert [request.text for request in server.service.requests[before:]] == ["the next"]


async def test_a_stream_that_is_closed_just_when_its_attempt_begins_is_cancelled(server):
    server.plays(forever)
    async with ringline.AsyncClient(server.address) as client:
        stream = client.stream("Hi")
        begin = stream._begin

        async def close_meanwhile(retrying):
            attempt = await begin(retrying)
            await stream.close()
            return attempt

        stream._begin = close_meanwhile
        assert await anext(stream, None) is None
        async with asyncio.timeout(60):
            await server.service.cancelled.wait()


async def test_threads_share_a_blocking_client(server):
    server.plays(echo)
    with ringline.Client(server.address) as client:
        prompts = [f"prompt {number}" for number in range(16)]
        answers = await asyncio.gather(*(asyncio.to_thread(client.generate, prompt) for prompt in prompts))
    assert [answer.text for answer in answers] == prompts


async def test_whatever_ends_the_reader_nobody_waits_for_ever(server, monkeypatch):
    def broken(attempt, response):
        raise RuntimeError("unexpected")

    monkeypatch.setattr("ringline.session_stream.Attempt.take", broken)
    server.plays(hello)
    async with ringline.AsyncClient(server.address, patience=0) as client:
        with pytest.raises(ringline.Unavailable):
            await asyncio.wait_for(client.generate("Hi"), 60)


async def test_a_stream_that_is_closed_while_its_call_begins_is_cancelled(server):
    server.plays(forever)

    def begin_and_close():
        with ringline.Client(server.address) as client:
            stream = client.stream("Hi")
            begin = stream._open

            def close_meanwhile(*args):
                stream.close()
                return begin(*args)

            stream._open = close_meanwhile
            return next(stream, None)

    assert await asyncio.to_thread(begin_and_close) is None


async def test_a_session_that_drains_is_left_when_nothing_is_live_on_it_and_nobody_notices(server):
    """Not even those who wait for a place on it, nor clients that try nothing again."""
    go = asyncio.Event()
    server.service.limits.max_live_requests = 1
    server.plays(play(admitted(), go, delta(0, [1], "a"), ended(completion=1)), hello)
    async with ringline.AsyncClient(server.address, patience=0) as client:
        begun = asyncio.create_task(client.generate("first"))
        await server.service.asked.wait()
        waiting = asyncio.gather(*(client.generate(f"waits {number}") for number in range(3)))
        await asyncio.sleep(0.05)
        assert not waiting.done(), "there is one place"
        server.service.limits.max_live_requests = 10  # of the next session
        await server.service.drain()
        assert [answer.text for answer in await waiting] == ["Hello, world"] * 3
        assert server.service.sessions == 2
        assert not server.service.closed.is_set(), "a request is live"
        go.set()
        assert (await begun).text == "a"
        await asyncio.wait_for(server.service.closed.wait(), 20)
        assert (await client.generate("later")).text == "Hello, world"
    assert server.service.sessions == 2
