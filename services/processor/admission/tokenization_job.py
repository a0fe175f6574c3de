"""Jobs that the tokenization queue runs in threads: received requests, and other RPCs' look-ups."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import structlog
from ringline.inference.v1 import inference_pb2

from services.common.rpc.message_limits import MalformedMessage
from services.processor.admission.model_choice import Chosen, ModelChoices
from services.processor.admission.request_resolution import resolve_request
from services.processor.media.chat_pictures import OtherModelError
from services.processor.request import Request, RequestMessage, ResolvedRequest
from services.processor.served_models import ServedModels
from services.ring.errors import Code, Refused, Status
from services.ring.identity import PeerId

log = structlog.get_logger(__name__)

_T = TypeVar("_T")
OnResolved = Callable[[Request, ResolvedRequest | Status], None]
"""Receives the outcome of a request on the event loop: the resolved request, or the error that ends it."""

MIN_BYTES = 64
"""Minimum bytes charged per message: even an empty one takes time."""
CONSTRAINT_CHARGE = 64 << 10
"""Bytes charged in addition for a constraint, whose grammar takes time to check: enough that its batch holds no other
request, which would have to wait."""


class Job(ABC):
    """Work on one message of a tenant: ``is_ready`` at its turn, ``run`` in a thread, and ``finish`` with the outcome.

    ``is_ready`` and ``finish`` are called on the event loop.
    """

    __slots__ = ("awaited_adapter", "held", "is_constrained", "is_quick", "key", "size", "tenant")

    def __init__(self, key: str, tenant: str, size: int, *, is_constrained: bool = False) -> None:
        self.key = key
        self.tenant = tenant
        self.held = max(size, MIN_BYTES)
        """Bytes of its message."""
        self.is_constrained = is_constrained
        self.is_quick = False
        """Whether ``run`` takes about a millisecond at most: then it may be called on the event loop, too."""
        self.awaited_adapter = ""
        """Words for the adapter that it needs; empty: none."""
        self.size = self.held + (CONSTRAINT_CHARGE if is_constrained else 0)
        """Bytes charged in deficit round-robin."""

    @abstractmethod
    def is_ready(self) -> bool:
        """False if the job must be parked."""

    @abstractmethod
    def run(self) -> object:
        """The outcome; may raise any exception."""

    @abstractmethod
    def finish(self, outcome: Any) -> bool:
        """Handle what ``run`` returned or raised (without traceback). Returns False if the job must be queued again."""

    def outcome(self) -> object:
        """What ``run`` returns or raises."""
        try:
            return self.run()
        except BaseException as raised:  # of any kind: without an outcome, the whole batch would wait forever
            error = raised if isinstance(raised, Exception) else RuntimeError(f"{type(raised).__name__}: {raised}")
            if not isinstance(error, Refused | MalformedMessage | OtherModelError):
                log.exception("work failed", work=self.key)
            # Drop the traceback: it refers to the stack frames that hold the error, a cycle that would keep the whole
            # request until the garbage collector runs.
            error.__traceback__ = error.__context__ = error.__cause__ = None
            return error


class LookUp(Job, Generic[_T]):
    """A function; a future receives its outcome."""

    __slots__ = ("answer", "function")

    def __init__(self, key: str, tenant: str, size: int, function: Callable[[], _T]) -> None:
        super().__init__(key, tenant, size)
        self.function = function
        self.answer: asyncio.Future[_T] = asyncio.get_running_loop().create_future()

    def is_ready(self) -> bool:
        return True

    def run(self) -> object:
        return self.function()

    def finish(self, outcome: Any) -> bool:
        if self.answer.done():  # its caller was cancelled
            return True
        if isinstance(outcome, Exception):
            self.answer.set_exception(outcome)
        else:
            self.answer.set_result(outcome)
        return True


class RequestJob(Job):
    """A received request: chooses its model, and resolves it for that."""

    __slots__ = (
        "_choices",
        "_chosen",
        "_me",
        "_message",
        "_models",
        "_on_other_model",
        "_on_resolved",
        "_refused",
        "_request",
    )

    def __init__(
        self,
        request: Request,
        message: RequestMessage,
        on_resolved: OnResolved,
        models: ServedModels,
        choices: ModelChoices,
        me: PeerId,
        on_other_model: Callable[[Request], None] = lambda request: None,
    ) -> None:
        """``on_other_model`` gets the request if its pictures were prepared for another model."""
        size = len(message.packed)
        super().__init__(request.request_id, request.tenant, size, is_constrained=message.is_constrained)
        self._request = request
        self._message = message
        self._on_resolved = on_resolved
        self._models = models
        self._choices = choices
        self._me = me
        self._on_other_model = on_other_model
        self.awaited_adapter = message.asked.awaited_adapter
        self._chosen: Chosen | None = None
        self._refused: Refused | None = None
        """Raised by ``run`` if no model is known."""

    def is_ready(self) -> bool:
        """Choose the model: that on which a resumed request began, else that for new requests; so the adapter."""
        outcome = self._choices.choose(self._message.asked, self.tenant)
        self._chosen = outcome if isinstance(outcome, Chosen) else None
        self._refused = outcome if isinstance(outcome, Refused) else None
        return outcome is not None

    def run(self) -> ResolvedRequest:
        if self._refused is not None:
            raise self._refused
        assert self._chosen is not None
        if self._request.finished:
            raise Refused(Code.CANCELLED, "it ended while it waited")  # never delivered: the request is over
        model = self._chosen.model
        message = inference_pb2.GenerateRequest.FromString(self._message.packed)
        pictures, known = self._message.pictures, model.pictures
        if pictures is not None and (known is None or pictures.facts != known.facts):
            raise OtherModelError
        return resolve_request(
            message,
            model,
            self._request.tenant,
            self._me,
            self._request.trace.traceparent,
            pictures,
            self._chosen.adapter,
        )

    def finish(self, outcome: ResolvedRequest | Exception) -> bool:
        """Call ``on_resolved``, unless the request has ended, or its model lost its engines."""
        request = self._request
        if request.finished:
            return True
        if isinstance(outcome, OtherModelError):
            self._on_other_model(request)
        elif isinstance(outcome, Refused):
            self._on_resolved(request, outcome.status)
        elif isinstance(outcome, Exception):
            log.error("admission failed", request_id=request.request_id, error=repr(outcome))
            text = f"internal error; find {request.request_id} in the processor's log"
            self._on_resolved(request, Status(Code.INTERNAL, text))
        elif not self._has_engines(outcome):
            return False  # it can be tokenized again, for another model
        else:
            self._on_resolved(request, outcome)
        return True

    def _has_engines(self, resolved: ResolvedRequest) -> bool:
        """Whether the model still has engines, and the adapter."""
        assert self._chosen is not None
        if self._choices.is_gone(self._chosen):
            return False
        if self._message.asked.model_digest:
            return resolved.generation in self._models.held
        return resolved.generation in self._models.preferred()
