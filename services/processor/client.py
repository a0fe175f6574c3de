"""One client's stream: the requests it has under way, and the news it is owed.

News is coalesced per request in an outbox; the stream's writer takes everything new whenever a write completes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ringline.inference.v1 import inference_pb2

from services.processor.admission.resolve import Admission
from services.processor.protobuf import refusal, write_update
from services.processor.tracing import RequestTrace
from services.ring.errors import Status
from services.ring.outbox import Outboxes
from services.ring.poison import PoisonTracker
from services.ring.prefixes import Prefixes, prefixes_of
from services.ring.request import RingRequest
from services.ring.routes import Route, RouteTimeout
from services.rpc.output_stream import OutputStream

MAX_FRAME_BYTES = 1 << 20
CLIENT_EPOCH = 0
"""Towards clients there are no epochs: what was accepted stands."""
MAX_REFUSALS = 1000
"""While so many wait to be written, the client's next requests are not read."""
REFUSALS_WAIT = 0.005
"""Seconds that a refusal waits for others, or for other news: a flood's are written together, at little cost."""

# Upper estimates of what a request that is under way takes in memory, bytes.
_REQUEST_HELD, _CHOICE_HELD, _RESUMED_ID_HELD = 8 << 10, 512, 12
_COPIES = 2
"""Of what an engine is told: here, and on the way to it."""


class ClientStream(OutputStream):
    """What a Session (or one Generate) has under way."""

    def __init__(
        self, tenant: str, still_known: Callable[[], bool] | None = None, outboxes: Outboxes | None = None
    ) -> None:
        """``still_known``: whether what its client showed would let it in now; None where nothing was asked for.

        What waits for it is counted in ``outboxes``.
        """
        super().__init__(outboxes or Outboxes(), tenant)
        self.tenant = tenant
        self.still_known = still_known
        self.draining = False
        """Whether its client is to begin another stream for what is new."""
        self.over = False
        """Whether it had time for that: nothing new is taken, and the stream ends with what is there."""
        self.carrier: Mapping[str, str] = {}
        """What the call's metadata says of a trace."""
        self._by_client_id: dict[str, ClientRequest] = {}
        self._by_ring_id: dict[str, ClientRequest] = {}
        self._refusals: list[inference_pb2.GenerateResponse] = []
        self._closed_traces: list[RequestTrace] = []
        """Of requests whose end was taken, and is not written yet."""
        self.room_for_refusals = asyncio.Event()

    @property
    def num_live(self) -> int:
        """Requests whose end has not been taken."""
        return len(self._by_ring_id)

    @property
    def num_refusals(self) -> int:
        """Refusals not taken yet."""
        return len(self._refusals)

    def find(self, client_id: str) -> ClientRequest | None:
        """A live request by the client's name for it."""
        return self._by_client_id.get(client_id)

    def requests(self) -> list[ClientRequest]:
        """Every live request."""
        return list(self._by_ring_id.values())

    def add(self, call: ClientRequest) -> None:
        """A request began."""
        self._by_client_id[call.client_id] = call
        self._by_ring_id[call.ring_id] = call

    def drain(self) -> None:
        """Ask its client for another stream; what is on its way is taken yet."""
        self.draining = True
        self.wake.set()

    def end_when_idle(self) -> None:
        """Take nothing new: the stream ends when nothing is left on it."""
        self.over = True
        self.wake.set()

    def refuse(self, client_id: str, in_reply_to: int, status: Status) -> None:
        """A frame was refused before it became a request."""
        self._refusals.append(refusal(client_id, in_reply_to, status))
        if len(self._refusals) == 1:
            asyncio.get_running_loop().call_later(REFUSALS_WAIT, self.wake.set)

    def written(self) -> None:
        """What was taken is on its way."""
        if self._closed_traces:
            traces, self._closed_traces = self._closed_traces, []
            for trace in traces:
                trace.delivered()

    def clear(self) -> None:
        """The stream is over: forget what it is owed."""
        self._closed_traces += [call.trace for call in self._by_ring_id.values() if call.trace is not None]
        self.written()
        self._by_client_id.clear()
        self._by_ring_id.clear()
        self._refusals.clear()
        super().clear()

    def take(self) -> inference_pb2.SessionResponse | None:
        """Everything new, up to about 1 MiB; a request whose end is among it is no longer live.

        None if there is nothing. Raises ``TimeoutError`` if the client is lost.
        """
        self.check()
        frame = inference_pb2.SessionResponse(responses=self._refusals)
        self._refusals.clear()
        self.room_for_refusals.set()
        for update in self.outbox.take(MAX_FRAME_BYTES):
            call = self._by_ring_id[update.request_id]
            write_update(frame, update, call.client_id, call.ordinal)
            if update.closing is not None:
                if call.trace is not None:
                    self._closed_traces.append(call.trace)
                del self._by_ring_id[call.ring_id]
                del self._by_client_id[call.client_id]
        return frame if frame.responses else None


