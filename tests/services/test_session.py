"""Many requests on one Session: every one gets exactly its ends, with the right finish reason and exact usage."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time

import grpc
import pytest
from ringline.inference.v1 import inference_pb2

from engine_core.llm import LLM
from engine_core.request import SamplingParams
from services.common.rpc.shared_messages import read_logprobs
from services.ring.errors import Code
from tests.ring import MODEL, Ring
from tests.services.ring.token_logprobs import unpacked
from tests.services.streams import (
    LONG_CHOICES,
    LONG_TOKENS,
    Transcript,
    ask,
    cancel,
    generate,
    long_work,
    read_session,
    read_until,
    send,
)

STOP, LENGTH, CANCELLED, DEADLINE, ERROR = range(1, 6)
HURRIED_MS = 40
"""Less than five hundred requests take together."""
TIMEOUTS_MS = [50 << doubled for doubled in range(8)]
"""From what a quiet machine needs to admit a request, to what a busy one does."""


async def test_text_is_that_of_the_ids(front) -> None:
    request = ask(max_tokens=40, temperature=1.5, seed=11, return_prompt_token_ids=True, ignore_eos=True)
    transcript = await generate(front, request)
    prompt = list(transcript.admitted.prompt_token_ids)

    async def decode(ids: list[int]) -> str:
        return (await front.Detokenize(inference_pb2.DetokenizeRequest(token_ids=ids))).text

    before = await decode(prompt)
    assert await decode(prompt + transcript.ids[0]) == before + transcript.texts[0]


async def test_five_hundred_requests_on_one_session(front, ring: Ring) -> None:
    rng = random.Random(4)
    requests = {"long": long_work("long")}
    cancels = {"long"}
    for index in range(500):
        text, tokens, n = (
            "Tell me " + "a story " * rng.randrange(1, 20),
            rng.randrange(1, 24),
            rng.choice([1, 1, 1, 2, 3]),
        )
        request = ask(f"r{index}", text, tokens, temperature=1.0, seed=index, n=n)
        kind = rng.randrange(5)
        if kind == 0:
            request.stopping.stop.extend(["e", "the"])
        elif kind == 1:
            request.timeout_ms = rng.choice([1, HURRIED_MS, 600_000])
        elif kind == 2:
            request.stopping.ignore_eos = True
        elif kind == 3:
            request.stopping.max_tokens, request.stopping.ignore_eos = 400, True
            cancels.add(request.request_id)
        requests[request.request_id] = request
    call = front.Session(timeout=250)
    await send(call, requests["long"])
    begun = {"long": Transcript()}
    await read_until(call, begun, lambda: begun["long"].ids)

    async def write() -> None:
        await send(call, *(request for name, request in requests.items() if name != "long"))
        await asyncio.sleep(0.3)
        for name in cancels:
            await cancel(call, name)

    writer = asyncio.create_task(write())
    transcripts = await read_session(call, requests, begun)
    await writer
    await call.done_writing()
    assert await call.code() is grpc.StatusCode.OK
    for name, request in requests.items():
        check(request, transcripts[name], cancelled=name in cancels)
    assert 0 < transcripts["long"].usage.completion_tokens < LONG_CHOICES * LONG_TOKENS
    assert {end.finish_reason for one in transcripts.values() for end in one.ends.values()} >= {STOP, LENGTH, CANCELLED}
    await nothing_is_left(ring)


async def test_a_request_whose_time_is_over_ends_so(front, ring: Ring) -> None:
    """It is given more time until it is admitted before that is over."""
    for timeout_ms in TIMEOUTS_MS:
        await nothing_is_left(ring)  # where others wait, it may be refused because they will take longer
        transcript = Transcript()
        with contextlib.suppress(grpc.aio.AioRpcError):
            await generate(front, long_work(timeout_ms=timeout_ms), transcript)
        if transcript.refused is None:
            break
        assert transcript.refused.status.code == Code.DEADLINE_EXCEEDED
    assert {end.finish_reason for end in transcript.ends.values()} == {DEADLINE}
    assert len(transcript.ends) == LONG_CHOICES
    assert transcript.usage.completion_tokens == sum(map(len, transcript.ids.values()))


def check(request: inference_pb2.GenerateRequest, transcript: Transcript, *, cancelled: bool) -> None:
    if transcript.refused is not None:  # before it was tokenized it was cancelled, or its time was over, or too short
        if transcript.refused.status.code == Code.CANCELLED:
            assert cancelled
            return
        assert transcript.refused.status.code in (Code.DEADLINE_EXCEEDED, Code.RESOURCE_EXHAUSTED)
        assert request.HasField("timeout_ms")
        assert request.timeout_ms <= HURRIED_MS
        return
    assert set(transcript.ends) == set(range(request.sampling.n))
    assert transcript.usage.completion_tokens == sum(map(len, transcript.ids.values()))
    assert transcript.usage.prompt_tokens == transcript.admitted.prompt_tokens
    for choice, end in transcript.ends.items():
        ids, text = transcript.ids.get(choice, []), transcript.texts.get(choice, "")
        if end.finish_reason == STOP and end.HasField("stop_string"):
            assert end.stop_string in request.stopping.stop
        elif end.finish_reason == STOP:
            assert ids[-1] == end.stop_token_id
            assert not request.stopping.ignore_eos
        elif end.finish_reason == LENGTH:
            assert len(ids) == request.stopping.max_tokens
        elif end.finish_reason == CANCELLED:
            assert cancelled
        else:
            assert end.finish_reason == DEADLINE
            assert request.HasField("timeout_ms")
        assert not any(stop in text for stop in request.stopping.stop)


async def nothing_is_left(ring: Ring) -> None:
    """Soon after: the engine holds no block and no ledger, the other two no request."""

    def left() -> dict[str, float]:
        load = ring.load()
        return {
            "ledgers": load.ledgers,
            "blocks": load.blocks_used,
            "sequences": load.running_choices + load.waiting_requests,
            "processor": ring.metric("processor", "ringline_live_requests"),
            "detokenizer": ring.metric("detokenizer", "ringline_live_requests"),
        }

    end = time.monotonic() + 60
    while any((found := await asyncio.to_thread(left)).values()):
        assert time.monotonic() < end, found
        await asyncio.sleep(0.1)


async def test_a_client_that_leaves_leaves_nothing(front, ring: Ring) -> None:
    call = front.Session()
    await send(call, *(ask(f"r{index}", max_tokens=500, ignore_eos=True) for index in range(20)))
    assert (await call.read()).HasField("limits")
    await call.read()
    call.cancel()
    await nothing_is_left(ring)


async def test_live_names_are_unique_and_can_be_used_again(front) -> None:
    call = front.Session(timeout=250)
    await send(call, long_work("same"), long_work("same"))
    refused, taken = [], Transcript()
    while not (taken.complete and refused):
        for response in (await call.read()).responses:
            if response.in_reply_to == 2:  # the first is refused, too, if it is cancelled before it is admitted
                refused.append(response)
                await cancel(call, "same")
            else:
                taken.add(response)
    assert refused[0].refused.status.code == grpc.StatusCode.INVALID_ARGUMENT.value[0]
    assert "request_id" in refused[0].refused.status.message
    await send(call, ask("same", max_tokens=2))
    assert (await read_session(call, ["same"]))["same"].usage.completion_tokens <= 2


@pytest.mark.parametrize("alternatives", [0, 20])
async def test_log_probabilities_are_those_of_the_engine_bit_for_bit(front, alternatives: int) -> None:
    """All the way from the sampler: as the same model gives them in this process."""
    chosen = {"temperature": 0.9, "seed": 7, "max_tokens": 12, "ignore_eos": True}
    chosen |= {"logprobs": alternatives, "prompt_logprobs": alternatives}
    transcript = await generate(front, ask(**chosen, return_prompt_token_ids=True))
    defaults = transcript.admitted.sampling
    params = SamplingParams(**chosen, top_k=defaults.top_k or None, top_p=defaults.top_p)
    with LLM(str(MODEL), kv_cache_memory_bytes=64 << 20, num_threads=1) as llm:
        [own] = llm.generate([list(transcript.admitted.prompt_token_ids)], params)
    assert transcript.ids[0] == own.choices[0].token_ids
    assert transcript.logprobs[0] == unpacked(own.choices[0].logprobs)
    assert unpacked(read_logprobs(transcript.prompt_logprobs)) == unpacked(own.prompt_logprobs)
