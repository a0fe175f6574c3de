"""What requests' pictures take is counted until they end, however they end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest
from ringline.inference.v1 import inference_pb2 as pb

from services.processor.admission.model_choice import Chosen
from services.processor.admission.picture_stage import PictureStage
from services.processor.media.chat_pictures import take_sources
from services.processor.metrics import ProcessorMetrics
from services.processor.request import Asked, Request, RequestMessage
from services.processor.served_models import ModelPictures
from services.ring.errors import Code, Refused, invalid_field
from tests.services.processor.model_specs import learned, served_model
from text_core.pictures.base import ItemPlan, PicturePlan
from text_core.pictures.prepared import PreparedItem, PreparedPicture, PreparedView

SENT, PIXELS = 1000, 48
MOST = 8 * SENT


@dataclass
class Pool:
    """Of one kind of picture: prepared once ``ready`` is set."""

    ready: asyncio.Event = field(default_factory=asyncio.Event)
    begun: int = 0

    async def prepare(self, tenant: str, facts: bytes, data: bytes, mime: str, path: str) -> PreparedPicture:
        self.begun += 1
        await self.ready.wait()
        if data.startswith(b"bad"):
            raise invalid_field(path, "no picture")
        plan = ItemPlan((), num_tokens=4)
        item = PreparedItem.of(plan, [PreparedView(4, 4, bytes(PIXELS))])
        return PreparedPicture(PicturePlan((plan,), "<image>"), (item,))


class Queue:
    """Runs look-ups at once."""

    def __init__(self) -> None:
        self.left: list[str] = []

    async def run_in_thread(self, function: Callable[[], Any], tenant: str, size: int) -> Any:
        return function()

    def begun(self, request_id: str) -> None:
        self.left.append(request_id)


class Stage:
    """A stage, and what it calls."""

    def __init__(self) -> None:
        self.pool, self.queue = Pool(), Queue()
        processor: Any = SimpleNamespace(placeholder="<image>", item_token="<image>")
        model = replace(served_model(), pictures=ModelPictures(b"facts", 3, processor))
        choices: Any = SimpleNamespace(choose=lambda asked, tenant: Chosen(model))
        self.ids = count()
        self.prepared: list[Request] = []
        self.outcomes: list[Any] = []
        self.stage = PictureStage(
            self.pool,  # type: ignore[arg-type]
            self.queue,  # type: ignore[arg-type]
            learned(),
            choices,
            ProcessorMetrics(),
            max_bytes=MOST,
            route_timeout=1.0,
        )

    def add(self, *files: bytes, tenant: str = "") -> Request:
        parts = [pb.ContentPart(media=pb.Media(data=data)) for data in files]
        message = pb.GenerateRequest(chat=pb.Chat(messages=[pb.ChatMessage(role="user", content_parts=parts)]))
        sources = take_sources(message.chat)
        stream: Any = None
        request = Request(f"r{next(self.ids)}", "c", 1, tenant, stream, 0.0)
        request.message = RequestMessage(message.SerializeToString(), Asked(), 0)
        self.stage.add(request, sources, lambda request, outcome: self.outcomes.append(outcome), self.on_prepared)
        return request

    def on_prepared(self, request: Request, on_resolved: object) -> None:
        self.prepared.append(request)

    async def settle(self) -> None:
        self.pool.ready.set()
        for _ in range(20):
            await asyncio.sleep(0)


@pytest.fixture
async def one() -> Stage:
    return Stage()


async def test_files_count_until_admission_and_pixels_until_the_end(one: Stage) -> None:
    request = one.add(bytes(SENT), bytes(SENT))
    assert one.stage.held_bytes == 2 * SENT
    await one.settle()
    assert one.prepared == [request]
    assert one.stage.held_bytes == 2 * SENT + 2 * PIXELS
    one.stage.admitted(request)
    assert one.stage.held_bytes == 2 * PIXELS
    for _ in range(2):
        one.stage.leave(request)
        assert one.stage.held_bytes == 0
    assert not one.stage._waiting
    assert not one.stage._held


async def test_a_request_that_ends_meanwhile_leaves_nothing_behind(one: Stage) -> None:
    request = one.add(bytes(SENT))
    await asyncio.sleep(0)
    assert one.pool.begun == 1
    one.stage.leave(request)
    await one.settle()
    assert (one.stage.held_bytes, one.prepared, one.outcomes) == (0, [], [])


async def test_a_refused_picture_ends_its_request_alone(one: Stage) -> None:
    bad, good = one.add(bytes(SENT), b"bad"), one.add(bytes(SENT), tenant="other")
    await one.settle()
    (status,) = one.outcomes
    assert (status.code, status.field) == (Code.INVALID_ARGUMENT, "chat.messages[0].content_parts[1].media")
    one.stage.leave(bad)
    assert one.prepared == [good]
    assert one.stage.held_bytes == SENT + PIXELS


async def test_a_tenant_may_take_as_much_as_it_leaves(one: Stage) -> None:
    one.add(bytes(MOST // 2))
    with pytest.raises(Refused) as refused:
        one.add(bytes(SENT))
    assert refused.value.status.code is Code.RESOURCE_EXHAUSTED
    one.add(bytes(SENT), tenant="other")
    assert one.stage.held_bytes == MOST // 2 + SENT
    await one.settle()
    assert [status.code for status in one.outcomes] == [Code.RESOURCE_EXHAUSTED], "the first has no room for its pixels"


async def test_pictures_of_another_model_are_prepared_again_and_counted_once(one: Stage) -> None:
    request = one.add(bytes(SENT))
    await one.settle()
    one.stage.again(request, one.on_prepared)
    assert one.stage.held_bytes == SENT
    assert one.queue.left == [request.request_id], "else it would count twice among those ahead"
    await one.settle()
    assert (one.prepared, one.stage.held_bytes) == ([request, request], SENT + PIXELS)
    one.stage.leave(request)
    one.stage.again(request, one.on_prepared)
    await one.settle()
    assert (one.pool.begun, one.stage.held_bytes) == (2, 0)
