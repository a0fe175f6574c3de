"""More than the ring can do, in real processes: the rest is refused, nothing stays, no tenant pays for another."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import Counter
from collections.abc import AsyncIterator, Iterator

import grpc
import pytest
from google.rpc import error_details_pb2
from ringline.inference.v1 import inference_pb2_grpc

from services.ring.errors import Code
from tests.ring import Ring, running_ring
from tests.services.streams import Transcript, ask, read_session, read_until, send
from tests.services.test_session import DEADLINE, LENGTH, nothing_is_left

pytestmark = pytest.mark.long

PLACES = 32
"""In the queue; one tenant has half of them."""
FLAGS = ("--max-num-seqs", "2", "--max-queued-requests", str(PLACES), "--stall-timeout", "20")
LARGE = 64 << 10
"""Bytes of a request, of which few are used."""
LONG_WORD = " neighbours"
"""One token of the model: what is asked costs bytes, and little to tokenize."""
EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ring]:
    """A ring that is soon full."""
    with running_ring(tmp_path_factory.mktemp("small"), *FLAGS) as running:
        yield running


@pytest.fixture
async def front(small: Ring) -> AsyncIterator[inference_pb2_grpc.InferenceServiceAsyncStub]:
    async with grpc.aio.insecure_channel(small.address) as channel:
        yield inference_pb2_grpc.InferenceServiceStub(channel)


async def test_each_request_is_answered_whatever_is_offered_and_whoever_does_not_read(small: Ring, front) -> None:
    text = LONG_WORD * (LARGE // len(LONG_WORD))
    names = [str(i) for i in range(100)]
    transcripts = {name: Transcript() for name in names}
    asked = iter([ask(name, text, 40, ignore_eos=True, truncate_prompt_tokens=10) for name in names])
    call = front.Session(timeout=250)
    assert (await call.read()).limits.max_live_requests > 0
    await send(call, *itertools.islice(asked, PLACES // 8))
    await read_until(
        call, transcripts, lambda: any(one.ids for one in transcripts.values())
    )  # so that not all are refused
    unread = [front.Session() for _ in range(2)]

    async def flood(deaf_call: grpc.aio.StreamStreamCall) -> None:
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            for i in range(80):
                await send(deaf_call, ask(str(i), text, 100, ignore_eos=True, truncate_prompt_tokens=10))

    floods = [asyncio.create_task(flood(one)) for one in unread]
    writer = asyncio.create_task(send(call, *asked))
    await read_until(call, transcripts, lambda: all(one.complete for one in transcripts.values()))
    await writer
    refusals = [one.refused.status for one in transcripts.values() if one.refused is not None]
    assert {error.code for error in refusals} == {EXHAUSTED}
    for error in refusals:
        retry = error_details_pb2.RetryInfo()
        assert any(detail.Unpack(retry) for detail in error.details)
        assert retry.retry_delay.ToMilliseconds() > 0
    assert 0 < len(refusals) < len(names)
    assert all(
        one.complete and one.usage.completion_tokens == 40 for one in transcripts.values() if one.refused is None
    )
    for one in unread:
        one.cancel()
    await asyncio.gather(*floods, return_exceptions=True)
    call.cancel()
    await nothing_is_left(small)


async def test_a_flood_of_one_tenant_is_not_paid_for_by_another(small: Ring, front) -> None:
    flood = front.Session(metadata=(("x-ringline-tenant", "flood"),))
    # Several choices each take the engine many seconds, so that this process may stand still for a while.
    await send(flood, *(ask(str(i), max_tokens=600, n=4, ignore_eos=True) for i in range(2 * PLACES)))
    refused = 0
    while refused < PLACES:
        frame = await flood.read()
        refused += sum(one.HasField("refused") and one.refused.status.code == EXHAUSTED for one in frame.responses)
    call = front.Session(timeout=250, metadata=(("x-ringline-tenant", "other"),))
    names = [f"other {i}" for i in range(PLACES // 4)]
    await send(call, *(ask(name, max_tokens=5, ignore_eos=True) for name in names))
    transcripts = await read_session(call, names)
    assert Counter(one.ends[0].finish_reason for one in transcripts.values()) == {LENGTH: len(names)}
    assert small.load().waiting_requests > 0, "the flood waits"
    flood.cancel()
    call.cancel()
    await nothing_is_left(small)


async def test_work_that_nobody_waits_for_is_dropped_in_the_queue_and_under_way(small: Ring, front) -> None:
    call = front.Session(timeout=250)
    names = [str(i) for i in range(PLACES // 2)]
    await send(call, *(ask(name, max_tokens=1500, ignore_eos=True, timeout_ms=400) for name in names))
    transcripts = await read_session(call, names)
    refusals = [one.refused.status for one in transcripts.values() if one.refused is not None]
    in_vain = [status for status in refusals if status.code == EXHAUSTED]  # they would have waited in vain
    assert all(status.details for status in in_vain)
    assert {status.code for status in refusals} <= {EXHAUSTED, Code.DEADLINE_EXCEEDED}
    assert {one.ends[0].finish_reason for one in transcripts.values() if one.refused is None} <= {DEADLINE}
    assert len(in_vain) < len(names)
    await nothing_is_left(small)
    call.cancel()
