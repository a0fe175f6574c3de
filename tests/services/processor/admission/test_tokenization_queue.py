"""The tokenization queue holds no more than it may, and nothing of what has ended."""

from __future__ import annotations

import asyncio
import sys
import threading
import time

import pytest
from ringline.engine.v1 import engine_pb2
from ringline.inference.v1 import inference_pb2

from services.common.rpc.shared_messages import status_from_proto
from services.processor.admission import tokenization_queue
from services.processor.admission.request_resolution import resolve_request
from services.processor.admission.tokenization_job import MIN_BYTES, Job
from services.processor.admission.tokenization_queue import BATCH_BYTES, THREADS
from services.processor.request import ResolvedRequest
from services.processor.served_models import generation_of
from services.ring.errors import Code, Reason, Refused
from services.ring.events import FinishReason
from services.ring.model_generations import Generation
from tests.services.processor.model_specs import codec, served_model
from tests.services.processor.queue_harness import LARGE, QueueHarness
from tests.text_core.panicking import panic
from tests.waiting import until


def refused_with(core: QueueHarness, size: int) -> Refused:
    with pytest.raises(Refused) as refusal:
        core.ask("refused", size)
    return refusal.value


async def test_waiting_bytes_are_bounded_and_refusals_say_when_to_retry(
    core: QueueHarness,
) -> None:
    calls = [core.ask("first", LARGE), core.ask("second", LARGE)]
    status = refused_with(core, 2 * LARGE).status
    assert status.code is Code.RESOURCE_EXHAUSTED
    assert status.retry_after_ms is not None
    assert 1000 <= status.retry_after_ms <= 1250, "nobody knows"
    assert " bytes waiting to be tokenized, " in status.message
    calls.append(core.ask("small", 10))
    await core.run()
    assert [call.finished for call in calls] == [True, True, False], "too long for the model; on the ring"
    assert "refused" not in {call.client_request_id for call in core.stream.requests()}


async def test_a_retry_delay_is_half_of_the_estimated_wait(core: QueueHarness) -> None:
    core.ask("of another", 10, tenant="other")
    core.ask("first", 2 * LARGE)
    core.queue._throughput.begin(0.0)
    for second in range(1, 4):
        core.queue._throughput.add(100_000, float(second))
    speed = core.queue._throughput.per_second()
    assert speed is not None
    told = refused_with(core, 2 * LARGE).status.retry_after_ms
    expected = min(500 * 2 * core.queue._bytes.held("") / speed, 30_000)
    assert told is not None
    assert expected - 1 <= told <= 1.25 * expected + 1, "it has every second turn"


async def test_a_large_request_waits_alone_until_its_batch_begins(core: QueueHarness) -> None:
    core.ask("huge", 10 * LARGE)
    assert refused_with(core, 1).status.code is Code.RESOURCE_EXHAUSTED
    await core.run()
    small = core.ask("small", 10)
    await core.run()
    assert small.admitted


async def test_a_request_that_ends_while_it_waits_leaves_nothing_behind(core: QueueHarness) -> None:
    message = inference_pb2.GenerateRequest(request_id="large", text="a" * (10 * LARGE))
    core.intake.begin(core.stream, message, 1, time.monotonic(), None)
    assert sys.getrefcount(message) == 2, "here, and in the call: what waits is its bytes"
    call = core.stream.find("large")
    assert call is not None
    core.in_flight.end(call, FinishReason.CANCELLED)
    assert core.queue._bytes.total == 0
    for index in range(2):
        core.ask(f"in its place {index}", LARGE - 100)


async def test_urgent_and_other_batches_alternate(core: QueueHarness) -> None:
    await core.run()
    one, others, order = threading.Event(), threading.Event(), list[str]()
    waits = [one.wait, *[others.wait] * (THREADS - 1)]
    held = [asyncio.create_task(core.queue.run_in_thread(wait, "", 0)) for wait in waits]
    await asyncio.sleep(0)
    later = asyncio.create_task(core.queue.run_in_thread(lambda: order.append("later"), "", 0))
    await asyncio.sleep(0)
    first = [
        asyncio.create_task(core.queue.run_in_thread(lambda: order.append("first"), "", LARGE, urgent=True))
        for _ in range(2)
    ]
    await asyncio.sleep(0)
    one.set()
    async with asyncio.timeout(60):
        await asyncio.gather(later, *first)
    assert order == ["first", "later", "first"]
    others.set()
    await asyncio.gather(*held)


