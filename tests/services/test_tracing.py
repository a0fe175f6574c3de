"""A request's trace through real processes, collected by a real OTLP receiver: every hop, where and when it was."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
from collections.abc import AsyncIterator, Iterator

import grpc
import pytest
from ringline.inference.v1 import inference_pb2, inference_pb2_grpc

from tests.collector import Collector, Received, collecting
from tests.ring import Ring, running_ring
from tests.services.streams import Transcript, ask, generate, read_session, send

pytestmark = pytest.mark.long

PROMPT = "unmistakable beginning"
HOPS = {
    "request": "ringline-processor",
    "tokenize": "ringline-processor",
    "queue": "ringline-engine",
    "prefill": "ringline-engine",
    "decode": "ringline-engine",
    "detokenize": "ringline-detokenizer",
    "deliver": "ringline-processor",
}
TOLERANCE = 5_000_000
"""Nanoseconds by which two processes may read the same clocks apart."""
TRIES = 5


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with collecting() as running:
        yield running


@pytest.fixture(scope="module")
def traced(collector: Collector, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ring]:
    """A ring that traces."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")  # of the exporter, milliseconds
        endpoint = f"http://127.0.0.1:{collector.port}"
        with running_ring(tmp_path_factory.mktemp("traced"), "--otlp-traces-endpoint", endpoint) as running:
            yield running


@pytest.fixture
async def front(traced: Ring) -> AsyncIterator[inference_pb2_grpc.InferenceServiceAsyncStub]:
    async with grpc.aio.insecure_channel(traced.address) as channel:
        yield inference_pb2_grpc.InferenceServiceStub(channel)


def context(*, sampled: bool = True) -> tuple[str, str, str]:
    """A caller's trace id, span id, and both as a traceparent."""
    trace_id, span_id = secrets.token_hex(16), secrets.token_hex(8)
    return trace_id, span_id, f"00-{trace_id}-{span_id}-{'01' if sampled else '00'}"


def complete(spans: list[Received]) -> bool:
    return {one.name for one in spans} >= HOPS.keys()


async def ask_as(front, traceparent: str, request: inference_pb2.GenerateRequest) -> Transcript:
    """One Generate call with a traceparent in its metadata."""
    return await generate(front, request, metadata=(("traceparent", traceparent),))


def check_hops(spans: list[Received], parent: str) -> dict[str, Received]:
    """One of each, where it should be, inside of the request, in order; by name."""
    assert {one.name: one.service for one in spans} == HOPS
    assert len(spans) == len(HOPS)
    by_name = {one.name: one for one in spans}
    request = by_name["request"].span
    assert request.parent_span_id.hex() == parent
    begin = {name: one.span.start_time_unix_nano for name, one in by_name.items()}
    end = {name: one.span.end_time_unix_nano for name, one in by_name.items()}
    for name, one in by_name.items():
        assert begin[name] <= end[name], name
        if name != "request":
            assert one.span.parent_span_id == request.span_id, name
            assert begin["request"] <= begin[name] + TOLERANCE, name
    for earlier, later in (
        (end["tokenize"], begin["queue"]),
        (end["queue"], begin["prefill"]),
        (end["prefill"], begin["decode"]),
        (begin["decode"], begin["detokenize"]),
        (begin["detokenize"], begin["deliver"]),
        (end["decode"], end["detokenize"]),
        (end["detokenize"], end["deliver"]),
        (end["deliver"], end["request"]),
    ):
        assert earlier <= later + TOLERANCE
    return by_name


