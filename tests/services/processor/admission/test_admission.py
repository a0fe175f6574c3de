"""What requests take of each limit, from their arrival to their end."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import pytest
from ringline.detokenizer.v1 import detokenizer_pb2
from ringline.engine.v1 import engine_pb2

from services.ring.adapters import Adapter, AdapterState
from services.ring.errors import Code, Status
from services.ring.events import FinishReason
from services.ring.identity import PeerId
from tests.services.processor.model_specs import served_model
from tests.services.processor.queue_harness import QueueHarness
from tests.services.processor.ring_requests import Ring, ask, expected
from tests.services.ring.ring_simulation import MODEL_MESSAGE


def test_resumed_ids_count_as_computed(world: Ring, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else engines look so slow, beside what requests take, that others are refused."""
    computed: list[int] = []
    ended: list[int] = []
    monkeypatch.setattr(world.backlog, "computed", lambda model, tokens: computed.append(tokens))
    monkeypatch.setattr(world.backlog, "ended", lambda model, tenant, tokens, seconds: ended.append(tokens))
    request = ask()
    request.resume.choices.add(choice=0, token_ids=expected(15))
    request.resume.model_digest = MODEL_MESSAGE.model_digest
    world.ask(request)
    world.settle()
    assert world.usage().completion_tokens == 20
    assert ended == [sum(computed)] == [world.usage().prompt_tokens + 20]


@pytest.fixture
def charged(world: Ring, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Tokens, as they are taken out of a tenant's."""
    tokens: list[int] = []
    monkeypatch.setattr(world.rate_limiter, "computed", lambda tenant, amount, now: tokens.append(amount))
    return tokens


def test_a_prompt_is_charged_once_and_also_when_it_is_cancelled_while_it_is_computed(
    world: Ring, charged: list[int]
) -> None:
    call = world.ask(ask())
    prompt = call.resolved.prompt_tokens
    begun = engine_pb2.Prefill(request_id=call.request_id, epoch=1, prompt_tokens=prompt)
    world.text_output.receive(detokenizer_pb2.TextOutputs(prefills=[begun]))
    world.in_flight.end(call, FinishReason.CANCELLED)
    assert charged == [prompt]
    world.settle()
    charged.clear()
    world.ask(ask(max_tokens=7))
    world.settle()
    assert sum(charged) == prompt + 7


@pytest.mark.parametrize("finish_reason", [FinishReason.CANCELLED, FinishReason.DEADLINE])
def test_a_request_given_up_before_its_first_report_is_charged_its_prompt(
    finish_reason: FinishReason, world: Ring, charged: list[int]
) -> None:
    call = world.ask(ask())
    prompt = call.resolved.prompt_tokens
    world.in_flight.end(call, finish_reason)
    world.settle()
    assert charged == [prompt]


def test_a_prompt_without_an_engine_is_not_charged(world: Ring, charged: list[int]) -> None:
    world.kill_engine("engine-0")
    world.in_flight.end(world.ask(ask()), FinishReason.CANCELLED)
    world.heal()
    world.settle()
    refused = world.ask(ask())
    world.in_flight.end(refused, FinishReason.ERROR, Status(Code.UNAVAILABLE, "it is the ring's own fault"))
    world.settle()
    assert not charged


def test_a_prompt_whose_time_runs_out_at_the_engine_is_charged(world: Ring, charged: list[int]) -> None:
    call = world.ask(ask())
    prompt = call.resolved.prompt_tokens
    end = detokenizer_pb2.TextFinished(request_id=call.request_id, epoch=1, finish_reason=FinishReason.DEADLINE)
    world.text_output.receive(detokenizer_pb2.TextOutputs(finished=[end]))
    assert charged == [prompt]


@pytest.mark.parametrize("max_output", [7, 100_000])
def test_all_beams_of_a_search_are_charged(max_output: int, world: Ring, charged: list[int]) -> None:
    """Of an abandoned one, which has delivered nothing, those that time and ``max_tokens`` allowed; and but once."""
    call = world.ask(ask(max_tokens=20, n=2))
    prompt = call.resolved.prompt_tokens
    call._resolved = replace(call.resolved, beams=8, max_output=max_output)
    world.settle()
    assert sum(charged) == prompt + 2 * 20 * 8 // 2
    charged.clear()
    call = world.ask(ask(n=2))
    call._resolved = replace(call.resolved, beams=8, max_output=max_output)
    call.computing_since = time.monotonic() - 2
    for choice in range(2):
        end = detokenizer_pb2.TextFinished(
            request_id=call.request_id, epoch=1, choice=choice, finish_reason=FinishReason.DEADLINE
        )
        world.text_output.receive(detokenizer_pb2.TextOutputs(finished=[end]))
    steps = (sum(charged) - prompt) / 8
    assert steps == 7 or 2000 <= steps < 5000


async def test_requests_in_flight_are_bounded_by_their_memory() -> None:
    core = QueueHarness(max_live_bytes=1)
    await asyncio.sleep(0)
    calls = [core.ask(name, 10) for name in ("first", "second")]
    await core.run()
    ended = [response for response in core.stream.take().responses if response.HasField("refused")]
    (refused,) = ended
    assert refused.refused.status.code == Code.RESOURCE_EXHAUSTED
    assert refused.refused.status.message.startswith("prompt: this request takes ")
    assert refused.refused.status.details, "when to come again"
    (live,) = [call for call in calls if call.admitted]
    core.in_flight.end(live, FinishReason.CANCELLED)
    again = core.ask("again", 10)
    await core.run()
    assert again.admitted
    core.queue.close()


async def test_requests_that_wait_for_adapters_are_no_sign_of_slow_engines() -> None:
    core, engine, name = QueueHarness(), PeerId("e", 1), served_model().limits.name
    core.routes.adapters.attached(engine, served_model().generation)
    core.routes.adapters.told(engine, [(Adapter("fr", "1" * 64), AdapterState())], complete=True, now=1)
    await asyncio.sleep(0)
    asked = {tenant: core.ask("one", 10, tenant, model="fr") for tenant in ("a", "b", "c")}
    assert {request.awaited for request in asked.values()} == {f"{name}:*"}
    assert core.ask("plain", 10, "a").awaited == name
    for queue in core.backlog._queues.values():
        queue.throughput.per_second = lambda: 10.0  # type: ignore[method-assign]
        queue.admitted = 1
        queue.ended("a", 40, 1.0)
    assert core.backlog._queues[name].wait("a", 1) == pytest.approx(2 * 1 * 40 / 10)
    assert core.backlog._queues[f"{name}:*"].wait("a", 1) == pytest.approx(2 * 3 * 40 / 10)
    await core.run()
    core.queue.close()


async def test_a_request_waits_for_the_engines_of_its_model() -> None:
    core = QueueHarness()
    await asyncio.sleep(0)
    assert core.ask("known", 10).awaited == served_model().limits.name
    assert [*core.backlog._queues] == [served_model().limits.name]
    core.served.clear()
    assert core.ask("not known yet", 10).awaited == ""
    assert core.backlog.num_waiting == 2
    core.served.append(served_model().generation)
    await core.run()
    core.queue.close()
