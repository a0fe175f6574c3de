"""A request that is pooled in the tokenization queue: some of its inputs at each turn, so that others go between."""

from __future__ import annotations

import structlog
from ringline.inference.v1 import inference_pb2

from services.processor.admission.model_choice import Chosen, ModelChoices
from services.processor.admission.pooling_resolution import PoolingResolution
from services.processor.admission.tokenization_job import Job, OnResolved
from services.processor.pooling.plan import PoolingMessage
from services.processor.request import Request, RequestMessage, ResolvedRequest
from services.processor.served_models import ServedModel, ServedModels
from services.processor.suitability import SUITS
from services.ring.errors import Code, Refused, Status

log = structlog.get_logger(__name__)

TURN_SIZE = 32 << 10
"""Characters that are encoded at a turn."""
QUICK_SIZE = 1 << 10
"""Characters that are encoded in less than a millisecond."""
_LEAST_INPUT = 2
"""Bytes of an empty input in a message."""


class PoolingJob(Job):
    """A received request: chooses its model, and resolves it for that."""

    __slots__ = ("_choices", "_chosen", "_message", "_models", "_on_resolved", "_refused", "_request", "_resolution")

    def __init__(
        self,
        request: Request,
        message: RequestMessage,
        on_resolved: OnResolved,
        models: ServedModels,
        choices: ModelChoices,
    ) -> None:
        super().__init__(request.request_id, request.tenant, len(message.packed))
        self.size = min(self.size, TURN_SIZE)
        self._request = request
        self._message = message
        self._on_resolved = on_resolved
        self._models = models
        self._choices = choices
        self.awaited_adapter = message.asked.awaited_adapter
        self._chosen: Chosen | None = None
        self._refused: Refused | None = None
        """Raised by ``run`` if no model is known, or none of that name."""
        self._resolution: PoolingResolution | None = None
        """As far as it has come."""

    def is_ready(self) -> bool:
        outcome = self._choices.choose(self._message.asked, self.tenant, SUITS[self._message.kind])
        self._chosen = outcome if isinstance(outcome, Chosen) else None
        self._refused = outcome if isinstance(outcome, Refused) else None
        self.is_quick = self._chosen is not None and self._is_quick_for(self._chosen.model)
        return outcome is not None

    def _is_quick_for(self, model: ServedModel) -> bool:
        """False for pairs, as a chat template may show them; a model's prompt may stand before each input."""
        size = len(self._message.packed)
        if size > QUICK_SIZE or self._message.kind is inference_pb2.ScoreRequest:
            return False
        longest = max(map(len, model.model.pooling.prompts.values()), default=0)
        return size + size // _LEAST_INPUT * longest <= QUICK_SIZE

    def run(self) -> ResolvedRequest | None:
        """None: there are more inputs to encode."""
        if self._refused is not None:
            raise self._refused
        assert self._chosen is not None
        if self._request.finished:
            raise Refused(Code.CANCELLED, "it ended while it waited")  # never delivered: the request is over
        chosen, resolution = self._chosen, self._resolution
        if resolution is None or resolution.served_model.generation != chosen.model.generation:
            resolution = self._resolution = PoolingResolution(self._read(), chosen.model, chosen.adapter)
        resolution.adapter = chosen.adapter  # it may have been replaced since the last turn
        if not resolution.advance(TURN_SIZE):
            return None
        return resolution.resolved(self._request.tenant, self._request.trace.traceparent)

    def _is_gone(self) -> bool:
        return self._chosen is not None and self._choices.is_gone(self._chosen)

    def _read(self) -> PoolingMessage:
        message = self._message.kind.FromString(self._message.packed)
        assert not isinstance(message, inference_pb2.GenerateRequest)
        return message

    def finish(self, outcome: ResolvedRequest | Exception | None) -> bool:
        """Call ``on_resolved``, unless the request has ended, has more inputs, or its model lost its engines."""
        request = self._request
        if request.finished:
            return True
        if outcome is None:
            return False
        if isinstance(outcome, Refused):
            self._on_resolved(request, outcome.status)
        elif isinstance(outcome, Exception):
            log.error("admission failed", request_id=request.request_id, error=repr(outcome))
            text = f"internal error; find {request.request_id} in the processor's log"
            self._on_resolved(request, Status(Code.INTERNAL, text))
        elif outcome.generation not in self._models.preferred() or self._is_gone():
            self._resolution = None
            return False
        else:
            self._on_resolved(request, outcome)
        return True
