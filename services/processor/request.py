"""A client's request, from the frame that asks for it to its end.

Its fields are set in stages. Received: ``Intake`` creates it. Admitted: its prompt is tokenized and every default
resolved. Routed: ``Dispatcher`` sends it on a route, ``Failover`` on another when peers are lost. Finished: its end is
in the client's outbox.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field

from ringline.engine.v1 import engine_pb2
from ringline.inference.v1 import inference_pb2

from services.common.rpc.output_stream import OutputStream
from services.processor.gateways import Gateway
from services.processor.media.chat_pictures import ChatPictures
from services.processor.pooling.plan import AnswerPlan, PoolingMessage
from services.processor.served_models import generation_of
from services.processor.tracing import NO_TRACE, RequestTrace
from services.ring.delivery import Delivery
from services.ring.model_generations import Generation
from services.ring.poison import PoisonTracker
from services.ring.prefixes import Prefixes, prefixes_of
from services.ring.route_timeout import RouteTimeout
from services.ring.routing_logic import Needs, Route
from text_core.pictures.prepared import PreparedItem

# Upper estimates of an admitted request's memory, bytes.
_REQUEST_HELD, _CHOICE_HELD, _RESUMED_ID_HELD = 8 << 10, 512, 12
_COPIES = 2
"""Copies of the engine's message: one here, one in the link's queue."""
SEPARATOR = ":"
"""Between a model's name and that of an adapter, which has none."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What a request says of its model."""

    model: str = ""
    adapter: str = ""
    model_digest: str = ""
    """On which it began, if it is resumed; empty for a new request."""
    adapter_digest: str = ""
    """With which it began."""

    @property
    def awaited_adapter(self) -> str:
        """Words for the adapter that the request names; empty if it names none, or in ``model`` alone."""
        name = self.adapter or (self.model.rpartition(SEPARATOR)[2] if self.adapter_digest else "")
        return f"the adapter {name[:200]!r}" if name else ""


@dataclass(frozen=True, slots=True)
class RequestMessage:
    """The client's message, kept serialized (its smallest form) until the request is tokenized."""

    packed: bytes
    """A message of ``kind``."""
    asked: Asked
    """The model that it names, and the adapter."""
    priority: int
    is_constrained: bool = False
    """Whether it may need a grammar, which takes time to check."""
    pictures: ChatPictures | None = None
    """Its chat's pictures, which are not in ``packed``; None: it has none, or they are not prepared yet."""
    kind: type[inference_pb2.GenerateRequest | PoolingMessage] = inference_pb2.GenerateRequest


@dataclass(frozen=True, slots=True)
class ResolvedRequest:
    """A tokenized request with every default resolved.

    Its messages are kept serialized while it is in flight: parsed, they would take up to twenty times as much memory.
    """

    packed_admitted: bytes
    packed_submit: bytes
    output_context: bytes
    """Serialized message for the detokenizer, opaque to the engine."""
    prompt_tokens: int
    num_choices: int
    """Number of choices, including the finished ones that a resume leaves out."""
    choices: dict[int, array[int]]
    """The ids of each unfinished choice."""
    is_resume: bool
    """Whether it was in flight before, at this or another processor; without ids if it was lost before its first
    token."""
    wants_prefill_progress: bool
    prefixes: Prefixes
    """Hashed prefixes of the prompt; routing looks up which engines have them cached."""
    num_prompt_logprobs: int
    """Number of prompt log probabilities requested from the engine."""
    numerics: str
    """Numerics of the engine that computed the resumed ids, if the client knows them."""
    model: engine_pb2.GetModelResponse
    """The model that the request was checked against and tokenized for."""
    needs: Needs = field(default_factory=Needs)
    """Capabilities that its engine and its detokenizer must have, and its adapter."""
    pictures: Mapping[bytes, PreparedItem] = field(default_factory=dict)
    """What its engine must hold, by digest. Counted by ``PictureStage``."""
    media_tokens: int = 0
    """Tokens of the prompt that stand for pictures."""
    beams: int = 0
    """Outputs that a search lets grow at a time, of which the choices are the best; 0: choices are sampled."""
    max_output: int = 0
    """The most tokens of a choice."""
    answer_plan: AnswerPlan | None = None
    """What the results of its inputs, which are its choices, become; None: tokens are generated."""

    @property
    def admitted(self) -> inference_pb2.Admitted:
        """The client's first response; parsed anew each time."""
        return inference_pb2.Admitted.FromString(self.packed_admitted)

    @property
    def submit(self) -> engine_pb2.Submit:
        """The engine's Submit without id, epoch, receiver, time and resumed ids; parsed anew each time."""
        return engine_pb2.Submit.FromString(self.packed_submit)

    @property
    def generation(self) -> Generation:
        """Only this generation's engines may compute it."""
        return generation_of(self.model)

    @property
    def num_resumed(self) -> int:
        """Resumed ids over all choices; an engine computes them like the prompt."""
        return sum(map(len, self.choices.values()))

    @property
    def held_bytes(self) -> int:
        """Upper estimate of the request's memory while it is in flight, apart from its output."""
        size = _REQUEST_HELD + len(self.packed_admitted)
        size += _COPIES * (len(self.packed_submit) + len(self.output_context))
        if self.answer_plan is not None:
            size += _COPIES * self.answer_plan.result_bytes  # as results, and as the answer
        return size + _CHOICE_HELD * len(self.choices) + _RESUMED_ID_HELD * self.num_resumed


