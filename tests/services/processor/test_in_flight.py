"""What becomes of a request when its engine or detokenizer fails, refuses or leaves."""

from __future__ import annotations

import gc
import time

import pytest
from google.rpc import status_pb2
from ringline.detokenizer.v1 import detokenizer_pb2
from ringline.engine.v1 import engine_pb2
from ringline.types.v1 import link_pb2

from services.processor.request import Request
from services.ring.errors import Code, Status
from services.ring.events import ChoiceEnd, FinishReason
from tests.services.processor.ring_requests import (
    ask,
    end,
    events,
    expected,
    ids,
    moves,
    processors_stream,
    sent_submits,
    settle,
    usage,
)
from tests.services.ring.ring_simulation import MODEL_MESSAGE, ORPHAN_GRACE, RingSimulation


def test_only_the_choices_that_are_resumed_are_computed(world: RingSimulation) -> None:
    request = ask(n=3)
    request.resume.choices.add(choice=1)
    world.ask(request)
    world.flow(tokens=1)
    (running,) = world.engines["engine-0"].core.requests.values()
    assert running.resume.keys() == {1}
    settle(world)
    assert end(world).choice == 1
    assert ids(world, 1) == expected(20, 1)


def test_resumed_ids_count_as_computed(world: RingSimulation, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else engines look so slow, beside what requests take, that others are refused."""
    computed: list[int] = []
    ended: list[int] = []
    monkeypatch.setattr(world.backlog, "computed", computed.append)
    monkeypatch.setattr(world.backlog, "ended", lambda tenant, tokens, seconds: ended.append(tokens))
    request = ask()
    request.resume.choices.add(choice=0, token_ids=expected(15))
    request.resume.model_digest = MODEL_MESSAGE.model_digest
    world.ask(request)
    settle(world)
    assert usage(world).completion_tokens == 20
    assert ended == [sum(computed)] == [usage(world).prompt_tokens + 20]


def test_a_rejection_of_an_earlier_epoch_is_ignored(world: RingSimulation) -> None:
    call = world.ask(ask())
    world.flow(tokens=1)
    world.kill_engine("engine-0")
    world.heal()
    world.flow(tokens=1)
    (live,) = world.in_flight._requests.values()
    assert live.delivery.epoch == 2
    status = status_pb2.Status(code=Code.INVALID_ARGUMENT, message="no")
    world.in_flight.rejected(link_pb2.Rejection(request_id=call.request_id, epoch=1, status=status))
    settle(world)
    assert end(world).finish_reason == FinishReason.LENGTH


def test_a_request_ends_once(world: RingSimulation) -> None:
    call = world.ask(ask())
    world.flow(tokens=2)
    world.flow(tokens=2)
    for finish_reason in (FinishReason.CANCELLED, FinishReason.DEADLINE, FinishReason.CANCELLED):
        world.in_flight.end(call, finish_reason)
    assert end(world).finish_reason == FinishReason.CANCELLED
    settle(world)
    assert world.quiet


def test_an_ended_request_is_freed_without_the_garbage_collector(world: RingSimulation) -> None:
    world.ask(ask())
    settle(world)
    call = world.ask(ask())
    world.flow(tokens=1)
    gc.collect()
    gc.disable()
    try:
        world.in_flight.end(call, FinishReason.CANCELLED)
        del call
        settle(world)
        objects = [one for one in gc.get_objects() if type(one) is Request]
        assert not [one for one in objects if one.stream is world.client]
    finally:
        gc.enable()


def test_a_done_lost_with_its_link_leaves_nothing(world: RingSimulation) -> None:
    call = world.ask(ask())
    world.flow(tokens=1)
    world.in_flight.end(call, FinishReason.CANCELLED)
    processors_stream(world).commands.clear()
    world.detach(processors_stream(world))
    world.heal()
    settle(world)
    assert world.engines["engine-0"].registry.num_ledgers == 1
    world.pass_time(2 * ORPHAN_GRACE)
    settle(world)
    assert world.quiet


def test_an_engine_that_refuses_a_redirect_forgets_what_went_elsewhere(wide: RingSimulation) -> None:
    wide.ask(ask(max_tokens=60))
    wide.flow(tokens=1)
    wide.flow(tokens=1)
    (first,) = [engine for engine in wide.engines.values() if engine.registry.num_ledgers]
    route = next(iter(wide.in_flight._requests.values())).route
    assert route is not None
    # Its detokenizer dies, and the other one, to which the processor redirects, has just lost its link to the engine.
    (other,) = [name for name in wide.detokenizers if name != route.detokenizer.name]
    wide.kill_detokenizer(route.detokenizer.name)
    wide.detach(first.streams[other])
    settle(wide)
    wide.pass_time(ORPHAN_GRACE / 2)
    assert first.registry.num_ledgers == 0
    assert end(wide).finish_reason == FinishReason.LENGTH
    assert wide.quiet


def test_a_detokenizer_that_is_lost_while_the_engine_drains_is_replaced(wide: RingSimulation) -> None:
    wide.ask(ask(max_tokens=60))
    wide.flow(tokens=1)
    live = next(iter(wide.in_flight._requests.values()))
    assert live.route is not None
    engine = wide.engines[live.route.engine.name]
    engine.registry.draining = True
    wide.link_events.engine_frame(
        engine.streams["processor"],  # type: ignore[arg-type]
        engine.me,
        engine_pb2.AttachResponse(draining={}),
    )
    wide.kill_detokenizer(live.route.detokenizer.name)
    assert live.route is not None
    assert live.route.engine == engine.me, "it goes on where it is"
    settle(wide)
    assert end(wide).finish_reason == FinishReason.LENGTH
    assert not moves(wide)


@pytest.mark.parametrize("numerics", ["numerics", "others"])
def test_the_client_is_told_when_its_request_moves(world: RingSimulation, numerics: str) -> None:
    world.ask(ask())
    world.flow(tokens=2)
    world.flow(tokens=2)
    world.kill_engine("engine-0")
    world.described["engine-0"] = engine_pb2.GetModelResponse()
    world.described["engine-0"].CopyFrom(MODEL_MESSAGE)
    world.described["engine-0"].numerics = numerics
    world.heal()
    settle(world)
    (started,) = moves(world)
    assert started.identical == (numerics == "numerics")
    assert "engine-0" in started.reason


def test_no_move_is_reported_before_the_first_output(world: RingSimulation) -> None:
    world.ask(ask())
    world.kill_engine("engine-0")
    world.heal()
    settle(world)
    assert not moves(world)
    assert ids(world) == expected(20)


def test_a_client_resume_is_not_reported_as_a_move(world: RingSimulation) -> None:
    """It went on from what another processor had delivered; here it has not moved."""
    request = ask()
    request.resume.choices.add(choice=0, token_ids=expected(5))
    request.resume.model_digest, request.resume.numerics = "model", "numerics"
    world.ask(request)
    settle(world)
    assert not moves(world)
    assert ids(world) == expected(20)[5:]
    assert usage(world).completion_tokens == 20


def test_every_submit_carries_the_remaining_time(world: RingSimulation) -> None:
    call = world.ask(ask())
    assert not sent_submits(world)[0].HasField("timeout_ms")
    call.deadline = time.monotonic() + 1000.0
    world.kill_engine("engine-0")
    world.heal()
    processors_stream(world).write()
    for detokenizer_stream in world.streams():
        detokenizer_stream.write()
        detokenizer_stream.read()
    (submit,) = sent_submits(world)
    assert 900_000 < submit.timeout_ms <= 1_000_000
    assert submit.epoch == 2


def test_latencies_are_measured_per_choice(world: RingSimulation) -> None:
    world.ask(ask(max_tokens=20, n=2))
    settle(world)
    metrics = {
        metric.name: {s.name.rsplit("_", 1)[-1]: s.value for s in metric.samples}
        for metric in world.in_flight._metrics.collect()
    }
    deltas = [response.delta for response in events(world, "delta")]
    assert len(deltas) > 2
    firsts = sum(len(delta.token_ids) for delta in deltas if delta.first_position == 0)
    assert metrics["vllm:time_to_first_token_seconds"]["count"] == 2
    assert metrics["vllm:inter_token_latency_seconds"]["count"] == 40 - firsts
    assert metrics["vllm:prompt_tokens"]["total"] == 2


def test_an_overshoot_is_neither_delivered_nor_counted(world: RingSimulation) -> None:
    letters = "".join(chr(ord("a") + token - min(expected(20))) for token in expected(20))
    request = ask()
    request.stopping.stop.append(letters[2:5])
    world.ask(request)
    settle(world)
    stop = letters.index(letters[2:5]) + 3
    assert end(world).finish_reason == FinishReason.STOP
    assert ids(world) == expected(stop)
    assert usage(world).completion_tokens == stop
    assert world.quiet


def test_a_request_too_large_to_resubmit_ends_alone(world: RingSimulation) -> None:
    """Sent all the same, it would end the link for every request on it, again and again."""
    world.ask(ask())
    (submit,) = sent_submits(world)
    world.flow(tokens=1)
    world.flow(tokens=1)
    world.kill_engine("engine-0")
    world.heal()
    processors_stream(world).max_command_bytes = submit.ByteSize()  # but now it has grown by what was delivered
    beside = ask()
    beside.request_id = "beside"
    world.ask(beside)
    settle(world)
    ended = {response.request_id: response.choice_finished for response in events(world, "choice_finished")}
    usages = {response.request_id: response.request_finished.usage for response in events(world, "request_finished")}
    assert ended["r"].error.code == Code.INVALID_ARGUMENT
    assert ended["r"].error.message.startswith("prompt: ")
    assert usages["r"].completion_tokens > 0
    assert ended["beside"].finish_reason == FinishReason.LENGTH
    assert world.quiet


@pytest.fixture
def charged(world: RingSimulation, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Tokens, as they are taken out of a tenant's."""
    tokens: list[int] = []
    monkeypatch.setattr(world.rate_limiter, "computed", lambda tenant, amount, now: tokens.append(amount))
    return tokens


def test_a_prompt_is_charged_once_and_also_when_it_is_cancelled_while_it_is_computed(
    world: RingSimulation, charged: list[int]
) -> None:
    call = world.ask(ask())
    prompt = next(iter(world.in_flight._requests.values())).resolved.prompt_tokens
    begun = engine_pb2.Prefill(request_id=call.request_id, epoch=1, prompt_tokens=prompt)
    world.in_flight.text(detokenizer_pb2.TextOutputs(prefills=[begun]))
    world.in_flight.end(call, FinishReason.CANCELLED)
    assert charged == [prompt]
    settle(world)
    charged.clear()
    world.ask(ask(max_tokens=7))
    settle(world)
    assert sum(charged) == prompt + 7


@pytest.mark.parametrize("finish_reason", [FinishReason.CANCELLED, FinishReason.DEADLINE])
def test_a_request_given_up_before_its_first_report_is_charged_its_prompt(
    finish_reason: FinishReason, world: RingSimulation, charged: list[int]
) -> None:
    call = world.ask(ask())
    prompt = next(iter(world.in_flight._requests.values())).resolved.prompt_tokens
    world.in_flight.end(call, finish_reason)
    settle(world)
    assert charged == [prompt]


def test_a_prompt_without_an_engine_is_not_charged(world: RingSimulation, charged: list[int]) -> None:
    world.kill_engine("engine-0")
    world.in_flight.end(world.ask(ask()), FinishReason.CANCELLED)
    world.heal()
    settle(world)
    refused = world.ask(ask())
    world.in_flight.end(refused, FinishReason.ERROR, Status(Code.UNAVAILABLE, "it is the ring's own fault"))
    settle(world)
    assert not charged


def test_a_prompt_whose_time_runs_out_at_the_engine_is_charged(world: RingSimulation, charged: list[int]) -> None:
    call = world.ask(ask())
    prompt = next(iter(world.in_flight._requests.values())).resolved.prompt_tokens
    world.in_flight._choice_ended(call.request_id, 1, 0, ChoiceEnd(FinishReason.DEADLINE, 0), set())
    assert charged == [prompt]
