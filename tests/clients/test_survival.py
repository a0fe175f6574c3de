"""Processors are killed and stopped for real while their clients read; the answers are those of a calm ring."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Sequence

import pytest
import ringline

from tests.clients.processor_processes import Processors
from tests.ring import START_TIMEOUT, Ring

pytestmark = pytest.mark.long

Calm = dict[str, ringline.Generation]
LONG = ringline.Options(max_tokens=400, ignore_eos=True, timeout=50.0)
"""The timeout is less than the minute after which gRPC notices by itself that a process is stopped."""
KINDS: dict[str, ringline.Options] = {
    "greedy": {"temperature": 0.0, "seed": 6, **LONG},
    "sampled": {"temperature": 0.9, "seed": 7, "frequency_penalty": 0.3, **LONG},
    "choices": {"temperature": 0.9, "seed": 8, "n": 3, **LONG, "max_tokens": 240},
    "scores": {"temperature": 0.9, "seed": 9, "logprobs": 1, "prompt_logprobs": 1, **LONG},
    "stop": {"temperature": 0.9, "seed": 10, "stop": ["zzzz", "\n\n\n\n"], **LONG},
}
PROMPT = "Once upon a time"


def same(answer: ringline.Generation, calm: ringline.Generation) -> None:
    """All that a client sees, but for what the cache had."""
    for one, other in zip(answer.choices, calm.choices, strict=True):
        assert one == other
    assert answer.usage.prompt_tokens == calm.usage.prompt_tokens
    assert answer.usage.completion_tokens == calm.usage.completion_tokens
    assert answer.prompt_logprobs == calm.prompt_logprobs
    assert answer.request == calm.request


@pytest.fixture(scope="module")
def calm(ring: Ring) -> dict[str, ringline.Generation]:
    """The answers when nothing goes wrong."""

    async def ask() -> list[ringline.Generation]:
        async with ringline.AsyncClient(ring.address) as client:
            return await asyncio.gather(*(client.generate(PROMPT, **options) for options in KINDS.values()))

    return dict(zip(KINDS, asyncio.run(ask()), strict=True))


def read(stream: ringline.Stream, begun: Callable[[], object]) -> ringline.Generation:
    """The loop of somebody who knows nothing of all this."""
    texts: list[str] = []
    ids: list[int] = []
    for delta in stream:
        begun()
        texts.append(delta.text)
        ids += delta.token_ids
    answer = stream.result()
    assert ("".join(texts), tuple(ids)) == (answer.text, answer.token_ids)
    return answer


async def begin(client: ringline.Client, kind: str) -> asyncio.Task[ringline.Generation]:
    """Read an answer in a thread; returns when its first tokens came."""
    begun, loop = asyncio.Event(), asyncio.get_running_loop()
    stream = client.stream(PROMPT, **KINDS[kind])
    reading = asyncio.create_task(asyncio.to_thread(read, stream, lambda: loop.call_soon_threadsafe(begun.set)))
    await begun.wait()
    return reading


async def begin_all(
    client: ringline.AsyncClient, kinds: Sequence[str], **others: float
) -> asyncio.Future[list[ringline.Generation]]:
    """Ask for all at once; returns when each has tokens."""
    begun = [asyncio.Event() for _ in kinds]

    async def ask(kind: str, event: asyncio.Event) -> ringline.Generation:
        async with client.stream(PROMPT, **(KINDS[kind] | others)) as stream:
            async for _ in stream:
                event.set()
            return await stream.result()

    asking = asyncio.gather(*(ask(kind, event) for kind, event in zip(kinds, begun, strict=True)))
    for event in begun:
        await event.wait()
    return asking


async def test_the_loop_over_tokens_does_not_notice_a_kill(processors: Processors, calm: Calm) -> None:
    with ringline.Client(processors.addresses) as client:
        for kind in ("sampled", "greedy"):
            reading, victim = await processors.kill_holder(lambda kind=kind: begin(client, kind))
            answer = await reading
            same(answer, calm[kind])
            assert answer.resumed == 1
            await victim.wait_serving()


async def test_many_requests_of_a_session_survive_kills_in_turn(processors: Processors, calm: Calm) -> None:
    async with ringline.AsyncClient(",".join(processors.addresses), patience=START_TIMEOUT) as client:
        kinds = [*KINDS, *KINDS]
        async with processors.caught(lambda: begin_all(client, kinds, timeout=START_TIMEOUT)) as (asking, first):
            first.kill()
            first.start()
            second = await processors.holder(asking)
            assert second is not None, "they went to the other, or wait for it"
            assert second is not first
            second.kill()
        second.start()
        answers = await asking
        for kind, answer in zip(kinds, answers, strict=True):
            same(answer, calm[kind])
            assert answer.resumed <= 2
        assert any(answer.resumed for answer in answers), "all had ended before a processor was killed"


async def test_a_processor_that_hangs_is_noticed(processors: Processors, calm: Calm) -> None:
    """Both kinds of client, one after the other, since neither says which processor it has."""
    kinds = ["sampled", "choices"]
    async with ringline.AsyncClient(processors.addresses) as client:
        async with processors.caught(lambda: begin_all(client, kinds)) as (asking, victim):
            victim.signal(signal.SIGSTOP)
        answers = dict(zip(kinds, await asking, strict=True))
    with (
        ringline.Client(victim.address, wait_for_ready=True) as waiting,
        ringline.Client(processors.addresses) as client,
    ):
        held = asyncio.create_task(asyncio.to_thread(waiting.generate, PROMPT, **KINDS["greedy"]))
        answers["scores"] = await asyncio.to_thread(client.generate, PROMPT, **KINDS["scores"])
        victim.signal(signal.SIGCONT)
        answers["greedy"] = await held
    for kind, answer in answers.items():
        same(answer, calm[kind])
        assert answer.resumed <= (kind in kinds)
    assert any(answers[kind].resumed for kind in kinds), "one of them had not ended before"


async def test_silence_of_the_engine_is_no_alarm(processors: Processors, calm: Calm) -> None:
    """As long as the processor answers pings; it is as silent while a long prompt is computed."""
    with ringline.Client(processors.addresses) as client:
        reading = await begin(client, "sampled")
        with processors.engine_paused():
            await asyncio.sleep(7)
        answer = await reading
    same(answer, calm["sampled"])
    assert answer.resumed == 0


async def test_the_only_processor_is_waited_for(processors: Processors, calm: Calm) -> None:
    only = processors.all[0]
    while_it_starts = {"timeout": START_TIMEOUT}
    async with ringline.AsyncClient(only.address, patience=START_TIMEOUT) as client:
        asking, _ = await processors.kill_holder(lambda: begin_all(client, ["choices"], **while_it_starts))
        unadmitted = await client.generate(PROMPT, **(KINDS["sampled"] | while_it_starts))
        (answer,) = await asking
    same(answer, calm["choices"])
    same(unadmitted, calm["sampled"])
    assert (answer.resumed, unadmitted.resumed) == (1, 0)


async def test_a_name_with_several_addresses(processors: Processors, calm: Calm) -> None:
    """As DNS gives them; gRPC turns to the others by itself."""
    with ringline.Client(f"ipv4:{','.join(processors.addresses)}") as client:
        async with processors.caught(lambda: begin(client, "sampled")) as (reading, victim):
            victim.kill()
        answer = await reading
    same(answer, calm["sampled"])
    assert answer.resumed == 1
