"""The engine on the event loop: passes requests to the step loop, and its reports to the attach registry and the links.

All Attach streams share one ``AsyncEngine``. The step loop computes in its own thread; everything here runs on the
event loop unless a docstring says otherwise.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

import structlog

from engine_core.config import ModelSpec
from engine_core.errors import RequestError
from engine_core.lora.schedule import AdapterSchedule
from engine_core.media import Picture
from engine_core.pooling.params import PoolingRequest
from engine_core.request import FinishReason as CoreFinishReason
from engine_core.request import Request
from engine_core.step import SequenceOutput
from services.engine.adapters.control import AdapterControl
from services.engine.adapters.queue import AdapterLoader, AdapterQueue
from services.engine.adapters.registry import AdapterNews, AdapterRegistry, Generation
from services.engine.engine_messages import end_of, status_of
from services.engine.grammar_queue import EngineRequest, GrammarQueue
from services.engine.large_messages import LargeMessages
from services.engine.media_store import MediaNews, MediaStore
from services.engine.metrics import AdapterReading, EngineMetrics, EngineReading
from services.engine.step_loop import StepLoop, StepReport
from services.engine.tracing import EngineTraces
from services.ring.attach_registry import AttachRegistry
from services.ring.errors import Status, retry_after_ms
from services.ring.events import ChoiceEnd, FinishReason
from services.ring.identity import POOLING, PeerId
from services.ring.ledger import LedgerEntry, Ledgers
from services.ring.outbound_link import OutboundLink
from text_core.grammar.grammar_text import Marker

if TYPE_CHECKING:
    from engine_core.lora.adapter import AdapterFile  # it imports torch
    from engine_core.lora.support import LoRASupport

log = structlog.get_logger(__name__)

OPENING_DELAY = 0.005
"""Seconds that the news of a request's arrival wait for others, such as its first step, which begins at once if the
engine is idle: peers get one frame, not two, while the processors have more to do than to read it."""


class LinkWaker:
    """Wakes the writer of one link: ``Attachment`` waits for ``event``, then takes frames from ``link``."""

    def __init__(self, link: OutboundLink) -> None:
        self.link = link
        self.event = asyncio.Event()
        self.load_due = False
        self.adapters: AdapterNews | None = None
        """What the peer must be told of adapters; None: it did not ask for it, or there are none."""
        self.media: MediaNews | None = None
        """What the peer must be told of pictures; None: it submits nothing, or the model takes none."""
        self.superseded = asyncio.Event()
        """Set when a newer stream of the same peer replaces this one."""

    @property
    def pending(self) -> bool:
        """Whether there is something new to write."""
        return self.link.pending or bool(self.media) or bool(self.adapters)

    @property
    def hurries(self) -> bool:
        """Whether some of it should be written at once."""
        return self.link.hurries or bool(self.media) or bool(self.adapters)


class AsyncEngine:
    """The attach registry with its ledger, the step loop, and the writers of all links.

    Implements ``CorePort``, ``GrammarQueueOwner`` and ``AdapterQueueOwner``.
    """

    def __init__(self, *, orphan_grace: float, max_ledgers: int, traces: EngineTraces | None = None) -> None:
        self.step_loop: StepLoop | None = None
        """Set once the engine has loaded; peers attach after that."""
        self.model: ModelSpec
        """Set once the engine has loaded."""
        self.capabilities: Collection[str] = ()
        """Set once the engine has loaded."""
        self.grammars: GrammarQueue | None = None
        """Requests that wait for their grammars; None until the engine has loaded, or if it cannot use grammars."""
        self.model_digest = ""
        """Digest of model and tokenizer; set once the engine has loaded."""
        self.media: MediaStore | None = None
        """The pictures that peers have sent; None until the engine has loaded, or if its model takes none."""
        self.adapters: AdapterControl | None = None
        """The adapters that requests may name; None until the engine has loaded, or if it serves none."""
        self.adapter_queue: AdapterQueue | None = None
        """Requests that wait for their adapters; None like ``adapters``."""
        self.ledgers = Ledgers(
            orphan_grace=orphan_grace,
            max_entries=max_ledgers,
            retry_after_ms=self._retry_after_ms,
            on_released=self._released,
        )
        self.registry: AttachRegistry[EngineRequest] = AttachRegistry(
            self, self.ledgers, on_removed=self._removed, on_left_core=self._left_core
        )
        self._traces = traces
        self.large_frames = LargeMessages()
        """Large frames of all peers, parsed and executed one at a time."""
        self.drain_grace: float | None = None
        """Seconds that running requests have to finish; None unless draining."""
        self.failure: str | None = None
        """Why the engine has stopped computing; None while it works."""
        self._wakers: dict[OutboundLink, LinkWaker] = {}
        self._openings: asyncio.TimerHandle | None = None
        """Wakes the writers that have only openings."""
        self._last_queue_seconds: float | None = None
        """Seconds that the most recently scheduled request had been queued."""
        self.metrics = EngineMetrics(self._read)

    # CorePort

    def add(self, core_id: str, core_request: EngineRequest) -> None:
        assert self.step_loop is not None
        core = core_request.core
        if self.media is not None and isinstance(core, Request):
            self.media.pin(core_id, (item.picture.digest for item in core.media))
        if self._traces is not None:
            self._traces.submitted(core_id, self.registry.traceparent(core_id), time.monotonic())
        if core_request.adapter is not None:
            assert self.adapters is not None  # else its Submit was refused
            self.adapters.registry.use(core_id, core_request.adapter)
        if core_request.make_grammar is None:
            self._go_on(core_id, core)
        else:
            assert self.grammars is not None  # else its Submit was refused
            self.metrics.constrained_requests += 1
            self.grammars.add(core_id, core_request)

    def cancel(self, core_id: str, choice: int | None) -> bool:
        assert self.step_loop is not None
        if self.grammars is not None and core_id in self.grammars:
            return self.grammars.cancel(core_id, choice)
        if self.adapter_queue is not None and core_id in self.adapter_queue:
            return self.adapter_queue.cancel(core_id, choice)
        return self.step_loop.cancel(core_id, choice)

    def _go_on(self, core_id: str, request: Request | PoolingRequest, cancelled: Collection[int] = ()) -> None:
        """A request needs no grammar any more; the choices in ``cancelled`` were cancelled meanwhile."""
        adapter = None if self.adapters is None else self.adapters.registry.used_by(core_id)
        if adapter is None:
            self._compute(core_id, request, cancelled)
        else:
            assert self.adapter_queue is not None
            self.adapter_queue.add(core_id, request, adapter, cancelled)

    def _compute(self, core_id: str, request: Request | PoolingRequest, cancelled: Collection[int]) -> None:
        assert self.step_loop is not None
        self.step_loop.add(core_id, request)
        for choice in cancelled:
            self.step_loop.cancel(core_id, choice)

    def _too_late(self, core_id: str, request: Request | PoolingRequest) -> None:
        if isinstance(request, Request):
            choices = request.resume or dict.fromkeys(range(request.params.n), ())
        else:
            choices = dict.fromkeys(request.inputs, ())
        for choice, ids in choices.items():
            self.registry.progress(core_id, choice, (), None, ChoiceEnd(FinishReason.DEADLINE, len(ids)))
        self.wake()

    # GrammarQueueOwner

    def grammar_ready(self, core_id: str, request: Request, cancelled: set[int]) -> None:
        self._go_on(core_id, request, cancelled)

    def grammar_refused(self, core_id: str, error: RequestError | Status) -> None:
        self._refuse(core_id, error)
        self.wake()

    def grammar_too_late(self, core_id: str, request: Request) -> None:
        self._too_late(core_id, request)

    # AdapterQueueOwner

    def adapter_ready(self, core_id: str, request: Request | PoolingRequest, cancelled: set[int]) -> None:
        self._compute(core_id, request, cancelled)

    def adapter_refused(self, core_id: str, status: Status) -> None:
        self._refuse(core_id, status)
        self.wake()

    def adapter_too_late(self, core_id: str, request: Request | PoolingRequest) -> None:
        self._too_late(core_id, request)

    def adapter_moved(self, digest: str, *, loaded: bool) -> None:
        assert self.adapters is not None
        self.adapters.registry.set_loaded(digest, loaded=loaded)

    def adapter_failed(self, generation: Generation) -> None:
        assert self.adapters is not None
        self.adapters.suspect(generation)

    # Peers

    def attach(self, peer: PeerId) -> LinkWaker:
        """Attach a peer that has sent its Hello. Raises ``Refused`` like ``AttachRegistry.attach``."""
        link, superseded = self.registry.attach(peer, time.monotonic())
        if superseded is not None and (old := self._wakers.get(superseded)) is not None:
            old.superseded.set()
        waker = self._wakers[link] = LinkWaker(link)
        waker.load_due = True
        self.wake()
        log.info("attached", peer=peer.name, incarnation=peer.incarnation)
        return waker

    def detach(self, waker: LinkWaker) -> None:
        self._wakers.pop(waker.link, None)
        if self.media is not None and waker.media is not None:
            self.media.ignore(waker.media)
        if self.adapters is not None and waker.adapters is not None:
            self.adapters.registry.ignore(waker.adapters)
        self.registry.detach(waker.link, time.monotonic())
        self.wake()
        log.info("detached", peer=waker.link.peer.name, incarnation=waker.link.peer.incarnation)

    def wake(self) -> None:
        """Wake every writer whose link has something new."""
        if self._openings is not None:
            self._openings.cancel()
            self._openings = None
        for waker in self._wakers.values():
            if waker.pending:
                waker.event.set()

    def wake_soon(self) -> None:
        """Like ``wake``, but openings wait for other news, for ``OPENING_DELAY`` at most."""
        for waker in self._wakers.values():
            if waker.hurries:
                waker.event.set()
            elif waker.pending and self._openings is None:
                self._openings = asyncio.get_running_loop().call_later(OPENING_DELAY, self.wake)

    def push_load(self) -> None:
        """Make every writer send the load."""
        for waker in self._wakers.values():
            waker.load_due = True
            waker.event.set()

    def drain(self, grace: float) -> None:
        """Refuse new requests and tell every peer; running ones have ``grace`` seconds."""
        self.registry.draining = True
        self.drain_grace = grace
        self.push_load()

    def use_grammars(self, compile_grammar: Callable[[str], None], marker: Marker) -> None:
        """Accept constraints; ``compile_grammar`` is the executor's, ``marker`` writes the model's special tokens."""
        self.grammars = GrammarQueue(
            self, compile_grammar, marker, self.metrics.grammar, retry_after_ms=self._retry_after_ms
        )

    def use_media(self, max_bytes: int, max_tokens: int, check: Callable[[Picture], None]) -> None:
        """Accept pictures of ``max_bytes`` together, each of ``max_tokens``; ``check`` is the executor's."""
        self.media = MediaStore(max_bytes, check, max_tokens=max_tokens, retry_after_ms=self._retry_after_ms)

    def use_adapters(
        self,
        loader: AdapterLoader,
        support: LoRASupport,
        open_adapter: Callable[[str], AdapterFile],
        *,
        max_waiting: int,
        lora_dir: str | None = None,
    ) -> None:
        """Serve adapters; ``loader`` and ``support`` are the executor's, ``open_adapter`` reads and checks files."""
        self.adapters = AdapterControl(AdapterRegistry(self.model.name, self.wake_soon), open_adapter, lora_dir)
        self.adapter_queue = AdapterQueue(
            self,
            loader,
            AdapterSchedule(support.max_loras, support.max_loaded, support.max_bytes),
            max_active=support.max_loras,
            max_bytes=support.max_bytes,
            max_waiting=max_waiting,
            observe=self.metrics.adapter_loaded,
            retry_after_ms=self._retry_after_ms,
        )

    def fail(self, reason: str) -> None:
        """End every stream and refuse new ones: computing has stopped."""
        self.failure = reason
        for waker in self._wakers.values():
            waker.event.set()

    # Reports of the step loop

    def starting(self, core_ids: list[str]) -> None:
        """The first step with these requests begins. Peers are notified: a crash counts against these requests."""
        if self._traces is not None:
            self._traces.starting(core_ids, time.monotonic())
        for core_id in core_ids:
            self.registry.started(core_id)
        self.wake()

    def report(self, report: StepReport) -> None:
        """Enter a step's results into the ledger. An error here would silently lose outputs, so the engine fails."""
        try:
            self._enter(report)
        except Exception as error:
            assert self.step_loop is not None
            self.step_loop.fail(error)

    def _enter(self, report: StepReport) -> None:
        if report.seconds:
            self.metrics.step(report.seconds, report.tokens)
        if self._traces is not None:
            self._traces.outputs(report.outputs, time.monotonic())
        for core_id, error in report.refused:
            self._refuse(core_id, error)
        for core_id, choice in report.cancelled:
            self.registry.released(core_id, choice)
        for output in report.outputs:
            self._enter_output(output)
        self.wake()

    def _enter_output(self, output: SequenceOutput) -> None:
        registry, core_id = self.registry, output.request_id
        if output.queue_seconds is not None:
            self.metrics.queued(output.queue_seconds)
            self._last_queue_seconds = output.queue_seconds
        if POOLING in self.capabilities:
            if output.cached_tokens is not None:
                registry.input_begun(core_id, output.cached_tokens)
        elif output.cached_tokens is not None or output.prefilled_tokens is not None:
            registry.prefilled(core_id, output.prefilled_tokens, output.cached_tokens)
        if output.prompt_logprobs is not None:
            registry.prompt_logprobs(core_id, output.prompt_logprobs)
        if output.token_ids or output.finish is not None:
            end, drafts = None, (output.accepted_drafts, output.rejected_drafts)
            if output.finish is not None:
                if output.finish.finish_reason is CoreFinishReason.ERROR:
                    self.metrics.failed(by_model=output.finish.error_field is None)
                position = output.first_position + len(output.token_ids)
                end = end_of(output.finish, position, drafts, output.beam_score, output.pooled)
            registry.progress(core_id, output.choice, output.token_ids, output.logprobs, end, drafts)

    def _removed(self, entry: LedgerEntry) -> None:
        log.debug(
            "request finished",
            request_id=entry.request_id,
            epoch=entry.epoch,
            submitter=entry.submitter.name,
            finish_reasons=_finish_reasons(entry),
            prompt_tokens=entry.prompt_tokens,
            cached_tokens=entry.prefill.cached_tokens if entry.prefill is not None else 0,
            completion_tokens=sum(len(kept.ids) for kept in entry.choices.values()),
        )
        if self._traces is not None:
            self._traces.removed(entry, time.monotonic())

    def _left_core(self, core_id: str) -> None:
        if self.adapters is not None and self.adapter_queue is not None:
            self.adapter_queue.end(core_id)
            self.adapters.registry.release(core_id)

    def _released(self, core_id: str) -> None:
        if self.media is not None:
            self.media.unpin(core_id)

    def _refuse(self, core_id: str, error: RequestError | Status) -> None:
        status = error if isinstance(error, Status) else status_of(error, self._retry_after_ms())
        entry = self.registry.refuse(core_id, status)
        if entry is not None:
            log.info("refused", request_id=entry.request_id, reason=status.message)

    def _retry_after_ms(self) -> int:
        """Assumes that the next request will queue as long as the one scheduled last."""
        return retry_after_ms(self._last_queue_seconds)

    def _read(self) -> EngineReading | None:
        """Read the metrics' values. Called from another thread, so it changes nothing."""
        loop = self.step_loop
        if loop is None:
            return None
        stats = loop.stats
        return EngineReading(
            running=stats.running_seqs,
            waiting=stats.waiting_reqs
            + stats.returning_reqs
            + (len(self.grammars) if self.grammars is not None else 0)
            + (len(self.adapter_queue) if self.adapter_queue is not None else 0),
            kv_usage=stats.kv_usage,
            kv_blocks=stats.kv_blocks,
            states=stats.state_slots,
            states_used=stats.state_slots_used,
            peers=len(self._wakers),
            ledgers=self.registry.num_ledgers,
            prefix_queries=stats.prefix_query_tokens,
            prefix_hits=stats.prefix_hit_tokens,
            preemptions=stats.preemptions,
            steps=loop.steps,
            computed_tokens=stats.computed_tokens,
            generated_tokens=stats.generated_tokens,
            pictures=0 if self.media is None else len(self.media),
            picture_bytes=0 if self.media is None else self.media.used,
            received_pictures=0 if self.media is None else self.media.received,
            encoded_pictures=stats.encoded_pictures,
            encoded_tokens=stats.encoded_picture_tokens,
            picture_uses=stats.encoder_cache_uses,
            picture_hits=stats.encoder_cache_hits,
            drafts=stats.drafts,
            draft_tokens=stats.draft_tokens,
            accepted_draft_tokens=stats.accepted_draft_tokens,
            accepted_by_position=stats.accepted_by_position,
            adapters=self._read_adapters(),
        )

    def _read_adapters(self) -> AdapterReading | None:
        queue = self.adapter_queue
        if queue is None or self.adapters is None:
            return None
        running, waiting = queue.names()
        return AdapterReading(
            known=len(self.adapters.registry),
            loaded=queue.num_loaded,
            active=queue.num_active,
            nbytes=queue.nbytes,
            waiting_requests=len(queue),
            requests=queue.counts.requests,
            hits=queue.counts.hits,
            loads=queue.counts.loads,
            failed_loads=queue.counts.failed_loads,
            evictions=queue.counts.evictions,
            max_active=queue.max_active,
            running_names=running,
            waiting_names=waiting,
        )


def _finish_reasons(entry: LedgerEntry) -> dict[Any, Any]:
    """Each choice's; of inputs that are pooled, which may be thousands, how many have each."""
    ends = {choice: kept.end and kept.end.finish_reason.name for choice, kept in entry.choices.items()}
    return dict(Counter(ends.values())) if entry.pooled_bytes else ends
