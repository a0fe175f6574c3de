"""What becomes of requests when their engine or detokenizer does not do its part; in a ring of one process."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace

import pytest
from ringline.detokenizer.v1 import detokenizer_pb2
from ringline.engine.v1 import engine_pb2
from ringline.inference.v1 import inference_pb2
from ringline.reader import ResponseReader
from structlog.testing import capture_logs

from services.processor.ring import MAX_CRASH_RESUBMITS, MAX_REDIRECTS
from services.ring.events import Cause, Code
from tests.services.ring.world import EOS, ORPHAN_GRACE, AttachStream, World, token_at

SEED = 19631
"""Whose choices 0 and 1 have no eos among the first 60 tokens."""


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with capture_logs():
        yield


@pytest.fixture
def world() -> World:
    return World(["engine-0"], ["detokenizer-0"])


@pytest.fixture
def wide() -> World:
    return World(["engine-0", "engine-1"], ["detokenizer-0", "detokenizer-1"])


def ask(max_tokens: int = 20, n: int = 1) -> inference_pb2.GenerateRequest:
    request = inference_pb2.GenerateRequest(request_id="r", text="ab")
    request.sampling.seed, request.sampling.n = SEED, n
    request.stopping.max_tokens = max_tokens
    return request


def expected(count: int, choice: int = 0) -> list[int]:
    ids = [token_at(SEED, choice, position) for position in range(count)]
    assert EOS not in ids
    return ids


def settle(world: World, rounds: int = 30) -> None:
    for _ in range(rounds):
        world.flow()
        world.client_reads()


def events(world: World, kind: str) -> list[inference_pb2.GenerateResponse]:
    world.client_reads()
    return [response for response in world.received if response.WhichOneof("event") == kind]


def ids(world: World, choice: int = 0) -> list[int]:
    deltas = [response.delta for response in events(world, "delta")]
    return [token for delta in deltas if delta.choice == choice for token in delta.token_ids]


def end(world: World) -> inference_pb2.Terminal:
    (response,) = events(world, "terminal")
    return response.terminal


def processors_stream(world: World, engine: str = "engine-0") -> AttachStream:
    return world.engines[engine].streams["processor"]


def sent_submits(world: World) -> list[engine_pb2.Submit]:
    """What the processor wrote and nobody has read."""
    frames = [engine_pb2.AttachRequest.FromString(data) for data in processors_stream(world).commands]
    return [command.submit for frame in frames for command in frame.commands if command.HasField("submit")]


def test_only_the_choices_that_are_resumed_are_computed(world: World) -> None:
    request = ask(n=3)
    request.resume.add(choice=1)
    world.ask(request)
    world.flow(tokens=1)
    (running,) = world.engines["engine-0"].core.requests.values()
    assert running.resume.keys() == {1}
    settle(world)
    assert end(world).choice == 1
    assert ids(world, 1) == expected(20, 1)


@pytest.mark.parametrize("crashes", [MAX_CRASH_RESUBMITS, MAX_CRASH_RESUBMITS + 1])
def test_a_request_that_engines_die_of_is_not_given_to_yet_another(world: World, crashes: int) -> None:
    world.ask(ask())
    for _ in range(crashes):
        world.flow(tokens=1)
        world.flow(tokens=1)
        world.kill_engine("engine-0")
        world.heal()
        world.flow(tokens=1)
    settle(world)
    if crashes <= MAX_CRASH_RESUBMITS:
        assert end(world).cause == Cause.LENGTH
        assert ids(world) == expected(20)
    else:
        assert end(world).error.code == Code.INTERNAL
        assert ids(world) == expected(len(ids(world)))
        assert end(world).usage.completion_tokens == len(ids(world)) > 0
    assert world.quiet


def test_links_that_are_cut_are_no_crashes(world: World) -> None:
    world.ask(ask())
    for _ in range(3 * MAX_CRASH_RESUBMITS):
        world.flow(tokens=1)
        world.detach(processors_stream(world))
        world.heal()
        world.flow(tokens=1)
    settle(world)
    assert end(world).cause == Cause.LENGTH
    assert ids(world) == expected(20)
    world.pass_time(2 * ORPHAN_GRACE)
    assert world.quiet


def test_a_done_that_was_lost_with_its_link_leaves_nothing(world: World) -> None:
    call = world.ask(ask())
    world.flow(tokens=1)
    world.ring.end(call, Cause.CANCELLED)
    processors_stream(world).commands.clear()
    world.detach(processors_stream(world))
    world.heal()
    settle(world)
    assert world.engines["engine-0"].board.num_ledgers == 1
    world.pass_time(2 * ORPHAN_GRACE)
    settle(world)
    assert world.quiet


@pytest.mark.parametrize("fits_between", [False, True])
def test_frames_that_never_fit_fail_the_request(world: World, fits_between: bool) -> None:
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
        assert end(world).cause == Cause.LENGTH
    else:
        assert end(world).error.code == Code.INTERNAL


def test_an_engine_that_refuses_a_redirect_forgets_what_went_elsewhere(wide: World) -> None:
    wide.ask(ask(max_tokens=60))
    wide.flow(tokens=1)
    wide.flow(tokens=1)
    (first,) = [engine for engine in wide.engines.values() if engine.board.num_ledgers]
    route = next(iter(wide.ring._live.values())).route
    assert route is not None
    # Its detokenizer dies, and the other one, to which the processor redirects, has just lost its link to the engine.
    (other,) = [name for name in wide.detokenizers if name != route.detokenizer.name]
    wide.kill_detokenizer(route.detokenizer.name)
    wide.detach(first.streams[other])
    settle(wide)
    wide.pass_time(ORPHAN_GRACE / 2)
    assert first.board.num_ledgers == 0
    assert end(wide).cause == Cause.LENGTH
    assert wide.quiet


def test_a_detokenizer_that_is_lost_while_the_engine_drains_is_replaced(wide: World) -> None:
    wide.ask(ask(max_tokens=60))
    wide.flow(tokens=1)
    live = next(iter(wide.ring._live.values()))
    assert live.route is not None
    engine = wide.engines[live.route.engine.name]
    engine.board.draining = True
    wide.peers.engine_frame(
        engine.streams["processor"],  # type: ignore[arg-type]
        engine.me,
        engine_pb2.AttachResponse(draining={}),
    )
    wide.kill_detokenizer(live.route.detokenizer.name)
    assert live.route is not None
    assert live.route.engine == engine.me, "it goes on where it is"
    settle(wide)
    assert end(wide).cause == Cause.LENGTH
    assert not events(wide, "continued")


@pytest.mark.parametrize("numerics", ["numerics", "others"])
def test_the_client_is_told_when_an_answer_goes_on_elsewhere(world: World, numerics: str) -> None:
    world.ask(ask())
    world.flow(tokens=2)
    world.flow(tokens=2)
    world.kill_engine("engine-0")
    world.peers._fingerprints["engine-0"] = numerics
    world.heal()
    settle(world)
    (continued,) = events(world, "continued")
    assert continued.continued.identical == (numerics == "numerics")
    assert "engine-0" in continued.continued.reason


def test_nobody_is_told_while_nothing_was_delivered(world: World) -> None:
    world.ask(ask())
    world.kill_engine("engine-0")
    world.heal()
    settle(world)
    assert not events(world, "continued")
    assert ids(world) == expected(20)


def test_patience_ends_with_what_was_delivered(world: World) -> None:
    world.ring._patience = 5.0
    world.ask(ask())
    world.flow(tokens=2)
    world.flow(tokens=2)
    world.kill_engine("engine-0")
    world.ring.tick(time.monotonic() + 4.0)
    assert not events(world, "terminal")
    world.ring.tick(time.monotonic() + 6.0)
    assert end(world).error.code == Code.UNAVAILABLE
    assert end(world).error.details, "when to come back"
    assert end(world).usage.completion_tokens == len(ids(world)) > 0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The time that the world sees."""
    clock = SimpleNamespace(now=1000.0)
    for module in ("services.processor.ring", "tests.services.ring.world"):
        monkeypatch.setattr(f"{module}.time", SimpleNamespace(monotonic=lambda: clock.now))
    return clock


