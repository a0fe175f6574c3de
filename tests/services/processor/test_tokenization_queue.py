"""The desk holds no more than it may, and nothing of what has ended."""

from __future__ import annotations

import asyncio
import sys
import threading
import time

import pytest
from ringline.engine.v1 import engine_pb2
from ringline.inference.v1 import inference_pb2

from services.processor.admission.resolve import Admission, admit
from services.processor.admission.tokenization_queue import BATCH_BYTES, THREADS, _Work
from services.processor.client import ClientRequest
from services.processor.in_flight import InFlightRequests
from services.processor.metrics import ProcessorMetrics
from services.processor.served_models import generation_of
from services.ring.errors import Code, Reason, Refused
from services.ring.events import FinishReason
from services.ring.generations import Generation
from services.ring.identity import ring_id
from services.rpc.protobuf import status_from_proto
from tests.services.processor.backlogs import roomy
from tests.services.processor.model_specs import texts, vocabulary
from tests.services.processor.tokenization_queues import LARGE, Office


def refused_with(office: Office, size: int) -> Refused:
    with pytest.raises(Refused) as refusal:
        office.ask("refused", size)
    return refusal.value


async def test_what_waits_is_bounded_by_its_bytes_and_the_rest_told_when_to_come_again(office: Office) -> None:
    calls = [office.ask("first", LARGE), office.ask("second", LARGE)]
    status = refused_with(office, 2 * LARGE).status
    assert status.code is Code.RESOURCE_EXHAUSTED
    assert status.retry_after_ms is not None
    assert 1000 <= status.retry_after_ms <= 1250, "nobody knows"
    assert " bytes of this tenant wait to be tokenized, " in status.message
    calls.append(office.ask("small", 10))
    await office.go()
    assert [call.ended for call in calls] == [True, True, False], "too long for the model; on the ring"
    assert "refused" not in {call.client_id for call in office.client.requests()}


async def test_who_finds_no_room_is_told_when_half_of_what_waits_will_be_gone(office: Office) -> None:
    office.ask("of another", 10, tenant="other")
    office.ask("first", 2 * LARGE)
    office.desk._speed.begin(0.0)
    for second in range(1, 4):
        office.desk._speed.add(100_000, float(second))
    speed = office.desk._speed.per_second()
    assert speed is not None
    told = refused_with(office, 2 * LARGE).status.retry_after_ms
    expected = min(500 * 2 * office.desk._bytes.held("") / speed, 30_000)
    assert told is not None
    assert expected - 1 <= told <= 1.25 * expected + 1, "it has every second turn"


async def test_a_large_request_may_wait_alone(office: Office) -> None:
    office.ask("huge", 10 * LARGE)
    assert refused_with(office, 1).status.code is Code.RESOURCE_EXHAUSTED


async def test_room_is_there_again_when_a_batch_has_begun(office: Office) -> None:
    office.ask("huge", 10 * LARGE)
    await office.go()
    small = office.ask("small", 10)
    await office.go()
    assert small.live is not None


async def test_what_ended_while_it_waited_leaves_nothing_behind(office: Office) -> None:
    request = inference_pb2.GenerateRequest(request_id="large", text="a" * (10 * LARGE))
    call = ClientRequest(ring_id(1, 100), "large", 1, office.client, time.monotonic(), None)
    office.desk.admit(call, request)
    office.client.add(call)
    assert sys.getrefcount(request) == 2, "here, and in the asking: the desk has its bytes"
    office.desk.drop(call)
    office.ring.end(call, FinishReason.CANCELLED)
    assert office.desk._bytes.total == 0
    for index in range(2):
        office.ask(f"in its place {index}", LARGE - 100)


async def test_what_waits_to_be_tokenized_has_its_turn_among_what_is_first(office: Office) -> None:
    await office.go()
    one, others, order = threading.Event(), threading.Event(), list[str]()
    waits = [one.wait, *[others.wait] * (THREADS - 1)]
    held = [asyncio.create_task(office.desk.look_up(wait, "", 0)) for wait in waits]
    await asyncio.sleep(0)
    later = asyncio.create_task(office.desk.look_up(lambda: order.append("later"), "", 0))
    await asyncio.sleep(0)
    first = [
        asyncio.create_task(office.desk.look_up(lambda: order.append("first"), "", LARGE, first=True)) for _ in range(2)
    ]
    await asyncio.sleep(0)
    one.set()
    async with asyncio.timeout(60):
        await asyncio.gather(later, *first)
    assert order == ["first", "later", "first"]
    others.set()
    await asyncio.gather(*held)