async def test_grammars_are_checked_one_by_one_and_leave_threads_to_texts(
    core: QueueHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, begun, done = threading.Event(), list[list[str]](), asyncio.Event()
    run_batch, loop = tokenization_queue._run_batch, asyncio.get_running_loop()

    def run(batch: list[Job]) -> list[object]:
        begun.append([job.key for job in batch])
        if any(job.is_constrained for job in batch):
            assert slow.wait(30)
        else:
            loop.call_soon_threadsafe(done.set)
        return run_batch(batch)

    monkeypatch.setattr(tokenization_queue, "_run_batch", run)
    constrained = [core.ask(f"constrained {number}", 10, regex="a").request_id for number in range(6)]
    free = [core.ask(f"free {number}", 10).request_id for number in range(4)]
    assert core.queue._bytes.total < 2000, "they take no more room than others"
    core.free_threads()
    async with asyncio.timeout(30):
        await done.wait()
    assert sorted(begun, key=len) == [constrained[:1], constrained[1:2], free]
    slow.set()
    await core.run()
    assert [batch for batch in begun if batch != free] == [[name] for name in constrained]


async def test_look_ups_share_the_room(core: QueueHarness) -> None:
    detokenize = asyncio.create_task(core.queue.run_in_thread(lambda: "text", "", 3 * LARGE))
    await asyncio.sleep(0)
    assert refused_with(core, LARGE).status.code is Code.RESOURCE_EXHAUSTED
    with pytest.raises(Refused):
        await core.queue.run_in_thread(lambda: "more", "", LARGE)
    await core.run()
    assert await detokenize == "text"
    core.ask("after", 10)


async def test_memory_is_returned_after_a_large_message(core: QueueHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    given_back: list[int] = []
    monkeypatch.setattr("services.processor.admission.tokenization_queue.trim_malloc", lambda: given_back.append(size))
    for size in (BATCH_BYTES, BATCH_BYTES + 1):
        work = asyncio.create_task(core.queue.run_in_thread(lambda: None, "", size))
        await asyncio.sleep(0)
        await core.run()
        await work
    assert given_back == [BATCH_BYTES + 1]


async def test_a_cancelled_look_up_leaves_nothing_behind(core: QueueHarness) -> None:
    given_up = asyncio.create_task(core.queue.run_in_thread(lambda: "text", "", 4 * LARGE))
    await asyncio.sleep(0)
    assert refused_with(core, 3 * LARGE).status.code is Code.RESOURCE_EXHAUSTED
    given_up.cancel()
    await asyncio.gather(given_up, return_exceptions=True)
    assert not core.queue._waiting
    core.ask("in its place", 3 * LARGE)


async def test_an_error_of_a_look_up_reaches_its_caller(core: QueueHarness) -> None:
    def fail() -> None:
        raise LookupError("it is not there")

    beside = [
        asyncio.create_task(core.queue.run_in_thread(fail, "", 1)),
        asyncio.create_task(_told(core, 1)),
    ]
    await asyncio.sleep(0)
    await core.run()
    assert await beside[1] == 1, "of the same batch"
    with pytest.raises(LookupError, match="it is not there"):
        await beside[0]


async def _told(core: QueueHarness, answer: int) -> int:
    return await core.queue.run_in_thread(lambda: answer, "", 1)


async def test_a_panic_of_the_library_ends_one_request_or_look_up(
    core: QueueHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is no ``Exception``: not only its own batch would have waited for ever."""

    def resolve(message: inference_pb2.GenerateRequest, *args: object) -> ResolvedRequest:
        return panic() if message.request_id == "bad" else resolve_request(message, *args)  # type: ignore[arg-type]

    monkeypatch.setattr("services.processor.admission.tokenization_job.resolve_request", resolve)
    bad, good = core.ask("bad", 10), core.ask("good", 10)
    look_up = asyncio.create_task(core.queue.run_in_thread(panic, "", 0))
    await asyncio.sleep(0)
    async with asyncio.timeout(60):
        await core.run()
        with pytest.raises(RuntimeError, match="PanicException"):
            await look_up
    assert good.admitted
    (refused,) = [one.refused for one in core.stream.take().responses if one.HasField("refused")]
    assert bad.finished
    assert refused.status.code == Code.INTERNAL
    assert core.queue._free_threads == THREADS


async def test_a_request_that_ends_while_it_is_tokenized_is_not_started(
    core: QueueHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenized, told = threading.Event(), threading.Event()

    def slowly(*args: object) -> ResolvedRequest:
        admission = resolve_request(*args)  # type: ignore[arg-type]
        tokenized.set()
        told.wait()
        return admission

    monkeypatch.setattr("services.processor.admission.tokenization_job.resolve_request", slowly)
    cancelled, other = core.ask("cancelled", 10), core.ask("other", 10)
    going = asyncio.create_task(core.run())
    await asyncio.to_thread(tokenized.wait)
    core.in_flight.end(cancelled, FinishReason.CANCELLED)
    told.set()
    await going
    assert (cancelled.admitted, other.admitted) == (False, True)
    assert len(core.in_flight) == 1


async def test_a_request_is_tokenized_again_if_its_model_left_meanwhile(
    core: QueueHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    next_one = learn_another(core)

    def admitted_meanwhile(*args: object) -> ResolvedRequest:
        admission = resolve_request(*args)  # type: ignore[arg-type]
        core.served = [next_one]
        return admission

    monkeypatch.setattr("services.processor.admission.tokenization_job.resolve_request", admitted_meanwhile)
    call = core.ask("r", 10)
    await core.run()
    assert call.admitted
    assert call.resolved.generation == next_one
    assert not core.queue._bytes.total


async def test_new_requests_belong_to_the_preferred_generation(core: QueueHarness) -> None:
    (first,), next_one = core.served, learn_another(core)
    core.served = [next_one, first]
    new, resumed = core.ask("new", 10), core.ask("resumed", 10, begun_on=served_model().model.model_digest)
    await core.run()
    assert new.admitted
    assert resumed.admitted
    assert new.resolved.generation == next_one
    assert resumed.resolved.generation == first


async def test_requests_are_parked_while_no_engine_takes_work(core: QueueHarness) -> None:
    """Which model they are for is not known before one does."""
    (first,), next_one = core.served, learn_another(core)
    core.served = []
    calls = [core.ask(str(number), 10) for number in range(3)]
    dropped = calls.pop()
    await threads_idle(core)
    core.queue.release()
    assert [call.admitted for call in calls] == [False, False]
    assert core.queue._bytes.total, "they count"
    core.in_flight.end(dropped, FinishReason.CANCELLED)
    core.served = [next_one, first]
    core.queue.release()
    await core.run()
    assert [call.resolved.generation for call in calls] == [next_one, next_one]
    assert not core.queue._bytes.total


@pytest.mark.parametrize("served", [True, False])
async def test_parked_requests_end_at_the_route_timeout(served: bool, core: QueueHarness) -> None:
    """One that was begun on a model which is not here waits as one does that no engine is there for."""
    core.served = core.served if served else []
    call = core.ask("r", 10, begun_on="of long ago" if served else "")
    await threads_idle(core)
    core.queue.release()
    assert not call.finished
    core.queue._route_timeout = -1.0
    core.queue.release()
    (refused,) = [one.refused for one in core.stream.take().responses if one.HasField("refused")]
    status = status_from_proto(refused.status)
    assert (status.code, status.reason) == (Code.UNAVAILABLE, Reason.MODEL_GONE if served else Reason.NO_ROUTE)
    assert not core.queue._bytes.total


async def test_requests_are_refused_before_any_model_is_known(core: QueueHarness) -> None:
    core.models.held._drop(served_model().generation)
    core.served = []
    call = core.ask("r", 10)
    await core.run()
    assert call.finished


async def test_a_resume_goes_to_the_name_that_it_asked_for(core: QueueHarness) -> None:
    """One checkpoint is served under two names."""
    digest, first = served_model().model.model_digest, served_model().generation
    second = learn_another(core, name="m, too", digest=digest)
    core.served = [first, second]
    resumed = [core.ask(name, 10, begun_on=digest, model=name) for name in (first.model, second.model)]
    await core.run()
    assert [request.resolved.generation for request in resumed] == [first, second]
    core.served = [second]  # no engine serves the first name
    anything = core.ask("anything", 10, begun_on=digest)
    waiting = core.ask("waiting", 10, begun_on=digest, model=first.model)
    gone = core.ask("gone", 10, begun_on=digest, model="neither")
    await threads_idle(core)
    assert anything.resolved.generation == second
    assert waiting.resolved.generation == first, "an engine may come that serves it"
    assert list(core.queue._parked) == [gone.request_id]
    core.in_flight.end(gone, FinishReason.CANCELLED)


def learn_another(core: QueueHarness, name: str = "m", digest: str = "the next model") -> Generation:
    """The core learns a model of the same tokenizer, which no engine serves yet."""
    model = engine_pb2.GetModelResponse()
    model.CopyFrom(served_model().model)
    model.model, model.model_digest = name, digest
    core.models.add(model, codec())
    return generation_of(model)


async def threads_idle(core: QueueHarness) -> None:
    """Everything that waited for a thread has had one, or waits for an engine."""
    core.free_threads()
    await until(lambda: not core.queue._waiting and core.queue._free_threads == THREADS)


class Quick(Job):
    """Tells where it ran."""

    __slots__ = ("where",)

    def __init__(self, key: str) -> None:
        super().__init__(key, "", 10)
        self.is_quick = True
        self.where: threading.Thread | None = None

    def is_ready(self) -> bool:
        return True

    def run(self) -> threading.Thread:
        return threading.current_thread()

    def finish(self, outcome: threading.Thread) -> bool:
        self.where = outcome
        return True


async def test_a_quick_job_takes_no_thread_unless_others_do(core: QueueHarness) -> None:
    def ask(key: str) -> Quick:
        job = Quick(key)
        core.queue._reserve(job.tenant, job.held)
        core.queue._append(job)
        return job

    behind = ask("behind")
    core.free_threads()
    await threads_idle(core)
    await until(lambda: behind.where is not None, 20)
    assert behind.where is not threading.main_thread()
    alone, second = ask("alone"), ask("second")
    assert alone.where is None, "later"
    await until(lambda: second.where is not None, 20)
    assert alone.where is threading.main_thread()
    assert second.where is not threading.main_thread()
    await threads_idle(core)
    assert not core.queue._begun_bytes


async def test_a_flood_leaves_room_and_waits_behind_itself(core: QueueHarness) -> None:
    for index in range(3):
        core.ask(f"flood {index}", 3 * BATCH_BYTES // 5, "flood")
    with pytest.raises(Refused):
        core.ask("one too many", 3 * BATCH_BYTES, "flood")
    core.ask("late", 10, "other")
    order = batches(core)
    await core.run()
    assert order[0] == ["flood 0", "late"]


@pytest.mark.parametrize("late", ["request", "look-up"])
async def test_a_flood_of_look_ups_waits_behind_itself(late: str, core: QueueHarness) -> None:
    async def nothing(tenant: str, size: int) -> None:
        await core.queue.run_in_thread(lambda: None, tenant, size)

    asked = [asyncio.create_task(nothing("flood", 3 * BATCH_BYTES // 5)) for _ in range(3)]
    await asyncio.sleep(0)
    with pytest.raises(Refused):
        await nothing("flood", 3 * BATCH_BYTES)
    if late == "request":
        core.ask("late", 10, "other")
    else:
        asked.append(asyncio.create_task(nothing("other", 10)))
        await asyncio.sleep(0)
    order = batches(core)
    await core.run()
    await asyncio.gather(*asked)
    assert order[0] == ["of flood", "late" if late == "request" else "of other"]
    assert [len(batch) for batch in order] == [2, 1, 1]


def batches(core: QueueHarness) -> list[list[str]]:
    """The batches that threads get from now on: client ids of requests, and tenants of look-ups."""
    order: list[list[str]] = []
    take = core.queue._waiting.take
    names = {call.request_id: call.client_request_id for client in core.streams.values() for call in client.requests()}

    def told() -> list[Job]:
        batch = take()
        order.append([names.get(job.key, f"of {job.tenant}") for job in batch])
        return batch

    core.queue._waiting.take = told  # type: ignore[method-assign]
    return order


@pytest.fixture(autouse=True)
def small_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.processor.admission.tokenization_queue.MIN_AHEAD", 1)


async def test_a_flood_is_tokenized_only_as_engines_need_it(core: QueueHarness) -> None:
    core.capacity = 2
    calls = [core.ask(f"flood {index}", 10, "flood") for index in range(4)]
    late = core.ask("late", 10, "other")
    core.free_threads()
    await until(lambda: all(call.admitted for call in (*calls[:2], late)))
    assert (calls[2].admitted, calls[3].admitted) == (False, False)
    assert core.queue._bytes.held("flood") == 2 * MIN_BYTES
    core.admission.begun(calls[1])
    await until(lambda: calls[2].admitted)
    assert not calls[3].admitted


async def test_requests_held_back_are_released_when_no_engine_is_left(
    core: QueueHarness,
) -> None:
    core.capacity = 1
    calls = [core.ask(f"flood {index}", 10) for index in range(3)]
    core.free_threads()
    await until(lambda: calls[0].admitted)
    assert not calls[1].admitted
    core.capacity = None
    core.queue.release()
    await until(lambda: all(call.admitted for call in calls))


async def test_a_request_that_ends_while_held_back_leaves_nothing_behind(core: QueueHarness) -> None:
    core.capacity = 1
    first, second, third = (core.ask(f"flood {index}", 10) for index in range(3))
    core.in_flight.end(second, FinishReason.CANCELLED)
    assert core.queue._bytes.held("") == 2 * MIN_BYTES
    core.free_threads()
    await until(lambda: first.admitted)
    core.in_flight.end(first, FinishReason.CANCELLED)
    await until(lambda: third.admitted)
