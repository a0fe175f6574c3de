"""Frames of detokenizers reach the client whole, once and in order, and what it is told of its engine."""

from __future__ import annotations

from dataclasses import replace

import pytest
from ringline.detokenizer.v1 import detokenizer_pb2
from ringline.engine.v1 import engine_pb2
from ringline.inference.v1 import inference_pb2
from ringline.response_reader import ResponseReader

from services.ring.events import FinishReason
from tests.services.processor.ring_requests import Ring, ask, expected
from tests.services.ring.ring_simulation import MODEL_MESSAGE


@pytest.mark.parametrize("numerics", ["numerics", "others"])
def test_the_client_is_told_when_its_request_moves(world: Ring, numerics: str) -> None:
    world.ask(ask())
    world.flow(tokens=2)
    world.flow(tokens=2)
    world.kill_engine("engine-0")
    world.described["engine-0"] = engine_pb2.GetModelResponse()
    world.described["engine-0"].CopyFrom(MODEL_MESSAGE)
    world.described["engine-0"].numerics = numerics
    world.heal()
    world.settle()
    (started,) = world.moves()
    assert started.identical == (numerics == "numerics")
    assert "engine-0" in started.reason


def test_no_move_is_reported_before_the_first_output(world: Ring) -> None:
    world.ask(ask())
    world.kill_engine("engine-0")
    world.heal()
    world.settle()
    assert not world.moves()
    assert world.ids() == expected(20)


def test_no_output_comes_before_its_engine_is_known(world: Ring) -> None:
    """The first text is on its way when the only engine is lost: the next one computes it again."""
    world.ask(ask(max_tokens=1))
    stream = world.stream()
    world.engines["engine-0"].core.step(1)
    for each in world.streams():
        while each.commands:
            each.read_commands()
    world.engines["engine-0"].core.step(1)
    for each in world.streams():
        each.write()
        while each.responses:
            each.read()
    world.detach(stream)
    world.flow()
    world.heal()
    world.settle()
    kinds = [response.WhichOneof("event") for response in world.received]
    assert kinds.index("started") < kinds.index("delta")
    assert world.ids() == expected(1)


def test_a_client_resume_is_not_reported_as_a_move(world: Ring) -> None:
    """It went on from what another processor had delivered; here it has not moved."""
    request = ask()
    request.resume.choices.add(choice=0, token_ids=expected(5))
    request.resume.model_digest, request.resume.numerics = "model", "numerics"
    world.ask(request)
    world.settle()
    assert not world.moves()
    assert world.ids() == expected(20)[5:]
    assert world.usage().completion_tokens == 20


def test_latencies_are_measured_per_choice(world: Ring) -> None:
    world.ask(ask(max_tokens=20, n=2))
    world.settle()
    metrics = {
        metric.name: {s.name.rsplit("_", 1)[-1]: s.value for s in metric.samples} for metric in world.metrics.collect()
    }
    deltas = [response.delta for response in world.events("delta")]
    assert len(deltas) > 2
    firsts = sum(len(delta.token_ids) for delta in deltas if delta.first_position == 0)
    assert metrics["vllm:time_to_first_token_seconds"]["count"] == 2
    assert metrics["vllm:inter_token_latency_seconds"]["count"] == 40 - firsts
    assert metrics["vllm:prompt_tokens"]["total"] == 2


def test_prompt_progress_comes_only_if_requested(world: Ring) -> None:
    for name, progress in (("quiet", False), ("curious", True)):
        request = ask(max_tokens=1)
        request.request_id, request.output.prefill_progress = name, progress
        world.ask(request)
    world.settle()
    assert {response.request_id for response in world.events("prefill")} == {"curious"}


def test_a_lost_frame_with_prompt_scores_is_replayed(world: Ring) -> None:
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
    world.settle()
    assert [rank for part in world.events("prompt_logprobs") for rank in part.prompt_logprobs.logprobs.ranks] == list(
        range(1, 30)
    )
    assert world.ids() == expected(3)


def test_prompt_scores_of_any_length_come_in_frames_that_fit(world: Ring) -> None:
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


def test_prompt_scores_of_another_epoch_are_ignored(world: Ring) -> None:
    request = ask()
    request.output.prompt_logprobs = 0
    call = world.ask(request)
    for epoch in (call.delivery.epoch - 1, call.delivery.epoch + 1):
        late = engine_pb2.PromptLogprobs(request_id=call.request_id, epoch=epoch, offset=0)
        late.logprobs.logprobs.append(-9.0)
        late.logprobs.ranks.append(9)
        world.text_output.receive(detokenizer_pb2.TextOutputs(prompt_logprobs=[late]))
    assert not world.events("prompt_logprobs")
    assert call.prompt_logprobs_delivered == 0


def test_cached_tokens_are_those_of_the_first_report(world: Ring) -> None:
    call = world.ask(ask())
    epoch = call.delivery.epoch
    for of_epoch, cached in ((epoch - 1, 40), (epoch, 16), (epoch, 48)):
        prefill = engine_pb2.Prefill(request_id=call.request_id, epoch=of_epoch, prompt_tokens=2, computed_tokens=2)
        prefill.cached_tokens = cached
        world.text_output.receive(detokenizer_pb2.TextOutputs(prefills=[prefill]))
    world.in_flight.end(call, FinishReason.CANCELLED)
    assert world.usage().cached_tokens == 16