async def test_every_hop_is_in_the_callers_trace(front, collector: Collector) -> None:
    trace_id, span_id, traceparent = context()
    transcript = await ask_as(front, traceparent, ask("a", PROMPT, max_tokens=20, ignore_eos=True))
    spans = check_hops(collector.trace(trace_id, complete), span_id)
    request = spans["request"].attributes
    assert request["gen_ai.usage.input_tokens"] == transcript.usage.prompt_tokens
    assert request["gen_ai.usage.output_tokens"] == transcript.usage.completion_tokens > 0
    assert request["ringline.time_to_first_token"] > 0
    assert spans["decode"].attributes["gen_ai.usage.output_tokens"] == transcript.usage.completion_tokens
    assert spans["detokenize"].attributes["ringline.request_id"] == request["ringline.request_id"]
    (submitted,) = spans["request"].events("submitted")
    assert (submitted["engine"], submitted["detokenizer"]) == ("engine-0", "detokenizer-0")
    told = b"".join(one.span.SerializeToString() for one in spans.values())
    assert PROMPT.encode() not in told
    assert transcript.texts[0].encode() not in told


async def test_requests_of_one_session_have_each_their_own(front, collector: Collector) -> None:
    contexts = {name: context() for name in ("a", "b")}
    call = front.Session(timeout=250)
    for name, (_, _, traceparent) in contexts.items():
        await send(call, ask(name, traceparent=traceparent, ignore_eos=True))
    await read_session(call, contexts)
    for trace_id, span_id, _ in contexts.values():
        check_hops(collector.trace(trace_id, complete), span_id)
    call.cancel()


async def test_who_does_not_want_a_trace_has_none_and_nonsense_is_no_parent(front, collector: Collector) -> None:
    unwanted, _, refused = context(sampled=False)
    before = {one.span.trace_id.hex() for one in list(collector.spans)}
    for traceparent in (refused, "nonsense"):
        await ask_as(front, traceparent, ask(ignore_eos=True))
    last, span_id, traceparent = context()
    await ask_as(front, traceparent, ask(ignore_eos=True))
    check_hops(collector.trace(last, complete), span_id)  # each process sends in order, so the others' are here, too
    fresh = {one.span.trace_id.hex() for one in list(collector.spans)} - before
    assert unwanted not in fresh
    (own,) = fresh - {last}
    check_hops(collector.trace(own, complete), "")


async def test_a_refused_request_says_so_without_its_words(front, collector: Collector) -> None:
    trace_id, _, traceparent = context()
    with pytest.raises(grpc.aio.AioRpcError):
        await generate(front, ask(text=PROMPT, temperature=-1.0, traceparent=traceparent))
    (span,) = collector.trace(trace_id, bool)
    assert (span.name, span.attributes["rpc.grpc.status_code"]) == ("request", 3)
    assert span.span.status.code == 2
    assert PROMPT.encode() not in span.span.SerializeToString()


async def test_a_failover_is_an_event_of_its_request(front, traced: Ring, collector: Collector) -> None:
    """A detokenizer is killed; where it had the whole answer before that, another is asked for."""
    for _ in range(TRIES):
        trace_id, span_id, traceparent = context()
        request = ask(max_tokens=1500, ignore_eos=True)
        transcript, killed = Transcript(), False
        async for response in front.Generate(request, metadata=(("traceparent", traceparent),), timeout=100):
            transcript.add(response)
            if transcript.ids and not killed:
                killed = True
                os.kill(traced.pid("detokenizer"), signal.SIGKILL)
        assert transcript.usage.completion_tokens == 1500
        spans = {one.name: one for one in await asyncio.to_thread(collector.trace, trace_id, complete)}
        assert spans["request"].span.parent_span_id.hex() == span_id
        if events := spans["request"].events("failover"):
            assert events[0]["changed"] == "detokenizer"
            assert events[0]["epoch"] == 2
            assert "detokenizer-0" in events[0]["reason"]
            assert spans["detokenize"].attributes["ringline.epoch"] == 2
            assert spans["decode"].attributes["ringline.epoch"] == 2, "it went on where it was computed"
            return
        await generate(front, ask(ignore_eos=True))  # waits until it is there again
    raise AssertionError(f"no failover in {TRIES} tries")
