"""Frames that are lost, late or too early: replays are requested, up to a limit, and nothing is delivered twice."""

from __future__ import annotations

from dataclasses import replace

import pytest
from ringline.detokenizer.v1 import detokenizer_pb2
from ringline.engine.v1 import engine_pb2
from ringline.inference.v1 import inference_pb2
from ringline.response_reader import ResponseReader

from services.processor.failover import MAX_REDIRECTS
from services.processor.request import Request
from services.ring.errors import Code
from services.ring.events import FinishReason
from tests.services.processor.ring_requests import ask, end, events, expected, ids, processors_stream, settle
from tests.services.ring.ring_simulation import RingSimulation


def text_beyond(call: Request, epoch: int) -> detokenizer_pb2.TextOutputs:
    """A delta that something was lost before."""
    return detokenizer_pb2.TextOutputs(
        request_ids=[call.request_id],
        epochs=[epoch],
        choices=[0],
        first_positions=[50],
        token_counts=[1],
        token_ids=[1],
        texts=["a"],
    )


def test_frames_that_do_not_fit_cause_no_replay_without_a_route(world: RingSimulation) -> None:
    call = world.ask(ask())
    world.flow(tokens=1)
    world.flow(tokens=1)
    world.kill_detokenizer("detokenizer-0")
    (live,) = world.in_flight._requests.values()
    epoch = live.delivery.epoch
    for _ in range(MAX_REDIRECTS + 1):
        world.in_flight.text(text_beyond(call, epoch))
    assert (live.delivery.epoch, live.delivery.redirects) == (epoch, 0)
    assert not processors_stream(world).commands
    world.heal()
    settle(world)
    assert ids(world) == expected(20)


@pytest.mark.parametrize("times", [MAX_REDIRECTS, MAX_REDIRECTS + 1])
def test_replays_in_a_row_are_bounded(world: RingSimulation, times: int) -> None:
    call = world.ask(ask())
    (live,) = world.in_flight._requests.values()
    for _ in range(times):
        world.in_flight.text(text_beyond(call, live.delivery.epoch))
    settle(world)
    assert end(world).finish_reason == (FinishReason.LENGTH if times == MAX_REDIRECTS else FinishReason.ERROR)


@pytest.mark.parametrize("fits_between", [False, True])
def test_frames_that_never_fit_fail_the_request(world: RingSimulation, fits_between: bool) -> None:
    world.ask(ask(max_tokens=60))
    (detokenizer,) = world.detokenizers.values()
    world.flow(tokens=1)
    world.flow(tokens=1)
    for _ in range(MAX_REDIRECTS + 1):
        world.engines["engine-0"].core.step(1)
        for stream in world.streams():
            stream.write()
            stream.read()
        detokenizer.write()
        detokenizer.texts.clear()  # lost, and what follows cannot fit
        world.flow(tokens=1)
        if fits_between:
            world.flow(tokens=1)
        else:
            detokenizer.write()
            for stream in world.streams():
                stream.read_commands()
                stream.write()
    settle(world)
    if fits_between:
        assert ids(world) == expected(60)[: len(ids(world))]
        assert end(world).finish_reason == FinishReason.LENGTH
    else:
        assert end(world).error.code == Code.INTERNAL


def test_prompt_progress_comes_only_if_requested(world: RingSimulation) -> None:
    for name, progress in (("quiet", False), ("curious", True)):
        request = ask(max_tokens=1)
        request.request_id, request.output.prefill_progress = name, progress
        world.ask(request)
    settle(world)
    assert {response.request_id for response in events(world, "prefill")} == {"curious"}