def wait(world: World, clock: SimpleNamespace, seconds: float) -> None:
    """Time passes, in which every command is read and answered; engines compute nothing."""
    clock.now += seconds
    world.flow(tokens=0)
    world.flow(tokens=0)


def test_patience_does_not_begin_anew_when_an_engine_refuses(world: World, clock: SimpleNamespace) -> None:
    world.ring._patience = 5.0
    world.engines["engine-0"].board.draining = True  # nobody was told
    world.ask(ask())
    for _ in range(4):
        wait(world, clock, 1.0)
        assert not events(world, "terminal")
        (live,) = world.ring._live.values()
        assert live.ring.epoch > 1, "it is tried again and again"
    wait(world, clock, 1.5)
    assert end(world).error.code == Code.UNAVAILABLE
    assert "draining" in end(world).error.message
    settle(world)
    assert world.quiet


def test_patience_begins_anew_once_something_was_heard(world: World, clock: SimpleNamespace) -> None:
    world.ring._patience = 5.0
    world.ask(ask())
    for _ in range(2):
        world.flow(tokens=1)
        world.flow(tokens=1)
        world.kill_engine("engine-0")
        wait(world, clock, 4.0)
        world.heal()
        settle(world, rounds=1)
    settle(world)
    assert end(world).cause == Cause.LENGTH


