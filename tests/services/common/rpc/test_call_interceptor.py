"""Every call: who may make it, how it is read and answered, and what its caller is told of what its handler raises."""

import asyncio

import grpc
import pytest
from ringline.inference.v1 import inference_pb2, inference_pb2_grpc

from services.common.config.settings import ServerSettings
from services.ring.errors import Code, Reason, Refused
from tests.services.common.rpc.inference_server import SECONDS, SERVICE, details_of, serving


async def drained(call):
    """Every answer of a call, or its error."""
    return [await call] if isinstance(call, grpc.aio.UnaryUnaryCall) else [answer async for answer in call]


def logged(caplog):
    """What was logged here. gRPC brings the end of a call that an earlier test left to whichever loop runs now."""
    return [one for one in caplog.records if not one.exc_info or str(one.exc_info[1]) != "Event loop is closed"]


async def test_an_unexpected_error_is_internal_and_tells_nothing():
    async with serving() as (_, channel, _):
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        calls = [
            stub.Tokenize(inference_pb2.TokenizeRequest(text="break")),
            drained(stub.Generate(inference_pb2.GenerateRequest(request_id="break"))),
        ]
        for call in calls:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call
            assert caught.value.code() is grpc.StatusCode.INTERNAL
            assert "secret" not in caught.value.details()


async def test_a_status_that_a_handler_chose_and_an_answer_pass_through():
    async with serving() as (_, channel, _):
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Tokenize(inference_pb2.TokenizeRequest(text="refuse"))
        assert (caught.value.code(), caught.value.details()) == (grpc.StatusCode.FAILED_PRECONDITION, "not now")
        assert (await stub.Tokenize(inference_pb2.TokenizeRequest(text="hello"))).rendered == "hello"
        answers = await drained(stub.Generate(inference_pb2.GenerateRequest(request_id="r")))
        assert [answer.request_id for answer in answers] == ["r"]


@pytest.mark.parametrize(("request_text", "tracebacks"), [("refuse twice", 0), ("refuse and break", 1)])
async def test_what_fails_after_the_status_is_logged_at_most_once(request_text, tracebacks, caplog, capsys):
    async with serving() as (_, channel, _):
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Tokenize(inference_pb2.TokenizeRequest(text=request_text))
        assert (caught.value.code(), caught.value.details()) == (grpc.StatusCode.FAILED_PRECONDITION, "not now")
        answer = await stub.Tokenize(inference_pb2.TokenizeRequest(text="hello"))
        assert answer.rendered == "hello"
    printed = "".join(capsys.readouterr())
    assert (logged(caplog), printed.count("unexpected error in an RPC")) == ([], tracebacks)


BROKEN_UTF8 = inference_pb2.TokenizeRequest(text="abcd").SerializeToString().replace(b"abcd", b"\xff\xfe\xfd\xfc")


@pytest.mark.parametrize("data", [b"\xff\xff\xff", BROKEN_UTF8])
async def test_a_single_message_that_is_none_is_an_invalid_argument(data):
    async with serving() as (_, channel, _):
        for make, method in ((channel.unary_unary, "Tokenize"), (channel.unary_stream, "Generate")):
            with pytest.raises(grpc.aio.AioRpcError, match="cannot be parsed") as caught:
                await drained(make(f"/{SERVICE}/{method}")(data))
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize(
    "malformed", [b"\xff\xff\xff", b"\x12\x06\x0a\x04\xff\xfe\xfd\xfc"], ids=["none", "broken UTF-8"]
)
async def test_a_malformed_frame_ends_its_own_stream_after_those_before_it(malformed):
    async with serving() as (_, channel, servicer):
        good = inference_pb2.SessionRequest(cancel=inference_pb2.CancelRequest(request_id="r")).SerializeToString()
        undisturbed = channel.stream_stream(f"/{SERVICE}/Session")()
        await undisturbed.write(good)
        await undisturbed.read()
        session = channel.stream_stream(f"/{SERVICE}/Session")()
        for data in (good, malformed):
            await session.write(data)
        with pytest.raises(grpc.aio.AioRpcError, match="cannot be parsed") as caught:
            await drained(session)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        await undisturbed.write(good)
        assert await undisturbed.read() == b""
        assert servicer.seen == ["cancel"] * 3


async def test_a_message_above_the_limit_ends_its_own_call():
    async with serving(ServerSettings(max_message_bytes=2 * 2**20)) as (_, channel, _):
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Tokenize(inference_pb2.TokenizeRequest(text="x" * (2 * 2**20)))
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert (await stub.Tokenize(inference_pb2.TokenizeRequest(text="x" * 2**20))).rendered == "x" * 2**20


async def test_a_client_that_cancels_is_not_an_error(caplog):
    async with serving() as (_, channel, _):
        session = channel.stream_stream(f"/{SERVICE}/Session")()
        await session.write(b"")
        await session.read()
        session.cancel()
        assert await session.code() is grpc.StatusCode.CANCELLED
    assert not logged(caplog)


async def test_a_generator_is_closed_while_its_call_is_there():
    """Closed later, as gRPC leaves it to be, what it asks its context ends the process."""
    async with serving() as (_, channel, servicer):
        call = channel.unary_stream(f"/{SERVICE}/Generate")(
            inference_pb2.GenerateRequest(request_id="on and on").SerializeToString()
        )
        await call.read()
        await asyncio.sleep(0.1)  # likely it waits for room on the connection then
        call.cancel()
        await asyncio.wait_for(servicer.closed.wait(), SECONDS)
        assert servicer.seen == ["in its own task"]


async def test_malformed_messages_are_logged_once_a_second(capsys):
    async with serving() as (_, channel, _):
        calls = [
            channel.unary_unary(f"/{SERVICE}/Tokenize"),
            channel.unary_unary("/grpc.health.v1.Health/Check"),
            channel.unary_stream("/grpc.health.v1.Health/Watch"),
        ]
        for make in calls * 10:
            with pytest.raises(grpc.aio.AioRpcError, match="cannot be parsed"):
                await drained(make(b"\xff\xff\xff"))
    told = [line for line in "".join(capsys.readouterr()).splitlines() if "malformed message" in line]
    assert told
    assert len(told) < 30, "unless each took a second"
    assert "not_logged_before=0" in told[0]


async def test_who_is_not_let_in_is_told_before_a_message_is_taken():
    def admit(context, method):
        if not dict(context.invocation_metadata()).get("key"):
            raise Refused(Code.UNAUTHENTICATED, "no key")

    async def nothing():
        await asyncio.Event().wait()
        yield b""

    async def raw(method, requests, **shown):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.stream_unary(f"/{SERVICE}/{method}")(requests, timeout=30, **shown)
        return caught.value.code(), details_of(caught.value)[0]

    unauthenticated = grpc.StatusCode.UNAUTHENTICATED, Reason.UNAUTHENTICATED
    invalid = grpc.StatusCode.INVALID_ARGUMENT, Reason.INVALID_FIELD
    key = {"metadata": (("key", "it"),)}
    async with serving(authorizers=[admit]) as (_, channel, _):
        for method in ("Tokenize", "Generate", "Session"):
            assert await raw(method, nothing()) == unauthenticated
            assert await raw(method, iter([b"\xff"])) == unauthenticated
            assert await raw(method, iter([b"\xff"]), **key) == invalid
        assert await raw("Tokenize", iter([]), **key) == invalid
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        assert (await stub.Tokenize(inference_pb2.TokenizeRequest(text="a"), **key)).rendered == "a"
        (generated,) = await drained(stub.Generate(inference_pb2.GenerateRequest(request_id="1"), **key))
        assert generated.request_id == "1"
