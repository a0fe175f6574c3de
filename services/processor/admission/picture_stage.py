"""The stage before tokenization of requests with pictures: these are read, checked and prepared, while others go on.

The bytes that pictures take, as they were sent and as pixels, are counted per tenant until the request ends.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial

import structlog
from ringline.inference.v1 import inference_pb2

from services.processor.admission.model_choice import ModelChoices
from services.processor.admission.tokenization_job import OnResolved
from services.processor.admission.tokenization_queue import BATCH_BYTES, TokenizationQueue
from services.processor.admission.validation import check_request, refuse
from services.processor.media.chat_pictures import (
    ChatPictures,
    PictureSource,
    check_pictures,
    pictures_of,
)
from services.processor.media.pool import PicturePool
from services.processor.metrics import ProcessorMetrics
from services.processor.pooling.purpose import check_generates
from services.processor.request import Request
from services.processor.served_models import ServedModel, ServedModels, no_route
from services.ring.errors import Code, Reason, Refused, Status, invalid_field
from services.ring.identity import check_requires
from services.ring.limits import PICTURE_OVERHEAD_BYTES
from services.ring.tenant_quota import TenantMemoryQuota
from text_core.pictures.prepared import PreparedPicture

log = structlog.get_logger(__name__)

_LOOK_AGAIN = 0.05
"""Seconds between looks for a model while no engine takes work."""
_RETRY_AFTER_MS = 1000
OnPrepared = Callable[[Request, OnResolved], None]


@dataclass(slots=True, eq=False)
class _Waiting:
    """A request whose pictures are not admitted yet."""

    request: Request
    sources: Sequence[PictureSource]
    on_resolved: OnResolved
    sent_bytes: int
    task: asyncio.Task[None] | None = None


class PictureStage:
    """Prepares the pictures of received requests."""

    def __init__(
        self,
        pool: PicturePool,
        queue: TokenizationQueue,
        models: ServedModels,
        choices: ModelChoices,
        metrics: ProcessorMetrics,
        *,
        max_bytes: int,
        route_timeout: float,
    ) -> None:
        """``max_bytes``: of all requests' pictures. ``route_timeout``: seconds to wait for an engine."""
        self._pool = pool
        self._queue = queue
        self._models = models
        self._choices = choices
        self._metrics = metrics
        self._route_timeout = route_timeout
        self._memory = TenantMemoryQuota(
            "chat.messages", "this processor", "pictures", max_bytes, lambda tenant: _RETRY_AFTER_MS
        )
        self._waiting: dict[str, _Waiting] = {}
        self._held: dict[str, int] = {}
        """Bytes charged for each request, by its id."""

    @property
    def held_bytes(self) -> int:
        """Bytes charged for all requests."""
        return self._memory.total

    def add(
        self, request: Request, sources: Sequence[PictureSource], on_resolved: OnResolved, on_prepared: OnPrepared
    ) -> None:
        """Prepare a received request's pictures, then call ``on_prepared``; ``on_resolved`` gets an error.

        Raises ``Refused`` if they take too much.
        """
        size = sum(source.nbytes for source in sources)
        self._charge(request, size)
        waiting = _Waiting(request, sources, on_resolved, size)
        self._waiting[request.request_id] = waiting
        self._begin(waiting, on_prepared)

    def again(self, request: Request, on_prepared: OnPrepared) -> None:
        """The request's model has changed since its pictures were prepared."""
        if (waiting := self._waiting.get(request.request_id)) is not None and request.message is not None:
            if request.message.pictures is not None:
                self._give_back(request, sum(picture.nbytes for picture in request.message.pictures.pictures))
            request.message = replace(request.message, pictures=None)
            self._queue.begun(request.request_id)  # it enters the queue again
            self._begin(waiting, on_prepared)

    def admitted(self, request: Request) -> None:
        """The request needs its pictures only as pixels from here on."""
        if (waiting := self._waiting.pop(request.request_id, None)) is not None:
            self._give_back(request, waiting.sent_bytes)

    def leave(self, request: Request) -> None:
        """The request ends: forget its pictures. Idempotent."""
        waiting = self._waiting.pop(request.request_id, None)
        if waiting is not None and waiting.task is not None:
            waiting.task.cancel()
        self._give_back(request, self._held.get(request.request_id, 0))

    def _begin(self, waiting: _Waiting, on_prepared: OnPrepared) -> None:
        waiting.task = asyncio.create_task(self._run(waiting, on_prepared))

    async def _run(self, waiting: _Waiting, on_prepared: OnPrepared) -> None:
        request = waiting.request
        try:
            pictures = await self._prepare(waiting)
        except Refused as refused:
            self._fail(waiting, refused.status)
            return
        except Exception as error:  # without an outcome, the request would wait forever
            log.error("preparing pictures failed", request_id=request.request_id, error=repr(error))
            text = f"internal error; find {request.request_id} in the processor's log"
            self._fail(waiting, Status(Code.INTERNAL, text))
            return
        nbytes = sum(picture.nbytes for picture in pictures.pictures)
        self._metrics.pictures_prepared(len(pictures.pictures), nbytes, time.monotonic() - request.arrived_at)
        waiting.task = None
        if request.message is not None:
            request.message = replace(request.message, pictures=pictures)
            on_prepared(request, waiting.on_resolved)

    def _fail(self, waiting: _Waiting, status: Status) -> None:
        waiting.task = None
        self._metrics.pictures_refused += 1
        waiting.on_resolved(waiting.request, status)

    async def _prepare(self, waiting: _Waiting) -> ChatPictures:
        request = waiting.request
        model = await self._model(request)
        message = request.message
        assert message is not None
        pictures_of(model, waiting.sources)
        work = partial(_check, message.packed, waiting.sources, model)
        await self._queue.run_in_thread(work, request.tenant, len(message.packed))
        pictures = await self._read(waiting.sources, model, request.tenant, partial(self._charge, request))
        return ChatPictures(_facts(model), pictures)

    async def _read(
        self, sources: Sequence[PictureSource], model: ServedModel, tenant: str, charge: Callable[[int], None]
    ) -> list[PreparedPicture]:
        """One after another, so that a request with many takes turns with others."""
        facts = _facts(model)
        prepared = []
        sizes: dict[bytes, int] = {}
        for source in sources:
            if isinstance(source.given, bytes):
                data, mime = source.read()
            else:  # its bytes are counted here, and need not keep others from the other threads
                size = min(source.nbytes, BATCH_BYTES)
                data, mime = await self._queue.run_in_thread(source.read, tenant, size)
            picture = await self._pool.prepare(tenant, facts, data, mime, source.path)
            charge(picture.nbytes)
            sizes |= {item.digest: item.nbytes + PICTURE_OVERHEAD_BYTES for item in picture.items}
            _check_room(source.path, sum(sizes.values()), model.model.media_memory_bytes)
            prepared.append(picture)
        return prepared

    @asynccontextmanager
    async def prepared(
        self, sources: Sequence[PictureSource], model: ServedModel, tenant: str
    ) -> AsyncIterator[ChatPictures]:
        """The pictures of a look-up, counted until the block ends. Raises ``Refused``."""
        charged = 0

        def charge(size: int) -> None:
            nonlocal charged
            self._memory.check(tenant, size)
            self._memory.take(tenant, size)
            charged += size

        try:
            charge(sum(source.nbytes for source in sources))
            yield ChatPictures(_facts(model), await self._read(sources, model, tenant, charge))
        finally:
            self._memory.give_back(tenant, charged)

    async def _model(self, request: Request) -> ServedModel:
        """The request's model, as soon as an engine takes work."""
        message = request.message
        assert message is not None
        until = time.monotonic() + self._route_timeout
        while True:
            chosen = self._choices.choose(message.asked, request.tenant)
            if isinstance(chosen, Refused):
                raise chosen
            if chosen is not None:
                check_generates(chosen.model)
                return chosen.model
            if time.monotonic() > until:
                reason, served = self._models.no_route_reason, self._models.preferred()
                raise no_route(served, None, self._route_timeout, reason, message.asked.awaited_adapter)
            await asyncio.sleep(_LOOK_AGAIN)

    def _charge(self, request: Request, size: int) -> None:
        self._memory.check(request.tenant, size)
        self._memory.take(request.tenant, size)
        self._held[request.request_id] = self._held.get(request.request_id, 0) + size

    def _give_back(self, request: Request, size: int) -> None:
        self._memory.give_back(request.tenant, size)
        if (left := self._held.pop(request.request_id, 0) - size) > 0:
            self._held[request.request_id] = left


def _facts(model: ServedModel) -> bytes:
    assert model.pictures is not None
    return model.pictures.facts


def _check_room(field: str, size: int, most: int) -> None:
    """Raise ``Refused`` for pictures that the engines cannot hold together; ``most``: 0 if that is not known."""
    if most and size > most:
        problem = (
            f"the pictures up to this one take {size} bytes as pixels: expected at most {most} "
            "(--media-memory-bytes of the engine); send fewer or smaller ones"
        )
        raise invalid_field(field, problem, reason=Reason.TOO_LARGE)


def _check(packed: bytes, sources: Sequence[PictureSource], model: ServedModel) -> None:
    """Check what a request with pictures has besides them. Runs in a thread; raises ``Refused``."""
    request = inference_pb2.GenerateRequest.FromString(packed)
    check_requires(request.requires, model.capabilities)
    check_request(request, model.limits)
    if request.HasField("truncate_prompt_tokens"):
        raise refuse("truncate_prompt_tokens", "set, and the chat has pictures, which cannot be cut: expected none")
    check_pictures(request.chat, sources, model)