def test_prompt_scores_come_once_across_failovers(world: RingSimulation) -> None:
    request = ask(max_tokens=3)
    request.text, request.output.prompt_logprobs = "ab" * 15, 2
    world.ask(request)
    for lose in (world.kill_detokenizer, world.kill_engine, world.kill_detokenizer):
        world.flow(tokens=9, max_bytes=300)
        lose(next(iter(world.detokenizers if lose == world.kill_detokenizer else world.engines)))
        world.heal()
    settle(world)
    parts = events(world, "prompt_logprobs")
    assert len(parts) > 2
    assert [part.prompt_logprobs.offset for part in parts] == [
        sum(len(part.prompt_logprobs.logprobs.ranks) for part in parts[:index]) for index in range(len(parts))
    ]
    assert [rank for part in parts for rank in part.prompt_logprobs.logprobs.ranks] == list(range(1, 30))
    assert ids(world) == expected(3)


def test_a_lost_frame_with_prompt_scores_is_replayed(world: RingSimulation) -> None:
    request = ask(max_tokens=3)
    request.text, request.output.prompt_logprobs = "ab" * 15, 2
    world.ask(request)
    detokenizer = world.detokenizers["detokenizer-0"]
    for tokens in (100, 1):
        world.engines["engine-0"].core.step(tokens)
        for stream in world.streams():
            stream.read_commands()
            stream.write()
            stream.read()
    world.engines["engine-0"].core.step(100)
    for stream in world.streams():
        stream.write()
        stream.read()
    detokenizer.write()
    (lost,) = detokenizer.texts
    assert detokenizer_pb2.TextOutputs.FromString(lost).prompt_logprobs
    detokenizer.texts.clear()
    settle(world)
    assert [rank for part in events(world, "prompt_logprobs") for rank in part.prompt_logprobs.logprobs.ranks] == list(
        range(1, 30)
    )
    assert ids(world) == expected(3)


def test_prompt_scores_of_any_length_come_in_frames_that_fit(world: RingSimulation) -> None:
    length, alternatives = 60_000, 20
    limits = replace(world.model.limits, max_model_len=length + 8)
    world.model = replace(world.model, limits=limits)
    request = ask(max_tokens=3)
    request.token_ids.ids.extend([5] * length)
    request.output.prompt_logprobs = alternatives
    request.output.return_prompt_token_ids = True
    world.ask(request)
    largest = {"engine": 0, "detokenizer": 0, "client": 0}
    detokenizer = world.detokenizers["detokenizer-0"]
    taken: list[inference_pb2.GenerateResponse] = []
    while not any(response.HasField("request_finished") for response in taken):
        world.engines["engine-0"].core.step(20_000)
        for stream in world.streams():
            stream.read_commands()
            stream.write()
            largest["engine"] = max(largest["engine"], *map(len, stream.responses), 0)
            stream.read()
        detokenizer.write()
        largest["detokenizer"] = max(largest["detokenizer"], *map(len, detokenizer.texts), 0)
        world.processor_reads(detokenizer)
        frame = world.client.take() or inference_pb2.SessionResponse()
        largest["client"] = max(largest["client"], frame.ByteSize())
        taken += inference_pb2.SessionResponse.FromString(frame.SerializeToString()).responses
    assert all(500_000 < size <= 1 << 20 for size in largest.values()), largest
    reader = ResponseReader()
    for response in taken:
        reader.read(response)
    scores = reader.generation().prompt_logprobs
    assert scores is not None
    assert [score.rank for score in scores] == list(range(1, length))
    assert scores[-1].top == ((length - 1, float(1 - length)),) * alternatives


def test_prompt_scores_of_another_epoch_are_ignored(world: RingSimulation) -> None:
    request = ask()
    request.output.prompt_logprobs = 0
    call = world.ask(request)
    (live,) = world.in_flight._requests.values()
    for epoch in (live.delivery.epoch - 1, live.delivery.epoch + 1):
        late = engine_pb2.PromptLogprobs(request_id=call.request_id, epoch=epoch, offset=0)
        late.logprobs.logprobs.append(-9.0)
        late.logprobs.ranks.append(9)
        world.in_flight.text(detokenizer_pb2.TextOutputs(prompt_logprobs=[late]))
    assert not events(world, "prompt_logprobs")
    assert live.prompt_scores_delivered == 0