@dataclass(slots=True, eq=False)
class Request:
    """One request. Times are seconds on the monotonic clock."""

    # Received
    request_id: str
    """The ring id, by which engines and detokenizers know it."""
    client_request_id: str
    """Unique among the stream's live requests only."""
    ordinal: int
    """Number, from 1, of the frame on its stream that began it."""
    tenant: str
    stream: OutputStream
    """The client's stream, which gets the output."""
    arrived_at: float
    deadline: float | None = None
    deadline_timer: asyncio.TimerHandle | None = None
    gateway: Gateway | None = None
    """The client, if it is a gateway."""
    trace: RequestTrace = NO_TRACE
    message: RequestMessage | None = None
    """The client's message; None until the limits are checked, and again from admission on."""
    awaited: str = field(default="", init=False)
    """The queue of ``Backlog`` that it waits in; empty: its model was not known when it came."""

    # Admitted
    _resolved: ResolvedRequest | None = field(default=None, init=False)
    _delivery: Delivery | None = field(default=None, init=False)
    numerics: str = field(default="", init=False)
    """Numerics of the engine that computed the delivered output; empty if not known."""

    # Routed
    route: Route | None = field(default=None, init=False)
    """The present route; None before the first and while the request waits for another."""
    route_timeout: RouteTimeout = field(default_factory=RouteTimeout, init=False)
    route_lost_reason: str = field(default="", init=False)
    retry_at: float = field(default=0.0, init=False)
    """Not submitted again before this time."""
    pictures_missed: int = field(default=0, init=False)
    """How often in a row an engine did not hold its pictures."""
    poison: PoisonTracker = field(default_factory=PoisonTracker, init=False)
    """Engines that died while they had the request."""
    heard_on_route: bool = field(default=False, init=False)
    """Whether output or prompt progress has arrived on the present route; until then the engine may merely queue it."""

    # Delivered
    numerics_seen: set[str] = field(default_factory=set, init=False)
    """Numerics of the engines that computed the results of its inputs, if these are pooled."""
    started_sent: bool = field(default=False, init=False)
    """Whether the client was sent ``Started`` for the present route."""
    computing_since: float | None = field(default=None, init=False)
    """When an engine first reported that it computes the request."""
    prompt_charged: bool = field(default=False, init=False)
    """Whether the prompt was charged to the tenant's rate limit."""
    search_charged: bool = field(default=False, init=False)
    """Whether beams were charged to it, if there are any."""
    prompt_logprobs_delivered: int = field(default=0, init=False)
    """Log probabilities of the prompt in the client's outbox."""
    first_delta_at: float | None = field(default=None, init=False)
    last_delta_at: dict[int, float] = field(default_factory=dict, init=False)
    """When the latest delta of each choice was delivered, keyed by choice."""
    finished: bool = field(default=False, init=False)
    """Whether its end is in the client's outbox."""

    @property
    def admitted(self) -> bool:
        """Whether it is tokenized and in flight."""
        return self._resolved is not None

    @property
    def resolved(self) -> ResolvedRequest:
        """Available from admission to the end."""
        assert self._resolved is not None
        return self._resolved

    @property
    def delivery(self) -> Delivery:
        """Available from admission to the end."""
        assert self._delivery is not None
        return self._delivery

    @property
    def was_in_flight(self) -> bool:
        """Whether it was in flight before its present route: here, or before its client resumed it."""
        return self.resolved.is_resume or self.delivery.epoch > 1

    @property
    def is_new(self) -> bool:
        """Whether no engine has had it, here or before its client resumed it."""
        return not self.resolved.is_resume and self.delivery.epoch == 0

    def admit(self, resolved: ResolvedRequest) -> None:
        self.message = None
        self._resolved = resolved
        self._delivery = Delivery(resolved.choices)
        self.numerics = resolved.numerics

    def finish(self) -> None:
        """The end is in the outbox. Free the large fields now: a slow client may take the end much later."""
        self.finished = True
        if self.deadline_timer is not None:
            self.deadline_timer.cancel()
        self.message = self._resolved = self._delivery = None

    def heard(self) -> None:
        """Output or progress arrived on the present route."""
        self.heard_on_route = True
        self.pictures_missed = 0
        self.route_timeout.heard()

    def cached_prefixes(self) -> Prefixes | None:
        """Prefixes of prompt plus answer: the engine has them cached, and a follow-up prompt may begin with them.

        None unless there is exactly one answer.
        """
        if list(self.delivery.choices) != [0] or not self.delivery.completion_tokens:
            return None
        submit, block_size = self.resolved.submit, self.resolved.model.block_size
        ids = [*submit.prompt_token_ids, *self.delivery.choices[0].ids]
        pictures = [(place.offset, place.digest) for place in submit.media]
        adapter = self.resolved.needs.adapter
        return prefixes_of(ids, submit.cache_salt, block_size, pictures, b"" if adapter is None else adapter.key)