async def test_other_work_counts_while_it_waits(office: Office) -> None:
    detokenize = asyncio.create_task(office.desk.look_up(lambda: "text", "", 3 * LARGE))
    await asyncio.sleep(0)
    assert refused_with(office, LARGE).status.code is Code.RESOURCE_EXHAUSTED
    with pytest.raises(Refused):
        await office.desk.look_up(lambda: "more", "", LARGE)
    await office.go()
    assert await detokenize == "text"
    office.ask("after", 10)


async def test_memory_is_given_back_after_work_on_a_large_message(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    given_back: list[int] = []
    monkeypatch.setattr(
        "services.processor.admission.tokenization_queue.give_back_free_memory", lambda: given_back.append(size)
    )
    for size in (BATCH_BYTES, BATCH_BYTES + 1):
        work = asyncio.create_task(office.desk.look_up(lambda: None, "", size))
        await asyncio.sleep(0)
        await office.go()
        await work
    assert given_back == [BATCH_BYTES + 1]


async def test_a_look_up_that_is_given_up_leaves_nothing_behind(office: Office) -> None:
    given_up = asyncio.create_task(office.desk.look_up(lambda: "text", "", 4 * LARGE))
    await asyncio.sleep(0)
    assert refused_with(office, 3 * LARGE).status.code is Code.RESOURCE_EXHAUSTED
    given_up.cancel()
    await asyncio.gather(given_up, return_exceptions=True)
    assert not office.desk._waiting
    office.ask("in its place", 3 * LARGE)


async def test_what_a_look_up_raises_is_raised_where_it_was_asked_for(office: Office) -> None:
    def fail() -> None:
        raise LookupError("it is not there")

    beside = [asyncio.create_task(office.desk.look_up(fail, "", 1)), asyncio.create_task(_told(office, 1))]
    await asyncio.sleep(0)
    await office.go()
    assert await beside[1] == 1, "of the same batch"
    with pytest.raises(LookupError, match="it is not there"):
        await beside[0]


async def _told(office: Office, answer: int) -> int:
    return await office.desk.look_up(lambda: answer, "", 1)


async def test_what_ended_while_it_was_tokenized_does_not_set_out(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenized, told = threading.Event(), threading.Event()

    def slowly(*args: object) -> Admission:
        admission = admit(*args)  # type: ignore[arg-type]
        tokenized.set()
        told.wait()
        return admission

    monkeypatch.setattr("services.processor.admission.tokenization_queue.admit", slowly)
    cancelled, other = office.ask("cancelled", 10), office.ask("other", 10)
    going = asyncio.create_task(office.go())
    await asyncio.to_thread(tokenized.wait)
    office.ring.end(cancelled, FinishReason.CANCELLED)
    told.set()
    await going
    assert (cancelled.live, other.live is None) == (None, False)
    assert office.ring.num_live == 1


async def test_what_was_tokenized_for_a_model_that_left_meanwhile_is_tokenized_for_the_next_one(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    next_one = learn_another(office)

    def admitted_meanwhile(*args: object) -> Admission:
        admission = admit(*args)  # type: ignore[arg-type]
        office.served = [next_one]
        return admission

    monkeypatch.setattr("services.processor.admission.tokenization_queue.admit", admitted_meanwhile)
    call = office.ask("r", 10)
    await office.go()
    assert call.live is not None
    assert call.live.admission.generation == next_one
    assert not office.desk._bytes.total


async def test_new_requests_are_for_the_generation_that_should_have_them(office: Office) -> None:
    (first,), next_one = office.served, learn_another(office)
    office.served = [next_one, first]
    new, resumed = office.ask("new", 10), office.ask("resumed", 10, begun_on=vocabulary().model.model_digest)
    await office.go()
    assert new.live is not None
    assert resumed.live is not None
    assert new.live.admission.generation == next_one
    assert resumed.live.admission.generation == first


async def test_requests_wait_untokenized_while_no_engine_takes_work(office: Office) -> None:
    """Which model they are for is not known before one does."""
    (first,), next_one = office.served, learn_another(office)
    office.served = []
    calls = [office.ask(str(number), 10) for number in range(3)]
    dropped = calls.pop()
    await threads_idle(office)
    office.desk.release()
    assert [call.live for call in calls] == [None, None]
    assert office.desk._bytes.total, "they count"
    office.desk.drop(dropped)
    office.ring.end(dropped, FinishReason.CANCELLED)
    office.served = [next_one, first]
    office.desk.release()
    await office.go()
    assert [call.live and call.live.admission.generation for call in calls] == [next_one, next_one]
    assert not office.desk._bytes.total


@pytest.mark.parametrize("served", [True, False])
async def test_waiting_for_a_model_ends_with_patience(served: bool, office: Office) -> None:
    """One that was begun on a model which is not here waits as one does that no engine is there for."""
    office.served = office.served if served else []
    call = office.ask("r", 10, begun_on="of long ago" if served else "")
    await threads_idle(office)
    office.desk.release()
    assert not call.ended
    office.desk._patience = -1.0
    office.desk.release()
    (refused,) = [one.refused for one in office.client.take().responses if one.HasField("refused")]
    status = status_from_proto(refused.status)
    assert (status.code, status.reason) == (Code.UNAVAILABLE, Reason.MODEL_GONE if served else Reason.NO_ROUTE)
    assert not office.desk._bytes.total


async def test_nothing_is_taken_before_an_engine_has_said_what_it_serves(office: Office) -> None:
    office.source._held._drop(vocabulary().generation)
    office.served = []
    call = office.ask("r", 10)
    await office.go()
    assert call.ended


def learn_another(office: Office) -> Generation:
    """The office learns a model of the same tokenizer, which no engine serves yet."""
    model = engine_pb2.GetModelResponse()
    model.CopyFrom(vocabulary().model)
    model.model_digest = "the next model"
    office.source.add(model, texts())
    return generation_of(model)


async def threads_idle(office: Office) -> None:
    """Everything that waited for a thread has had one, or waits for an engine."""
    office.free()
    async with asyncio.timeout(30):
        while office.desk._waiting or office.desk._free < THREADS:  # noqa: ASYNC110 - its threads tell nobody
            await asyncio.sleep(0.001)


async def test_a_flood_leaves_room_and_waits_behind_itself(office: Office) -> None:
    for index in range(3):
        office.ask(f"flood {index}", 3 * BATCH_BYTES // 5, "flood")
    with pytest.raises(Refused):
        office.ask("one too many", 3 * BATCH_BYTES, "flood")
    office.ask("late", 10, "other")
    order = batches(office)
    await office.go()
    assert order[0] == ["flood 0", "late"]


@pytest.mark.parametrize("late", ["request", "look-up"])
async def test_a_flood_of_look_ups_waits_behind_itself(late: str, office: Office) -> None:
    async def nothing(tenant: str, size: int) -> None:
        await office.desk.look_up(lambda: None, tenant, size)

    asked = [asyncio.create_task(nothing("flood", 3 * BATCH_BYTES // 5)) for _ in range(3)]
    await asyncio.sleep(0)
    with pytest.raises(Refused):
        await nothing("flood", 3 * BATCH_BYTES)
    if late == "request":
        office.ask("late", 10, "other")
    else:
        asked.append(asyncio.create_task(nothing("other", 10)))
        await asyncio.sleep(0)
    order = batches(office)
    await office.go()
    await asyncio.gather(*asked)
    assert order[0] == ["of flood", "late" if late == "request" else "of other"]
    assert [len(batch) for batch in order] == [2, 1, 1]


def batches(office: Office) -> list[list[str]]:
    """What the desk gives to its threads from now on: clients' names of requests, and whose look-ups there are."""
    order: list[list[str]] = []
    take = office.desk._waiting.take
    names = {call.ring_id: call.client_id for client in office.clients.values() for call in client.requests()}

    def told() -> list[_Work]:
        batch = take()
        order.append([names.get(work.name, f"of {work.tenant}") for work in batch])
        return batch

    office.desk._waiting.take = told  # type: ignore[method-assign]
    return order


async def test_what_is_under_way_is_bounded_by_its_bytes_too(office: Office) -> None:
    office.desk._ring = ring = InFlightRequests(
        office.peers, ProcessorMetrics(), roomy(), patience=60.0, max_live_bytes=1
    )
    calls = [office.ask(name, 10) for name in ("first", "second")]
    await office.go()
    ended = [response for response in office.client.take().responses if response.HasField("refused")]
    (refused,) = ended
    assert refused.refused.status.code == Code.RESOURCE_EXHAUSTED
    assert refused.refused.status.message.startswith("prompt: this processor holds ")
    assert refused.refused.status.details, "when to come again"
    (live,) = [call for call in calls if call.live is not None]
    ring.end(live, FinishReason.CANCELLED)
    again = office.ask("again", 10)
    await office.go()
    assert again.live is not None
