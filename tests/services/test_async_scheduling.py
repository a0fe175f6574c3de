"""A ring whose engine overlaps its steps shows clients what a ring whose engine does not shows them.

All at once, through a KV cache too small for all of it, beside requests that are cancelled and that run out of time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import grpc
import pytest
from ringline.engine.v1 import engine_pb2, engine_pb2_grpc
from ringline.inference.v1 import inference_pb2, inference_pb2_grpc
from ringline.types.v1 import output_pb2

from services.common.links.channels import Endpoint
from tests.ring import Ring, running_ring
from tests.services.streams import Transcript, ask, cancel, generate, read_session, send
from tests.services.test_engine_attach import begun
from tests.services.test_resume import CASES, asked
from tests.services.test_session import nothing_is_left

pytestmark = pytest.mark.usefixtures("ring")

ATTEMPTS = 20


@pytest.fixture(scope="module")
def overlapped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ring]:
    """Its cache holds 256 tokens, a few requests at a time; all others wait, however slow the machine is."""
    flags = ("--async-scheduling", "--max-model-len", "240", "--kv-cache-memory-bytes", str(16 * 40960))
    flags += ("--max-queue-time", "3600")
    with running_ring(tmp_path_factory.mktemp("overlapped"), *flags) as running:
        yield running


@pytest.fixture
async def other(overlapped: Ring) -> AsyncIterator[inference_pb2_grpc.InferenceServiceAsyncStub]:
    async with grpc.aio.insecure_channel(overlapped.address) as channel:
        yield inference_pb2_grpc.InferenceServiceStub(channel)


def answer_of(transcript: Transcript) -> tuple[object, ...]:
    """What must be the same with and without async scheduling."""
    ends = {
        choice: (end.finish_reason, end.WhichOneof("stop"), end.stop_string) for choice, end in transcript.ends.items()
    }
    usage = (transcript.usage.prompt_tokens, transcript.usage.completion_tokens)
    return transcript.ids, transcript.texts, transcript.logprobs, transcript.prompt_logprobs, ends, usage


async def test_a_request_whose_choices_preempt_each_other_shows_no_difference(front, other, overlapped: Ring) -> None:
    """Each of two choices fills most of the cache, and nothing else is there: one must give its blocks up."""
    request = asked(max_tokens=200, n=2)
    before = overlapped.load().preemptions
    assert answer_of(await generate(other, request)) == answer_of(await generate(front, request))
    assert overlapped.load().preemptions > before


async def test_clients_see_no_difference(front, other, overlapped: Ring) -> None:
    """What coincides differs from run to run, so all is asked again until all that may befall a request was seen."""
    expected = {name: await generate(front, request) for name, request in CASES.items()}
    seen: set[object] = set()
    for attempt in range(ATTEMPTS):
        before = overlapped.load().preemptions
        seen |= await ends_of_noise(other, expected, attempt)
        if overlapped.load().preemptions > before:
            seen.add("preempted")
        if seen >= {output_pb2.FINISH_REASON_DEADLINE, output_pb2.FINISH_REASON_CANCELLED, "preempted"}:
            return
    raise AssertionError(f"asked {ATTEMPTS} times, only {seen} was seen")


async def ends_of_noise(other, expected: dict[str, Transcript], attempt: int) -> set[object]:
    """Ask for all cases three times at once and compare them; returns how the requests beside them ended."""
    call = other.Session(timeout=250)
    # First of all, so that once nothing waits yet: where it would wait for too long, it would be refused, not late.
    noise = {name: ask(max_tokens=350, n=16, ignore_eos=True) for name in ("late", "cancelled")}
    noise["late"].timeout_ms = 50 * (attempt + 1)
    names = []
    for round_ in range(3):
        for name, request in (noise | CASES).items():
            named = inference_pb2.GenerateRequest()
            named.CopyFrom(request)
            named.request_id = f"{name} {attempt}.{round_}"
            names.append(named.request_id)
            await send(call, named)
        await asyncio.sleep(0.05 * round_)
        await cancel(call, f"cancelled {attempt}.{round_}")
    ends = set()
    for name, transcript in (await read_session(call, names)).items():
        name = name.rpartition(" ")[0]
        if name in expected:
            assert transcript.refused is None, (name, transcript.refused)
            assert answer_of(transcript) == answer_of(expected[name]), name
        elif transcript.refused is not None:  # it ended before it was admitted
            assert not transcript.ids, name
        else:
            assert transcript.usage.completion_tokens == sum(map(len, transcript.ids.values())), name
            ends |= {end.finish_reason for end in transcript.ends.values()}
    call.cancel()
    return ends


async def test_nothing_is_left_when_nobody_asks(other, overlapped: Ring) -> None:
    """A step that was submitted for a request which is gone is waited for all the same."""
    call = other.Generate(ask(max_tokens=350))
    async for response in call:
        if response.HasField("delta"):
            break
    call.cancel()
    await nothing_is_left(overlapped)


async def test_a_profile_sees_the_thread_that_computes(other, overlapped: Ring) -> None:
    async with Endpoint(overlapped.engine_address).open() as channel:
        engine = engine_pb2_grpc.EngineServiceStub(channel)
        profiling = await begun(engine, engine_pb2.ProfileRequest(steps=5))
        await generate(other, ask(max_tokens=20, ignore_eos=True))  # else it may end before so many steps
        profile = await profiling
    assert profile.steps == len(profile.step_ms) == 5
    assert list(profile.step_tokens)[1:] == [1, 1, 1, 1]
    assert "aten::" in profile.table
