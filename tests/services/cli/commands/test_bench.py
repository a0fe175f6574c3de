"""The bench runs in a process of its own, as it does in life; what it loads is scripted, so its counts are known."""

import asyncio
import json
import sys

import grpc
import pytest
from ringline.inference.v1 import inference_pb2 as pb
from ringline.types.v1 import output_pb2

from services.cli.bench.measurement import LatencySummary, Measurement
from tests.clients.scripted_server import Abort, admitted, delta, ended, play, refusal
from tests.services.cli.commands.scripted_engine import ScriptedEngine, serving_engine


async def run(flags: str) -> tuple[int, str, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        "from services.cli.commands.bench import bench; bench()",
        *flags.split(),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    return process.returncode, out.decode(), err.decode()


async def steady(request: pb.GenerateRequest):
    """As many tokens as were asked for, a delta each."""
    yield admitted()
    for position in range(request.stopping.max_tokens):
        yield delta(position, [7], "x")
        await asyncio.sleep(0)
    for end in ended(completion=request.stopping.max_tokens):
        yield end


async def test_a_session_is_loaded_and_measured(scripted_processor):
    together = asyncio.Barrier(5)

    async def five_at_a_time(request):
        await together.wait()
        async for response in steady(request):
            yield response

    scripted_processor.plays(steady, steady, five_at_a_time)
    code, out, err = await run(
        f"--address {scripted_processor.address} --requests 20 --concurrency 5 --input-len 16 --output-len 8 --json"
    )
    assert code == 0, err
    figures = json.loads(out)
    assert (figures["target"], figures["model"]) == ("session", "tiny")
    assert (figures["completed"], figures["failed"], figures["output_tokens"]) == (20, 0, 160)
    assert figures["output_tokens_per_second"] == pytest.approx(160 / figures["seconds"])
    assert 0 < figures["ttft_ms"]["p50"] <= figures["ttft_ms"]["p99"] <= figures["latency_ms"]["p99"]
    assert 0 < figures["gap_ms"]["p50"] <= figures["gap_ms"]["p99"]
    service = scripted_processor.service
    assert service.sessions == 1
    assert service.most_live == 5
    requests = service.requests[2:]  # after the warm-up
    assert len(requests) == 20
    for request in requests:
        assert request.sampling.temperature == 0
        assert request.stopping == pb.StoppingParams(max_tokens=8, ignore_eos=True)
        assert len(request.token_ids.ids) == 16
        assert set(request.token_ids.ids) <= set(range(64, 448)) - {2}
    assert len({tuple(request.token_ids.ids) for request in requests}) == 20


async def test_prompts_can_share_a_prefix_and_be_repeated(scripted_processor):
    scripted_processor.plays(steady)
    flags = "--requests 3 --warmup 0 --input-len 16 --output-len 2 --prefix-share 0.75 --seed 5"
    for _ in range(2):
        code, _, err = await run(f"--address {scripted_processor.address} {flags}")
        assert code == 0, err
    prompts = [tuple(request.token_ids.ids) for request in scripted_processor.service.requests]
    assert sorted(prompts[:3]) == sorted(prompts[3:])
    assert len({prompt[:12] for prompt in prompts}) == 1
    assert len({prompt[12:] for prompt in prompts}) == 3


async def test_requests_can_arrive_at_a_rate(scripted_processor):
    scripted_processor.plays(steady)
    flags = "--requests 10 --rate 500 --input-len 4 --output-len 3"
    code, out, err = await run(f"--address {scripted_processor.address} {flags}")
    assert code == 0, err
    assert "10 requests, 500 a second, 4 tokens in, 3 out" in out
    for row in ("output tokens/s", "time to first token", "inter-token", "request"):
        assert row in out
    code, _, err = await run("--rate 1 --concurrency 2")
    assert code == 2
    assert "--rate" in err


async def test_what_went_wrong_is_counted_and_fails_the_run(scripted_processor):
    scripted_processor.plays(
        play(refusal(grpc.StatusCode.RESOURCE_EXHAUSTED, "queue is full")),
        play(admitted(), delta(0, [1], "a"), delta(2, [1], "b"), ended(completion=2)),
        play(admitted(), delta(0, [1], "a"), ended(completion=1)),
        play(admitted(), delta(0, [1], "a"), ended(output_pb2.FINISH_REASON_DEADLINE, completion=1)),
        steady,
    )
    flags = "--requests 6 --warmup 0 --concurrency 1 --input-len 4 --output-len 2 --json"
    code, out, _ = await run(f"--address {scripted_processor.address} {flags}")
    figures = json.loads(out)
    assert code == 1
    assert (figures["completed"], figures["failed"]) == (2, 4)
    assert figures["failures"] == {
        "queue is full": 1,
        "positions with a gap or a repeat": 1,
        "1 tokens instead of 2": 1,
        "FINISH_REASON_DEADLINE": 1,
    }


async def test_a_run_that_cannot_go_on_says_why(scripted_processor):
    scripted_processor.plays(steady, steady, play(admitted(), Abort(grpc.StatusCode.UNAVAILABLE, "gone away")))
    code, out, err = await run(f"--address {scripted_processor.address} --input-len 4 --output-len 2 --concurrency 1")
    assert (code, out) == (1, "")
    assert "gone away" in err
    assert "Traceback" not in err
    code, _, err = await run(f"--address {scripted_processor.address}")
    assert code == 1
    assert "more than the model's context of 64 tokens" in err
    scripted_processor.service.limits.max_live_requests = 8
    code, _, err = await run(f"--address {scripted_processor.address} --input-len 4 --output-len 2 --concurrency 9")
    assert code == 1
    assert "--max-live-requests of 8" in err


async def test_an_engine_is_loaded_directly():
    engine = ScriptedEngine()
    async with serving_engine(engine) as address:
        code, out, err = await run(
            f"--engine {address} --requests 12 --concurrency 4 --input-len 8 --output-len 5 --json"
        )
    assert code == 0, err
    figures = json.loads(out)
    assert (figures["target"], figures["completed"], figures["output_tokens"]) == ("engine", 12, 60)
    assert figures["gap_ms"]["p50"] > 0
    ids = [submit.request_id for submit in engine.submits]
    assert len(set(ids)) == 14
    assert all(request_id.startswith(f"{engine.hello.incarnation}-") for request_id in ids)
    assert sorted(engine.done) == sorted((request_id, 1) for request_id in ids)
    for submit in engine.submits:
        assert (submit.epoch, submit.max_tokens, submit.ignore_eos) == (1, 5, True)
        fields = submit.sampling.DESCRIPTOR.fields
        scalars = [field for field in fields if field.has_presence and not field.message_type]
        assert all(submit.sampling.HasField(field.name) for field in scalars)
        assert not {100, 101} & set(submit.prompt_token_ids)


async def test_what_an_engine_rejects_is_counted():
    engine = ScriptedEngine()
    engine.reject = {3}
    async with serving_engine(engine) as address:
        code, out, _ = await run(f"--engine {address} --requests 4 --input-len 8 --output-len 5 --json")
    assert code == 1
    assert json.loads(out)["failures"] == {"queue is full": 1}


def test_percentiles_are_by_nearest_rank():
    summary = LatencySummary.of([number / 1000 for number in range(1, 201)])
    assert (summary.mean, summary.p50, summary.p99) == pytest.approx((100.5, 100, 198))
    assert LatencySummary.of([0.25]) == LatencySummary(250, 250, 250)
    assert LatencySummary.of([]) is None


def test_times_are_those_of_the_deliveries():
    measurement = Measurement(output_len=4)
    measurement.record_sent(0, 10.0)
    measurement.record_sent(1, 10.5)
    measurement.record_tokens(0, 0, 1, 11.0)
    measurement.record_tokens(0, 1, 2, 11.5)  # two tokens delivered together count once in ITL
    measurement.record_tokens(0, 3, 1, 12.5)
    assert measurement.record_end(0, 13.0, None)
    assert not measurement.record_end(0, 13.0, None)
    assert measurement.record_end(1, 14.0, "refused")
    report = measurement.report()
    assert (report.completed, report.failures, report.seconds) == (1, {"refused": 1}, 4.0)
    assert (report.ttft.p50, report.itl.p50, report.itl.p99) == (1000, 500, 1000)
    assert (report.tpot.p50, report.latency.p50) == (500, 3000)