@dataclass(slots=True, eq=False)
class ClientRequest:
    """A request from the frame that asked for it to its end. Times are on the monotonic clock, seconds."""

    ring_id: str
    client_id: str
    ordinal: int
    """Which frame of its stream asked for it, from 1."""
    client: ClientStream
    arrived: float
    deadline: float | None
    timer: asyncio.TimerHandle | None = None
    """Goes off at the deadline."""
    trace: RequestTrace | None = None
    """If it is traced."""
    live: LiveRequest | None = None
    """None until its prompt is tokenized and everything resolved."""
    ended: bool = False
    """Whether its end is in the outbox."""


@dataclass(slots=True, eq=False)
class LiveRequest:
    """A request on the ring."""

    call: ClientRequest
    admission: Admission
    ring: RingRequest
    route: Route | None = None
    outage: RouteTimeout = field(default_factory=RouteTimeout)
    """How long it has waited for a route."""
    reason: str = ""
    """Why it lost its last route."""
    retry_at: float = 0.0
    """Not before this is it given to an engine again; on the monotonic clock."""
    crashes: PoisonTracker = field(default_factory=PoisonTracker)
    """Engines that died while they had it."""
    computing: bool = False
    """Whether its engine has said that it computes it, and does not merely hold it."""
    numerics: str = ""
    """Those that computed what was delivered; empty where they are not known."""
    started: bool = False
    """Whether the client was told who computes it at present."""
    begun: float | None = None
    """When the first of it was heard from an engine."""
    charged: bool = False
    """Whether its prompt is among the tokens that its tenant has had."""
    prompt_scores: int = 0
    """How many of the prompt's log probabilities the client was given."""
    first_delta_at: float | None = None
    """When the first tokens of it came."""
    last_delta_at: dict[int, float] = field(default_factory=dict)
    """By choice."""
    num_resumed: int = field(init=False)
    """Ids that it came with, over all choices: an engine computes them like its prompt."""
    size: int = field(init=False)
    """Bytes: about what is held of it, and no less, its output aside."""

    def __post_init__(self) -> None:
        admission = self.admission
        self.size = _REQUEST_HELD + len(admission.packed_admitted)
        self.size += _COPIES * (len(admission.packed_submit) + len(admission.output_context))
        self.num_resumed = sum(map(len, admission.choices.values()))
        self.size += _CHOICE_HELD * len(admission.choices) + _RESUMED_ID_HELD * self.num_resumed

    def computed(self) -> Prefixes | None:
        """What its engine has of it: of the prompt, and of the answer where there is one that may be asked on."""
        if list(self.ring.choices) != [0] or not self.ring.completion_tokens:
            return None
        submit, model = self.admission.submit, self.admission.model
        return prefixes_of([*submit.prompt_token_ids, *self.ring.choices[0].ids], submit.cache_salt, model.block_size)

    def heard(self) -> None:
        """News of it came from where it was sent."""
        self.computing = True
        self.outage.heard()