def test_time_in_an_engines_queue_is_no_outage(world: World, clock: SimpleNamespace) -> None:
    world.ring._patience = 5.0
    world.ask(ask())
    for _ in range(5):
        wait(world, clock, 10.0)
    world.kill_engine("engine-0")
    wait(world, clock, 4.0)
    assert not events(world, "terminal")
    wait(world, clock, 2.0)
    assert end(world).error.code == Code.UNAVAILABLE


def test_every_submit_says_what_remains_of_the_time(world: World) -> None:
    call = world.ask(ask())
    assert not sent_submits(world)[0].HasField("timeout_ms")
    call.deadline = time.monotonic() + 10.0
    world.kill_engine("engine-0")
    world.heal()
    processors_stream(world).write()
    for detokenizer_stream in world.streams():
        detokenizer_stream.write()
        detokenizer_stream.read()
    (submit,) = sent_submits(world)
    assert 9_000 < submit.timeout_ms <= 10_000
    assert submit.epoch == 2


def test_prompt_scores_and_progress_come_to_whoever_asked(world: World) -> None:
    for name, progress in (("quiet", False), ("curious", True)):
        request = ask(max_tokens=1)
        request.request_id, request.output.prefill_progress = name, progress
        world.ask(request)
    settle(world)
    assert {response.request_id for response in events(world, "prefill")} == {"curious"}


def test_prompt_scores_come_once_whatever_happens_meanwhile(world: World) -> None:
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
    assert [part.prompt_logprobs_offset for part in parts] == [
        sum(len(part.prompt_logprobs.ranks) for part in parts[:index]) for index in range(len(parts))
    ]
    assert [rank for part in parts for rank in part.prompt_logprobs.ranks] == list(range(1, 30))
    assert ids(world) == expected(3)


def test_a_lost_frame_with_prompt_scores_is_asked_for_again(world: World) -> None:
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
    assert [rank for part in events(world, "prompt_logprobs") for rank in part.prompt_logprobs.ranks] == list(
        range(1, 30)
    )
    assert ids(world) == expected(3)


def test_prompt_scores_of_any_length_come_in_frames_that_fit(world: World) -> None:
    length, alternatives = 60_000, 20
    limits = replace(world.vocabulary.limits, max_model_len=length + 8)
    world.vocabulary = replace(world.vocabulary, limits=limits)
    request = ask(max_tokens=3)
    request.token_ids.ids.extend([5] * length)
    request.output.prompt_logprobs = alternatives
    request.output.return_prompt_token_ids = True
    world.ask(request)
    largest = {"engine": 0, "detokenizer": 0, "client": 0}
    detokenizer = world.detokenizers["detokenizer-0"]
    taken: list[inference_pb2.GenerateResponse] = []
    while not any(response.HasField("terminal") for response in taken):
        world.engines["engine-0"].core.step(20_000)
        for stream in world.streams():
            stream.read_commands()
            stream.write()
            largest["engine"] = max(largest["engine"], *map(len, stream.responses), 0)
            stream.read()
        detokenizer.write()
        largest["detokenizer"] = max(largest["detokenizer"], *map(len, detokenizer.texts), 0)
        world.processor_reads(detokenizer)
        frame = inference_pb2.SessionResponse(responses=world.client.take())
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


def test_latencies_are_those_of_single_choices(world: World) -> None:
    world.ask(ask(max_tokens=20, n=2))
    settle(world)
    metrics = {
        metric.name: {s.name.rsplit("_", 1)[-1]: s.value for s in metric.samples}
        for metric in world.ring._metrics.collect()
    }
    deltas = [response.delta for response in events(world, "delta")]
    assert len(deltas) > 2
    firsts = sum(len(delta.token_ids) for delta in deltas if delta.first_position == 0)
    assert metrics["vllm:time_to_first_token_seconds"]["count"] == 2
    assert metrics["vllm:inter_token_latency_seconds"]["count"] == 40 - firsts
    assert metrics["vllm:prompt_tokens"]["total"] == 2


def test_an_overshoot_is_neither_delivered_nor_counted(world: World) -> None:
    letters = "".join(chr(ord("a") + token - min(expected(20))) for token in expected(20))
    request = ask()
    request.stopping.stop.append(letters[2:5])
    world.ask(request)
    settle(world)
    stop = letters.index(letters[2:5]) + 3
    assert end(world).cause == Cause.STOP
    assert ids(world) == expected(stop)
    assert end(world).usage.completion_tokens == stop
    assert world.quiet
